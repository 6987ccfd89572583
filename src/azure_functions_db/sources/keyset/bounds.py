"""Which cursor values are safe to pass, worked out from who was running when they were first seen.

Rows become visible in the order of commits, not in the order of their cursors. The rule here lets no row
be jumped over, and knows nothing of any database:

1. See a *bound*: the newest cursor value that is visible to everybody. Its stamp was taken before this moment.
2. Only then list the running transactions. Stamps do not shrink, so a stamp below the bound was taken before
   the bound's own one, by a transaction that had begun by then: it has ended, or it is in the list. The same
   holds for a stamp *at* the bound, as long as that value is not handed out again.
3. Once everyone in the list has ended, read up to the bound, in a snapshot taken after that: whatever can
   ever appear at or below the bound is in it.

A value that is handed out again (a batch number, a stamp that a client has chosen) gets further rows after it
was seen, and of those the one with the higher key can become visible first. So a bound is seen together with
its *ties*, the number of rows that share it: when rows have joined them, that is a new sight with a list of
its own, and until this one has drained, rows are read only below the bound, whatever was promised for it before.
Who begins after that list and takes a value once more that several rows have is waited for where the database
shows that it *touches* the source's rows; who does so after the rows at the bound were read is beyond this rule.

A transaction reads its clock a moment before others can see that it is running, and a coarse clock shows one
value for a while. So a bound may have to *ripen*: the list is taken some time after the bound was seen, by when
its value is over and whoever has taken it can be seen.

Nobody is waited for without end unless the user wants it: a transaction that has written nothing is passed by
after the cap, one that has written after the second limit. Both count from the first bound that it has held.

From one process to the next, a part of the checkpoint says which bound has waited for longest, for whom, and
since when by the database's clock. Transactions are known by texts that are unique on one server between two of its
starts; what another one has written does not count. Whatever cannot be read is forgotten: that means to wait
once more, and never to lose a row.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import CursorSerializationError
from azure_functions_db.core.serializers import deserialize_part, serialize_part
from azure_functions_db.core.types import Horizon, HorizonHolder
from azure_functions_db.sources.keyset import values

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

# More remembered bounds let the horizon move in smaller steps; a busy database fills any number.
_REMEMBERED = 16


@dataclass(frozen=True)
class Transaction:
    """A running transaction, as the database shows it."""

    key: Hashable
    session: str
    user: str | None
    writes: bool
    age_seconds: float | None = None
    mark: Any = field(default=None, compare=False)
    touches: bool = False
    """Whether it is known to have changed rows that this source reads."""


@dataclass
class PendingBound:
    """A bound, and those who were running when it was seen and have not ended since; None: not listed yet."""

    bound: Any
    ties: Hashable
    seen_at: float
    ripe_at: float
    running: dict[Hashable, Transaction] | None = None


class PendingBounds:
    """Bounds that wait for the transactions of their time to end, and the last one for which all have."""

    def __init__(self, cap_seconds: float | None, abandon_seconds: float | None = None) -> None:
        self.confirmed: Any = None
        self.includes_bound = True
        """Whether rows at the confirmed value itself are safe; otherwise only those below it."""
        self.since: dict[Hashable, float] = {}
        """Since when each running transaction has held a bound, or would have."""
        self._cap = cap_seconds
        self._abandon = abandon_seconds
        self._passed: dict[Hashable, Transaction] = {}
        self._waiting: list[PendingBound] = []
        self._latest: tuple[Any, Hashable] = (None, None)

    @property
    def is_settled(self) -> bool:
        """Whether no bound waits for anybody."""
        return not self._waiting

    @property
    def is_new(self) -> bool:
        """Whether nothing has been seen so far."""
        return self._latest == (None, None)

    @property
    def oldest(self) -> PendingBound | None:
        """The bound that has waited for others for the longest time."""
        return next((pending for pending in self._waiting if pending.running), None)

    @property
    def passed_by(self) -> Collection[Transaction]:
        """Running transactions that are no longer waited for because a limit was reached."""
        return self._passed.values()

    def see(self, bound: Any, *, at: float, ripe_at: float, ties: Hashable = None) -> bool:
        """Take note of the newest cursor value and of the rows that share it, and tell whether they are news."""
        if bound is None or (bound, ties) == self._latest:
            return False  # The older sighting of the same rows has the shorter list.
        self._wait_for(PendingBound(bound, ties, at, ripe_at))
        if len(self._waiting) > _REMEMBERED:
            del self._waiting[-2]
        return True

    def resume(
        self, pending: PendingBound | None, passed: Iterable[Transaction], since: Mapping[Hashable, float]
    ) -> None:
        """Go on from what another process has remembered, before anything was seen here."""
        self.since |= since
        self._passed |= {transaction.key: transaction for transaction in passed}
        if pending is not None:
            self._wait_for(pending)

    def list_running(
        self,
        running: Mapping[Hashable, Transaction],
        *,
        at: float,
        successors: Callable[[Transaction], Iterable[Transaction]],
    ) -> None:
        """Take note of who was running at some moment, which must be later than every bound seen so far.

        ``successors`` gives the present form of a transaction from an earlier list, or nothing if it has ended.
        """
        for pending in self._waiting:
            self._update(pending, running, at, successors)
        self._join({key: one for key, one in running.items() if one.touches and key not in self._passed}, at)
        self.since = {key: since for key, since in self.since.items() if key in running}
        self._passed = {key: transaction for key, transaction in self._passed.items() if key in running}
        drained = [i for i, pending in enumerate(self._waiting) if pending.running == {}]
        if drained:
            self.confirmed, self.includes_bound = self._waiting[drained[-1]].bound, True
            del self._waiting[: drained[-1] + 1]
            self._restrict()

    def horizon(self, at: float) -> Horizon | None:
        """Tell how far reading is safe and who holds it there, if somebody does."""
        held = self.oldest
        if held is None or held.running is None:
            return None
        waited = at - held.seen_at
        holders = tuple(
            HorizonHolder(holder.session, holder.user, waited if holder.age_seconds is None else holder.age_seconds)
            for holder in held.running.values()
        )
        return Horizon(self.confirmed, waited, holders)

    def _wait_for(self, pending: PendingBound) -> None:
        self._latest = (pending.bound, pending.ties)
        self._waiting.append(pending)
        self._restrict()

    def _restrict(self) -> None:
        """Let no older promise cover rows at a value that waits."""
        for pending in self._waiting:
            if _is_at_or_below(pending.bound, self.confirmed):
                self.confirmed, self.includes_bound = pending.bound, False

    def _update(
        self,
        pending: PendingBound,
        running: Mapping[Hashable, Transaction],
        at: float,
        successors: Callable[[Transaction], Iterable[Transaction]],
    ) -> None:
        if pending.running is not None:
            pending.running = self._present(pending.running, successors)
        elif at >= pending.ripe_at:
            pending.running = dict(running)
        for transaction in list((pending.running or {}).values()):
            since = self.since.setdefault(transaction.key, pending.seen_at)
            if self._is_passed(transaction, at - since):
                self._passed[transaction.key] = transaction
                del pending.running[transaction.key]  # type: ignore[union-attr]  # it has this one

    def _present(
        self, earlier: Mapping[Hashable, Transaction], successors: Callable[[Transaction], Iterable[Transaction]]
    ) -> dict[Hashable, Transaction]:
        present: dict[Hashable, Transaction] = {}
        for key, then in earlier.items():
            for now in successors(then):
                present[now.key] = now
                if key in self.since:
                    self.since.setdefault(now.key, self.since[key])
        return present

    def _join(self, touching: dict[Hashable, Transaction], at: float) -> None:
        """Wait for those, too, who came later and may have taken the newest value once more."""
        if not touching or self.is_new or self._latest[1] in (None, 1):  # a value that one row has was taken once
            return
        for key in touching:
            self.since.setdefault(key, at)
        if not self._waiting:
            self._wait_for(PendingBound(*self._latest, at, at, touching))
        elif self._waiting[-1].running is not None:
            self._waiting[-1].running |= touching

    def _is_passed(self, transaction: Transaction, held_for: float) -> bool:
        limits = (self._abandon, None if transaction.writes else self._cap)
        return any(limit is not None and held_for > limit for limit in limits)


def _is_at_or_below(bound: Any, confirmed: Any) -> bool:
    """Tell whether a bound has not grown: it is seen again, or the rows above it have gone."""
    if confirmed is None or bound == confirmed:
        return confirmed is not None
    try:
        return not isinstance(bound, str) and bool(bound < confirmed)  # how texts are ordered, only the database knows
    except TypeError:
        return False


HORIZON = "horizon"
"""The name of this part in a checkpoint."""

# It is written with every batch: a crowd that needs more is not worth remembering.
_MOST_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class SavedHorizon:
    """A bound with the transactions that it waits for, and those that are no longer waited for."""

    server: str
    bound: Any = None
    ties: int | None = None
    waits: Mapping[str, float] = field(default_factory=dict)
    passed: Mapping[str, float] = field(default_factory=dict)


def written(saved: SavedHorizon) -> dict[str, Any] | None:
    """Return a saved horizon in its JSON form; None where there is nothing to remember, or too much."""
    if not saved.waits and not saved.passed:
        return None
    form = {
        "server": saved.server,
        "bound": serialize_part(values.storable(saved.bound)),
        "ties": saved.ties,
        "waits": dict(saved.waits),
        "passed": dict(saved.passed),
    }
    return form if len(json.dumps(form)) <= _MOST_BYTES else None


def saved_horizon_in(part: Any) -> SavedHorizon | None:
    """Return what `written` wrote, None for anything else."""
    match part:
        case {"server": str() as server, "bound": bound, "waits": dict() as waits, "passed": dict() as passed}:
            ties = part.get("ties")
        case _:
            return None
    if not _are_times(waits) or not _are_times(passed) or not isinstance(ties, int | None):
        return None
    try:
        return SavedHorizon(server=server, bound=deserialize_part(bound), ties=ties, waits=waits, passed=passed)
    except CursorSerializationError:
        return None


def _are_times(moments: Mapping[str, Any]) -> bool:
    return all(isinstance(moment, int | float) and math.isfinite(moment) for moment in moments.values())
