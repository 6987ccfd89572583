"""Which cursor values are safe to pass, worked out from who was running when they were first seen.

Rows become visible in the order of commits, not in the order of their cursors. The rule here lets no row
be jumped over, and knows nothing of any database:

1. See a *bound*: a cursor value that is visible to everybody. Its stamp was taken before this moment.
2. Only then list the running transactions. Stamps grow, so a stamp at or below the bound was taken before
   the bound's own one, by a transaction that had begun by then: it has ended, or it is in the list.
3. Once everyone in the list has ended, read up to the bound, in a snapshot taken after that: whatever can
   ever appear at or below the bound is in it.

A transaction reads its clock a moment before others can see that it is running. So a bound may have to
*ripen*: the list is taken some time after the bound was seen, which a transaction would have to spend in
that moment to be missed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.types import Horizon, HorizonHolder

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

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


@dataclass
class _Generation:
    bound: Any
    seen_at: float
    ripe_at: float
    running: dict[Hashable, Transaction] | None = None


class Generations:
    """Bounds that wait for the transactions of their time to end, and the last one for which all have."""

    def __init__(self, cap_seconds: float | None) -> None:
        self.confirmed: Any = None
        self.passed_by: set[Transaction] = set()
        """Transactions that were no longer waited for because the cap was reached."""
        self._cap = cap_seconds
        self._waiting: list[_Generation] = []

    @property
    def is_settled(self) -> bool:
        """Whether no bound waits for anybody."""
        return not self._waiting

    def see(self, bound: Any, *, at: float, ripe_at: float) -> bool:
        """Take note of a visible cursor value, and tell whether it is news."""
        latest = self._waiting[-1].bound if self._waiting else self.confirmed
        if bound is None or bound == latest:
            return False  # The older sighting of the same value has the shorter list.
        self._waiting.append(_Generation(bound, at, ripe_at))
        if len(self._waiting) > _REMEMBERED:
            del self._waiting[-2]
        return True

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
        for generation in self._waiting:
            self._update(generation, running, at, successors)
        drained = [i for i, generation in enumerate(self._waiting) if generation.running == {}]
        if drained:
            self.confirmed = self._waiting[drained[-1]].bound
            del self._waiting[: drained[-1] + 1]

    def horizon(self, at: float) -> Horizon | None:
        """Tell how far reading is safe and who holds it there, if somebody does."""
        held = next((generation for generation in self._waiting if generation.running), None)
        if held is None or held.running is None:
            return None
        waited = at - held.seen_at
        holders = tuple(
            HorizonHolder(holder.session, holder.user, waited if holder.age_seconds is None else holder.age_seconds)
            for holder in held.running.values()
        )
        return Horizon(self.confirmed, waited, holders)

    def _update(
        self,
        generation: _Generation,
        running: Mapping[Hashable, Transaction],
        at: float,
        successors: Callable[[Transaction], Iterable[Transaction]],
    ) -> None:
        if generation.running is not None:
            present = (now for then in generation.running.values() for now in successors(then))
            generation.running = {transaction.key: transaction for transaction in present}
        elif at >= generation.ripe_at:
            generation.running = dict(running)
        if generation.running and self._cap is not None and at - generation.seen_at > self._cap:
            self._pass_idle(generation.running)

    def _pass_idle(self, running: dict[Hashable, Transaction]) -> None:
        idle = [transaction for transaction in running.values() if not transaction.writes]
        self.passed_by.update(idle)
        for transaction in idle:
            del running[transaction.key]
