"""Judges from outside: what writers committed against what handlers recorded.

It reads the journal that all processes of one poller append to, and holds three things against it:

- nothing is lost: the newest version of every row was digested by a handler or put into quarantine;
- no two handlers at once: a call is live from its begin to the last moment at which it asked and was told
  that its lease is not lost. Each moment is noted before the question, so that a process that is
  stopped in between cannot claim the time it slept. Live spans of one poller never overlap. A handler
  that wakes up after its lease has passed on may still run: it is told so, and may not commit;
- no commit by a stale holder: who takes the lease starts from a checkpoint that contains every commit made
  under a lower fencing token, and no token is taken twice.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Entry = dict[str, Any]
"""One line of the journal."""


@dataclass
class Call:
    """One call of the handler."""

    who: str
    rows: list[tuple[int, int]]
    began: int
    alive: int
    digested: bool = False


@dataclass(frozen=True)
class Verdict:
    """What was found; each complaint is a sentence."""

    lost: list[str] = field(default_factory=list)
    concurrent: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    """The numbers of the rows that are lost."""
    calls: int = 0
    repeated: int = 0

    @property
    def complaints(self) -> list[str]:
        return self.lost + self.concurrent + self.stale

    def __str__(self) -> str:
        return (
            f"{self.calls} calls, {self.repeated} rows repeated, "
            f"{len(self.lost)} lost, {len(self.concurrent)} concurrent handlers, {len(self.stale)} stale commits"
        )


def judged(
    journal: Iterable[Entry], committed: Mapping[int, int], quarantined: Iterable[tuple[int, int]] = ()
) -> Verdict:
    """Judge one poller: ``committed`` has the newest version of each row, ``quarantined`` what lies in the sink."""
    entries = list(journal)
    calls = calls_in(entries)
    digested = Counter(row for call in calls if call.digested for row in call.rows)
    lost = lost_rows(committed, [*digested, *quarantined])
    return Verdict(
        lost=list(lost.values()),
        concurrent=overlaps(calls),
        stale=stale_commits(entries),
        missing=list(lost),
        calls=len(calls),
        repeated=digested.total() - len(digested),
    )


def calls_in(entries: Iterable[Entry]) -> list[Call]:
    calls: dict[str, Call] = {}
    for entry in entries:
        match entry:
            case {"what": "begin", "call": name, "who": who, "at": at, "rows": rows}:
                calls[name] = Call(who, [(number, version) for number, version in rows], at, at)
            case {"what": "alive", "call": name, "at": at}:
                calls[name].alive = at
            case {"what": "end", "call": name}:
                calls[name].digested = True
            case _:
                pass
    return list(calls.values())


def lost_rows(committed: Mapping[int, int], settled: Iterable[tuple[int, int]]) -> dict[int, str]:
    """Return a sentence for each; a row may change again before it is read: only its newest version has to arrive."""
    newest: dict[int, int] = {}
    for number, version in settled:
        newest[number] = max(version, newest.get(number, 0))
    return {
        number: f"row {number}: version {version} was committed, {newest.get(number, 'nothing')} arrived"
        for number, version in committed.items()
        if newest.get(number, 0) < version
    }


def overlaps(calls: Iterable[Call]) -> list[str]:
    found: list[str] = []
    latest: Call | None = None
    for call in sorted(calls, key=lambda call: call.began):
        if latest and call.began <= latest.alive:
            found.append(f"{latest.who} was at work until {latest.alive}, {call.who} began at {call.began}")
        if latest is None or call.alive > latest.alive:
            latest = call
    return found


def stale_commits(entries: list[Entry]) -> list[str]:
    takes = [entry for entry in entries if entry["what"] == "took"]
    found = [
        f"token {token} was taken {n} times" for token, n in Counter(each["token"] for each in takes).items() if n > 1
    ]
    steps = [entry for entry in entries if entry["what"] in {"took", "committed"}]
    furthest: Entry = {"token": 0, "cursor": None}
    # A take is looked at before the commits under the same token.
    for step in sorted(steps, key=lambda step: (step["token"], step["what"] == "committed")):
        if step["what"] == "took" and position(step) < position(furthest):
            found.append(f"token {step['token']} started before what token {furthest['token']} had committed")
        if step["what"] == "committed" and position(step) > position(furthest):
            furthest = step
    return found


def position(step: Entry) -> tuple[Any, ...]:
    """A cursor in a form that can be compared; none yet comes before all others."""
    cursor = step["cursor"]
    if cursor is None:
        return ()
    value = cursor["value"]
    if "tiebreaker" not in cursor:
        return place_in_log(cursor)
    return (dt.datetime.fromisoformat(value) if isinstance(value, str) else value, *cursor["tiebreaker"].values())


def place_in_log(cursor: Mapping[str, Any]) -> tuple[Any, ...]:
    """A place in PostgreSQL's log or in a binary log; rows of a snapshot come before what follows its place."""
    is_streamed = "snapshot" not in cursor
    if "file" in cursor:
        return (int(cursor["file"].rpartition(".")[2]), cursor["offset"], is_streamed, cursor.get("done") or [])
    high, _, low = cursor["value"].partition("/")
    return (int(high, 16), int(low, 16), is_streamed, (cursor.get("transaction") or ["", 0, 0])[1:])
