"""Whatever instances do in whatever order: one holder, growing tokens, no stale commit, no lost answer."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from azure_functions_db.core.errors import LeaseConflictError, LostLeaseError
from azure_functions_db.testing.faults import Fault, FaultyStateStore
from azure_functions_db.testing.memory import FakeClock

POLLER = "orders"
INSTANCES = 3
MARGIN = dt.timedelta(seconds=5)
LONGEST_SKEW = 9.0  # A holder stops one margin early and a taker waits one longer.

instances = st.integers(0, INSTANCES - 1)
ttls = st.sampled_from([20.0, 30.0, 60.0])
answers = st.sampled_from([None, Fault.LOST_REPLY, Fault.REFUSED_RETRY])


@dataclass(frozen=True)
class Belief:
    """What an instance thinks it holds."""

    lease_id: str
    until: dt.datetime


class Instances(RuleBasedStateMachine):
    """Some instances, whose clocks differ and whose answers get lost, share one state."""

    @initialize(skews=st.lists(st.floats(0, LONGEST_SKEW), min_size=INSTANCES, max_size=INSTANCES))
    def start(self, skews: list[float]) -> None:
        self.clocks = [FakeClock() for _ in skews]
        for clock, skew in zip(self.clocks, skews, strict=True):
            clock.advance(skew)
        first = FaultyStateStore(clock=self.clocks[0])
        self.stores = [first, *(FaultyStateStore(shared_with=first, clock=clock) for clock in self.clocks[1:])]
        self.beliefs: dict[int, Belief] = {}
        self.lost: list[tuple[int, str]] = []
        self.holder: int | None = None  # who took the lease last and did not give it back
        self.current = Belief("", self.clocks[0]())
        self.position = 0

    @rule(seconds=st.floats(0.1, 70))
    def time_passes(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.advance(seconds)

    @rule(who=instances, ttl=ttls, looks=st.booleans(), answer=answers)
    def acquire(self, who: int, ttl: float, looks: bool, answer: Fault | None) -> None:
        store, free = self.stores[who], self.is_free_for(who)
        self.plan(who, answer)
        try:
            lease_id = store.take(store.look(POLLER), ttl).lease_id if looks else store.acquire_lease(POLLER, ttl)
        except LeaseConflictError:
            assert not free, "a free lease was refused"
            return
        assert free, "a lease was taken that was not free"
        assert token_of(lease_id) > token_of(self.current.lease_id), "a token did not grow"
        self.forget(who)
        self.holder, self.current = who, Belief(lease_id, self.until(who, ttl))
        self.beliefs[who] = self.current
        assert store.load_checkpoint(POLLER).get("cursor", [0]) == [self.position]

    @rule(who=instances, answer=answers, ends=st.booleans())
    def commit(self, who: int, answer: Fault | None, ends: bool) -> None:
        if who not in self.beliefs:
            return
        store, lease_id, alive = self.stores[who], self.beliefs[who].lease_id, self.is_alive(who)
        self.plan(who, answer)
        try:
            store._lease(POLLER, lease_id).commit({"cursor": [self.position + 1]}, release=ends)
        except LostLeaseError:
            assert not alive, "a holder was refused"
            self.forget(who)
            return
        assert alive, "a stale owner committed"
        self.position += 1
        if ends:
            self.give_back(who)

    @rule(who=instances, ttl=ttls, answer=answers)
    def renew(self, who: int, ttl: float, answer: Fault | None) -> None:
        if who not in self.beliefs:
            return
        alive = self.is_alive(who)
        self.plan(who, answer)
        try:
            self.stores[who].renew_lease(POLLER, self.beliefs[who].lease_id, ttl)
        except LostLeaseError:
            assert not alive, "a holder was refused"
            self.forget(who)
            return
        assert alive, "a lost lease was renewed"
        self.beliefs[who] = self.current = replace(self.beliefs[who], until=self.until(who, ttl))

    @rule(who=instances, answer=answers)
    def release(self, who: int, answer: Fault | None) -> None:
        if who not in self.beliefs:
            return
        self.plan(who, answer)
        self.stores[who].release_lease(POLLER, self.beliefs[who].lease_id)
        self.give_back(who)

    @rule(which=st.integers(0, 50))
    def come_back_with_a_lost_lease(self, which: int) -> None:
        if not self.lost:
            return
        who, lease_id = self.lost[which % len(self.lost)]
        self.stores[who].faults.clear()
        try:
            self.stores[who].commit_checkpoint(POLLER, {"cursor": [-1]}, lease_id)
        except LostLeaseError:
            return
        raise AssertionError("a lost lease committed")

    @invariant()
    def never_two_live_holders(self) -> None:
        beliefs = getattr(self, "beliefs", {})
        alive = [who for who, belief in beliefs.items() if self.clocks[who]() < belief.until - MARGIN]
        assert len(alive) <= 1

    def is_free_for(self, who: int) -> bool:
        given_up = self.holder == who and who not in self.beliefs
        return self.holder is None or given_up or self.clocks[who]() >= self.current.until + MARGIN

    def is_alive(self, who: int) -> bool:
        return self.beliefs[who] == self.current and self.clocks[who]() < self.current.until - MARGIN

    def until(self, who: int, ttl: float) -> dt.datetime:
        return self.clocks[who]() + dt.timedelta(seconds=ttl)

    def plan(self, who: int, answer: Fault | None) -> None:
        self.stores[who].faults.clear()
        if answer is not None:
            self.stores[who].faults.plan("replace", answer)
            self.stores[who].faults.plan("create", answer)

    def give_back(self, who: int) -> None:
        if self.holder == who and self.beliefs[who].lease_id == self.current.lease_id:
            self.holder = None
        self.forget(who)

    def forget(self, who: int) -> None:
        belief = self.beliefs.pop(who, None)
        if belief is not None:
            self.lost.append((who, belief.lease_id))


def token_of(lease_id: str) -> int:
    return int(lease_id.rpartition(":")[2] or 0)


TestInstances = Instances.TestCase
TestInstances.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
