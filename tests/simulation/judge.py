"""Holds a history against the promises of the library, as it happens and in the end.

It sees what no poller sees: every version of the state document in the moment it is stored, every call of a handler,
every row in the quarantine, and what was really committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import DbError, FingerprintMismatchError, LostLeaseError, PositionLostError
from azure_functions_db.trigger.batch import Search

if TYPE_CHECKING:
    from azure_functions_db.trigger.events import RowChange
    from azure_functions_db.trigger.handler import PollContext
    from tests.simulation.database import Database, Written
    from tests.simulation.plan import Plan
    from tests.simulation.world import Process, World

Row = tuple[int, int]
"""A change by its key and version."""

GUARANTEES = {
    "delivered": "every committed change reaches the handler or the quarantine in the end",
    "passed": "the checkpoint passes only what was handled or put aside before",
    "fenced": "a holder whose lease has passed on writes nothing",
    "back": "the checkpoint never goes back",
    "alone": "two handlers never run at once while the first is told that its lease holds",
    "kept": "who is neither stopped nor cut off keeps the lease, however long the handler takes",
    "order": "the changes of a key are handled in their order",
    "repeated": "what lies at or below the checkpoint is not delivered again",
    "held": "a handler is called only while its holder's own clock says that the lease holds",
    "ahead": "no more than one page is read ahead of the checkpoint",
    "turns": "a reader is asked for one thing at a time, and for nothing once it is closed",
    "cancelled": "an async handler is cancelled when its lease is lost",
    "ended": "a call that was cancelled returns when its tick has come to an end",
    "once": "what a handler writes in the transaction of its checkpoint takes effect once",
    "batch": "a handler is given no more than a batch",
    "poison": "what is put aside is poison, and nothing else",
    "taken back": "a row that comes again because its batch was not committed is taken out of the quarantine first",
    "identity": "a change has one event id, whenever and wherever it is delivered, and no other change has it",
    "lost position": "a position that the database no longer has is an error that stops, never a jump; where the rows "
    "are to be read anew, all of them are, and the checkpoint tells of the gap",
    "acknowledged": "what a source lets go of was handled or put aside, and the checkpoint is behind it",
    "fingerprint": "a changed definition is refused, and handles nothing",
    "errors": "whatever goes wrong comes out as an error of the library",
    "well again": "a poller that works again is not noted as failing",
}
"""What is promised, by the name that a complaint begins with."""


@dataclass(eq=False)
class Call:
    """One call of the handler."""

    process: str
    rows: list[Row]
    began: int
    alive: int
    is_trial: bool
    ids: dict[Row, str] = field(default_factory=dict)
    """The ids of its events."""
    is_over: bool = False
    is_late: bool = False
    """Whether its process was stopped just before the call, and for longer than its lease lived."""


@dataclass
class Judge:
    """One history's judge."""

    world: World
    plan: Plan
    database: Database = field(init=False)
    calls: list[Call] = field(default_factory=list)
    settled: dict[int, set[int]] = field(default_factory=dict)
    """By key, the versions that a handler has digested."""
    last: dict[int, int] = field(default_factory=dict)
    """By key, the version that was digested last."""
    aside: set[Row] = field(default_factory=set)
    unconfirmed: set[Row] = field(default_factory=set)
    """What the holder of the lease has put aside since the checkpoint was last moved."""
    cursor: Mapping[str, Any] | None = None
    token: int = 0
    owner: str = ""
    failure: Any = None
    effects: set[str] = field(default_factory=set)
    """The ids of the events of which a handler's writes were committed with the checkpoint."""
    ids: dict[str, Row] = field(default_factory=dict)
    names: dict[tuple[Row, str, int], str] = field(default_factory=dict)
    gaps: int = 0
    """How many losses were gone past."""
    looked_at: int = 0
    """How long the story was when it was last asked whether all is well."""
    undone: set[Row] = field(default_factory=set)
    """What a promotion has undone, handled or not."""
    has_stopped: bool = False
    """Whether a tick has said that its position is lost."""

    def complain(self, guarantee: str, what: str) -> None:
        self.world.complain(f"{guarantee}: {what} ({GUARANTEES[guarantee]})")

    # State.

    @property
    def holder(self) -> tuple[str, int]:
        """The process that the state document names, and the token of its lease."""
        return _short(self.owner), self.token

    def stored(self, content: bytes) -> None:
        """Look at the state document in the moment it is stored."""
        document = json.loads(content)
        lease, checkpoint = document["lease"], document["checkpoint"]
        self._fenced(lease)
        self._moved(checkpoint.get("cursor"), lease)
        self.failure = (checkpoint.get("metadata") or {}).get("failure")

    def _fenced(self, lease: Mapping[str, Any] | None) -> None:
        token, owner = (0, "") if lease is None else (lease["fencing_token"], lease["owner_id"])
        if token < self.token or (token == self.token and owner != self.owner):
            self.complain("fenced", f"{owner}:{token} wrote over {self.owner}:{self.token}")
        elif token > self.token:
            self.world.tell(_short(owner), f"holds the lease, token {token}")
        self.token, self.owner = token, owner

    def _moved(self, cursor: Mapping[str, Any] | None, lease: Mapping[str, Any] | None) -> None:
        if cursor == self.cursor:
            return
        database = self.database
        before, after = database.order_of(self.cursor), database.order_of(cursor)
        was_lost, gap = database.is_lost, (cursor or {}).get("gap")
        if gap != (self.cursor or {}).get("gap"):
            self._gone_past(gap)
            before, was_lost = (), False
        if after < before:
            self.complain("back", f"from {before} to {after}")
        self.cursor = cursor
        self.unconfirmed.clear()
        database.went_to(cursor or {})
        if was_lost and not database.is_lost and after > before:
            self.complain("lost position", f"from {before}, which is lost, to {after}")
        self.world.tell(_short(lease["owner_id"]) if lease else "?", f"moves the checkpoint to {after}")
        # Where a promotion has undone what was read, the next tick has to say so: nothing else is asked of it.
        for written in () if database.is_lost else database.passed_by(cursor):
            if not self.is_settled(written):
                self.complain("passed", f"{written.key}v{written.version} was not handled")

    def _gone_past(self, gap: Mapping[str, Any] | None) -> None:
        is_there = self.database.is_lost or self.database.has_given_up
        if gap is None or self.plan.on_position_lost == "stop" or not is_there:
            self.complain("lost position", f"nothing was lost, and yet there is a gap: {gap}")
            return
        self.world.tell("judge", f"sees a gap up to {gap['to']}: {gap['reason'][:100]}")
        self.database.go_past()
        self.effects.clear()  # every row is told once more
        self.gaps += 1

    def is_settled(self, written: Written) -> bool:
        """Tell whether a change has been handled or put aside; where only newest states count, a newer one will do."""
        digested = self.settled.get(written.key, set())
        if written.version in digested or (written.key, written.version) in self.aside:
            return True
        if self.database.every_change:
            return False
        return any(version > written.version for version in self.lasting(written.key)) or any(
            key == written.key and version > written.version for key, version in self.aside - self.undone
        )

    def lasting(self, key: int) -> set[int]:
        """Return the versions of a row that have been handled and that no promotion has undone."""
        return {version for version in self.settled.get(key, ()) if (key, version) not in self.undone}

    # Handlers.

    def begun(self, process: Process, events: Sequence[RowChange], context: PollContext) -> Call:
        """Note that a handler is called."""
        rows = [self._row_of(event) for event in events]
        search = Search.noted_in((context.checkpoint_before.get("metadata") or {}).get("search"), 1000)
        is_trial = search is not None and search.needs_witness
        call = Call(process.name, rows, self.world.steps, self.world.steps, is_trial)
        call.ids = {row: event.event_id for row, event in zip(rows, events, strict=True)}
        self._look_at(call, len(events))
        if is_lost(context.lease_lost):
            # Between the tick's look and the loop's first step nobody waits, but the process may be stopped.
            call.is_late = self.plan.is_async and self.world.now <= process.frozen_until
            if not call.is_late:
                self.complain("held", f"{process.name} is given {rows}")
        self.calls.append(call)
        told = ", ".join(f"{key}v{version}" for key, version in rows)
        self.world.tell(process.name, f"handles {told}{' as a witness' if is_trial else ''}")
        return call

    def _look_at(self, call: Call, count: int) -> None:
        if count > (1 if self.plan.commit == "row" else self.plan.batch_size):
            self.complain("batch", f"{count} events")
        if call.is_trial:
            return
        if found := self.unconfirmed.intersection(call.rows):
            self.complain("taken back", f"{call.process} was given {sorted(found)}")
        passed = {(each.key, each.version) for each in self.database.passed_by(self.cursor)}
        again = [row for row in call.rows if row in passed]
        if again and not self.plan.has_quarantine:
            self.complain("repeated", f"{call.process} was given {again}, behind the checkpoint")
        if call.rows != self.database.in_order(call.rows):
            self.complain("order", f"{call.process} was given {call.rows}")

    def _row_of(self, event: RowChange) -> Row:
        row = self.database.identity(event.after, event.metadata)
        if row is None:
            self.complain("identity", f"{dict(event.pk)} was never written so: {event.after}")
            return (0, 0)
        # A row of a snapshot is named by its key: it may have changed before its page is read once more.
        if "snapshot" not in event.metadata and self.ids.setdefault(event.event_id, row) != row:
            self.complain("identity", f"{row} has the id of {self.ids[event.event_id]}")
        # Rows that are read anew are others' rows: they belong to another snapshot.
        if self.names.setdefault((row, event.op, self.gaps), event.event_id) != event.event_id:
            self.complain("identity", f"{row} has got another id")
        return row

    def read_ahead(self, process: Process, previous: Any, begin: Any) -> None:
        """Note that a page is read before its turn; the one before it began at the checkpoint, or was passed by it."""
        self.world.tell(process.name, f"reads ahead, from {begin}")
        if self.database.order_of(self.cursor) < previous:
            self.complain("ahead", f"{process.name} reads from {begin}, behind the page from {previous}")

    def alive(self, call: Call) -> None:
        """Note that a handler has asked, and was told that its lease is not lost."""
        call.alive = self.world.steps

    def uncancelled(self, process: Process, lost_at: float) -> None:
        """Note that an async handler goes on though its lease was lost at a moment."""
        if self.world.now > max(lost_at, process.frozen_until) + 1e-6:
            self.complain("cancelled", f"{process.name} has lost its lease {self.world.now - lost_at:.1f} s ago")

    def left(self, process: Process, calls: Sequence[Call]) -> None:
        """Note that the call of a tick has returned."""
        if any(not call.is_over for call in calls) and not process.is_dead:
            self.complain("ended", f"the handler of {process.name} is still at work")

    def digested(self, call: Call, rows: Sequence[Row]) -> None:
        """Note that a handler has got through rows."""
        for key, version in rows:
            if not call.is_trial:
                self._in_turn(key, version)
            self.settled.setdefault(key, set()).add(version)
            if not call.is_trial:
                self.last[key] = version

    def took_effect(self, call: Call, rows: Sequence[Row]) -> None:
        """Note that the transaction has been committed in which a handler has got through rows."""
        for row in rows:
            if call.ids[row] in self.effects:
                self.complain("once", f"{row[0]}v{row[1]} takes effect once more, by {call.process}")
            self.effects.add(call.ids[row])
        self.digested(call, rows)

    def _in_turn(self, key: int, version: int) -> None:
        digested = self.settled.get(key, set())
        if self.plan.names_rows or not self.plan.is_polite:
            return  # such a handler goes on after the rows that it names, or after its lease
        if self.database.newest_only and version not in digested and version < max(digested, default=0):
            self.complain("order", f"{key}v{version} was handled after {key}v{max(digested)}")
        earlier = [each for each in self.database.before(key, version) if not self.is_settled(each)]
        if earlier:
            self.complain("order", f"{key}v{version} was handled before {key}v{earlier[0].version}")

    # Quarantine.

    def put_aside(self, text: str, *, is_due: bool) -> None:
        """Note that a row lies in the quarantine. One that comes late is not known to who takes back, and may stay."""
        row = self._aside(text)
        self.aside.add(row)
        (self.unconfirmed.add if is_due else self.unconfirmed.discard)(row)
        self.world.tell("quarantine", f"keeps {row[0]}v{row[1]}")
        if not self.is_poison(row):
            self.complain("poison", f"{row[0]}v{row[1]} was put aside")

    def took_back(self, text: str) -> None:
        row = self._aside(text)
        self.aside.discard(row)
        self.unconfirmed.discard(row)
        self.world.tell("quarantine", f"lets go of {row[0]}v{row[1]}")

    def is_poison(self, row: Row) -> bool:
        """Tell whether a handler can never digest a row."""
        return self.database.is_poison(row[1])

    def _aside(self, text: str) -> Row:
        event = json.loads(text)["event"]
        return self.database.identity(event["after"], event["metadata"]) or (0, 0)

    # Ticks.

    def failed(self, process: Process, error: BaseException, *, is_misdeployed: bool, is_undisturbed: bool) -> None:
        """Note how a tick has ended."""
        self.world.tell(process.name, f"fails with {type(error).__name__}: {str(error)[:100]}")
        if isinstance(error, PositionLostError):
            self.has_stopped = True
            if not self.database.is_lost:
                self.complain("lost position", f"nothing was lost, and yet: {error}")
        elif isinstance(error, FingerprintMismatchError):
            if not is_misdeployed:
                self.complain("fingerprint", str(error))
        elif isinstance(error, LostLeaseError) and is_undisturbed:
            self.complain("kept", f"{process.name} has lost it")
        elif not isinstance(error, DbError) or _is_blunder(error):
            self.world.errors.append(error)
            self.complain("errors", f"{type(error).__name__}: {error}")

    def let_go(self, written: Written) -> None:
        """Note that a source lets go of a change for good."""
        if not self.is_settled(written):
            self.complain("acknowledged", f"{written.key}v{written.version} is gone and was not handled")
        if self.database.order_of(self.cursor) < written.order:
            self.complain("acknowledged", f"{written.key}v{written.version} lies behind the checkpoint")

    # The end.

    def is_satisfied(self) -> bool:
        """Tell whether all has come to where it belongs; asked anew when something was told, or after a while."""
        if len(self.world.story) == self.looked_at and self.world.steps % 20:
            return False
        self.looked_at = len(self.world.story)
        if self.database.is_lost:
            return self.has_stopped and self.plan.on_position_lost == "stop"
        return self.failure is None and not self.missing() and not self.outdated() and self.database.is_tidy()

    def missing(self) -> list[Written]:
        return [written for written in self.database.wanted() if not self.is_settled(written)]

    def conclude(self) -> None:
        """Judge the whole, after everything has been given time to come right."""
        if self.database.is_lost:
            if not self.has_stopped:
                self.complain("lost position", "no tick has told that changes were lost")
            elif self.plan.on_position_lost == "snapshot":
                self.complain("lost position", "the rows have not been read anew")
        else:
            for written in self.missing():
                self.complain("delivered", f"{written.key}v{written.version} never arrived")
            for written in self.outdated():
                self.complain("order", f"something older than {written.key}v{written.version} was told last of its row")
            if not self.database.is_tidy():
                self.complain("delivered", "what was delivered has not been let go of")
            if not self.missing() and self.failure is not None:
                self.complain("well again", str(self.failure.get("error")))
        self._alone()

    def outdated(self) -> list[Written]:
        """Return the rows of which something older was told last, to a handler that stops when it is told to."""
        if not self.plan.is_polite or self.plan.names_rows or (self.undone and not self.gaps):
            return []
        return [
            written
            for written in self.database.wanted()
            if (self.last.get(written.key, 0) < written.version or (written.key, self.last[written.key]) in self.undone)
            and (written.key, written.version) not in self.aside
        ]

    def _alone(self) -> None:
        latest: Call | None = None
        for call in sorted((call for call in self.calls if not call.is_late), key=lambda call: call.began):
            if latest and call.began < latest.alive:
                self.complain("alone", f"{latest.process} was at work when {call.process} began with {call.rows}")
            if latest is None or call.alive > latest.alive:
                latest = call


def is_lost(lease: Any) -> bool:
    """Tell whether a lease is lost by its holder's clock; asked so, nobody else learns of it."""
    return bool(lease._lost.is_set() or lease.remaining() <= 0)


def expiry_of(lease: Any) -> float:
    """Return the moment at which a lease is lost by its holder's clock."""
    return float(lease._began + lease._length)


def _is_blunder(error: BaseException | None) -> bool:
    """Tell whether an error comes of a mistake in a program."""
    while error is not None and not isinstance(error, _BLUNDERS):
        error = error.__cause__
    return error is not None


_BLUNDERS = (AssertionError, AttributeError, LookupError, NameError, TypeError)


def _short(owner: str) -> str:
    return owner.rpartition("/")[2]
