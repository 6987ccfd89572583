"""A tick's lease, beside a clock that is moved by hand: when it is taken, kept, committed under and given back."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from azure_functions_db.core.errors import LeaseConflictError, LostLeaseError
from azure_functions_db.core.types import Pause
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.state.store import DocumentLease
from azure_functions_db.testing.faults import FaultyStateStore
from azure_functions_db.testing.memory import FakeClock
from azure_functions_db.trigger.lease import Lease, TickCancelled
from tests.unit.trigger.poller import PlainStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from azure_functions_db.core.types import CheckpointJson

FIRST: CheckpointJson = {"cursor": [1]}
SECOND: CheckpointJson = {"cursor": [2]}


class Noted(DocumentLease):
    """Remembers what is asked of it, and whether a heartbeat could have come between."""

    lease: Lease
    commits: list[tuple[bool, bool]]

    def commit(self, checkpoint: CheckpointJson, *, release: bool = False) -> bool:
        assert self.lease._heartbeat is not None
        self.commits.append((release, self.lease._heartbeat._turn.locked()))
        return super().commit(checkpoint, release=release)

    def transaction(self) -> AbstractContextManager[object]:
        return nullcontext("a transaction")


class Scene:
    """One lease on a store whose clock stands, beside a clock of its own."""

    def __init__(self, store: Any = None, **options: Any) -> None:
        self.store = store or FaultyStateStore()
        self.clock = FakeClock()
        self.lease = self.another(**options)

    def another(self, **options: Any) -> Lease:
        given: dict[str, Any] = {"transactional": False, "may_steal": lambda: True, "tell": lambda _error, _lost: None}
        return Lease(self.store, "orders", ttl_seconds=60, clock=self.clock.monotonic, **(given | options))

    def held(self) -> Lease:
        self.lease.approach()
        self.lease.hold()
        return self.lease

    def calls(self) -> dict[str, int]:
        counted = dict(self.store.faults.calls)
        self.store.faults.calls.clear()
        return counted


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.lease.stop()


def abandoned() -> FaultyStateStore:
    """A store in which the lease of a dead process has expired."""
    clock = FakeClock()
    dead = FaultyStateStore(clock=clock)
    dead.acquire_lease("orders", 60)
    clock.advance(120)
    return FaultyStateStore(shared_with=dead, clock=clock)


def test_what_was_looked_at_is_not_read_again_until_the_lease_is_held(scene: Scene) -> None:
    scene.lease.approach()
    scene.lease.load()
    assert scene.calls() == {"read": 1}
    scene.lease.hold()
    scene.lease.commit(FIRST, last=False)
    assert scene.lease.load() == FIRST
    scene.lease.commit(SECOND, last=True)
    assert scene.lease.load() == SECOND


def test_a_cancelled_tick_takes_no_lease(scene: Scene) -> None:
    scene.lease.approach()
    scene.lease.cancel()
    with pytest.raises(TickCancelled):
        scene.lease.hold()
    assert scene.calls() == {"read": 1}


def test_a_lease_counts_from_the_moment_it_was_asked_for(scene: Scene) -> None:
    scene.lease.approach()
    scene.clock.advance(50)  # a slow fetch comes between the look and the lock
    scene.lease.hold()
    assert scene.lease.lost.remaining() == 55


@pytest.mark.parametrize(("kind", "verb"), [(FaultyStateStore, "take"), (PlainStore, "acquire_lease")])
def test_a_lease_that_was_long_in_coming_counts_from_its_question(
    kind: type[Any], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(kind())
    at_once = getattr(scene.store, verb)

    def slow(*question: Any) -> Any:
        answer = at_once(*question)
        scene.clock.advance(10)
        return answer

    monkeypatch.setattr(scene.store, verb, slow)
    scene.lease.approach()
    if not scene.lease.is_held:
        scene.lease.hold()
    assert scene.lease.lost.remaining() == 45, "others count from the moment at which the store has taken note of it"
    scene.lease.stop()


def test_whoever_may_not_steal_leaves_an_abandoned_lease_and_says_whose_it_was() -> None:
    modest = Scene(abandoned(), may_steal=lambda: False)
    modest.lease.approach()
    assert modest.lease.rival is None
    with pytest.raises(LeaseConflictError):
        modest.lease.hold()
    assert modest.lease.rival is not None
    assert not modest.lease.is_held


def test_an_abandoned_lease_is_taken_by_whoever_may() -> None:
    bold = Scene(abandoned())
    assert bold.held().is_held
    bold.lease.stop()


def test_a_lease_that_was_given_back_is_no_theft() -> None:
    asked = iter([False])
    modest = Scene(may_steal=lambda: next(asked))
    modest.store.release_lease("orders", modest.store.acquire_lease("orders", 60))
    assert modest.held().is_held
    assert list(asked) == [False], "nobody was asked"
    modest.lease.stop()


def test_a_rival_that_holds_it_is_named(scene: Scene) -> None:
    rival = FaultyStateStore(shared_with=scene.store)
    rival.acquire_lease("orders", 60)
    with pytest.raises(LeaseConflictError) as refused:
        scene.lease.approach()
    assert scene.lease.rival is not None
    assert refused.value.owner_id == scene.lease.rival.owner_id == rival.owner_id
    assert refused.value.poller_name == "orders"


def test_a_pause_is_seen_by_looking(scene: Scene) -> None:
    scene.store.pause("orders", by="ann", why="a migration")
    scene.lease.approach()
    assert isinstance(scene.lease.paused, Pause)


@pytest.mark.parametrize(
    ("transactional", "last", "releases"),
    [(False, False, False), (False, True, True), (True, False, False), (True, True, False)],
)
def test_the_last_commit_gives_the_lease_back_unless_a_transaction_may_take_it_back(
    transactional: bool, last: bool, releases: bool
) -> None:
    store = FaultyStateStore()
    store._lease_type = Noted
    noted = Scene(store, transactional=transactional)
    Noted.lease, Noted.commits = noted.lease, []
    noted.held().commit(FIRST, last=last)
    assert Noted.commits == [(releases, True)]
    assert noted.lease.is_to_release is not releases
    assert noted.lease._heartbeat is not None
    assert noted.lease._heartbeat._stopped.is_set() is last
    noted.lease.stop()


@pytest.mark.parametrize("transactional", [False, True])
def test_only_a_transactional_tick_opens_a_transaction(transactional: bool) -> None:
    store = FaultyStateStore()
    store._lease_type = Noted
    joint = Scene(store, transactional=transactional)
    with joint.lease.transaction() as opened:
        assert opened is None, "nothing is held yet"
    with joint.held().transaction() as opened:
        assert opened == ("a transaction" if transactional else None)
    joint.lease.stop()


def test_a_lease_that_is_lost_by_our_own_clock_writes_nothing(scene: Scene) -> None:
    lease = scene.held()
    scene.calls()
    scene.clock.advance(55)
    with pytest.raises(LostLeaseError):
        lease.commit(FIRST, last=False)
    assert scene.calls() == {}


def test_a_commit_that_had_to_wait_for_a_renewal_looks_at_the_clock_after_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = scene.held()
    scene.calls()

    @contextmanager
    def long_wait() -> Iterator[None]:
        scene.clock.advance(55)
        yield

    monkeypatch.setattr(lease._heartbeat, "quiet", long_wait)
    with pytest.raises(LostLeaseError):
        lease.commit(FIRST, last=False)
    assert scene.calls() == {}


def test_nothing_is_lost_before_it_is_held(scene: Scene) -> None:
    scene.lease.approach()
    scene.clock.advance(3600)  # a fetch that takes long needs no lease yet
    scene.lease.check()
    scene.lease.hold()
    scene.lease.check()


def test_work_counts_for_nothing_once_the_lease_is_lost(scene: Scene) -> None:
    lease = scene.held()
    with pytest.raises(LostLeaseError), lease.guard():
        scene.clock.advance(55)
    began = []
    with pytest.raises(LostLeaseError), lease.guard():
        began.append("work")
    assert began == []


def test_what_fails_after_the_loss_is_a_lost_lease_and_before_it_is_itself(scene: Scene) -> None:
    lease = scene.held()
    with pytest.raises(ZeroDivisionError), lease.guard():
        raise ZeroDivisionError
    with pytest.raises(LostLeaseError), lease.guard():
        scene.clock.advance(55)
        raise ZeroDivisionError


def test_a_pause_ends_with_the_tick(scene: Scene) -> None:
    lease = scene.held()
    lease.cancel()
    lease.pause(3600)
    with pytest.raises(TickCancelled):
        lease.check()


def test_a_note_needs_no_lease_where_the_store_can_do_without(scene: Scene) -> None:
    scene.lease.note(FIRST)
    assert scene.calls() == {"read": 1, "create": 1}
    assert not scene.lease.is_held
    assert scene.store.load_checkpoint("orders") == FIRST


def test_a_note_is_the_last_write_under_a_held_lease(scene: Scene) -> None:
    scene.held().note(FIRST)
    assert scene.store.look("orders").lease is None
    assert scene.store.load_checkpoint("orders") == FIRST
    assert not scene.lease.is_to_release


def test_a_plain_store_is_noted_in_under_a_lease() -> None:
    plain = PlainStore()
    lease = Scene(plain).lease
    lease.note(FIRST)
    assert plain.calls == ["acquire", "commit"]
    assert lease.is_to_release
    lease.stop()
    lease.release()
    assert plain.calls[-1] == "release"
    lease.release()
    assert plain.calls.count("release") == 1


def test_a_store_that_can_be_looked_at_but_not_noted_in_is_noted_in_under_a_lease() -> None:
    class Unnoting:
        def __init__(self) -> None:
            self._store = MemoryStateStore()

        def __getattr__(self, name: str) -> Any:
            if name == "note":
                raise AttributeError(name)
            return getattr(self._store, name)

    store = Unnoting()
    lease = Scene(store).lease
    lease.note(FIRST)
    assert store.load_checkpoint("orders") == FIRST
    assert store.look("orders").lease is None
    lease.stop()


def test_giving_back_what_somebody_else_has_taken_is_no_error(scene: Scene) -> None:
    lease = scene.held()
    scene.store.break_lease("orders")
    lease.release()
    assert not lease.is_to_release


def test_a_lease_that_was_stopped_is_not_renewed(scene: Scene) -> None:
    lease = scene.held()
    lease.stop()
    scene.calls()
    assert lease._heartbeat is not None
    lease._heartbeat.beat()
    assert scene.calls() == {}


@pytest.mark.parametrize(
    ("lease_id", "owner"), [("shop/1-a:42", "shop/1-a"), ("a:b", "a:b"), ("4711", "4711"), ("a:1:2", "a:1")]
)
def test_the_owner_is_read_from_ids_of_our_own_form_only(lease_id: str, owner: str) -> None:
    class Foreign(PlainStore):
        def acquire_lease(self, poller_name: str, ttl_seconds: float) -> str:
            return lease_id

    lease = Scene(Foreign()).lease
    lease.approach()
    assert lease.owner == owner
    lease.stop()


def test_a_note_is_held_against_the_look_that_showed_what_it_stands_beside(scene: Scene) -> None:
    """A tick that could not read the state at first must not write an older checkpoint over a later one."""
    shown = scene.lease.load()
    other = scene.another()
    other.approach()
    other.hold()
    other.commit(SECOND, last=True)
    with pytest.raises(LeaseConflictError):
        scene.lease.note({**shown, "metadata": {"failure": {}}})
    assert scene.store.load_checkpoint("orders") == SECOND


class Call:
    """A coroutine on a loop that ends as it is told to."""

    def __init__(self, *ends: BaseException, is_done: bool = True) -> None:
        self.ends = list(ends)
        self.is_done = is_done
        self.is_cancelled = False

    def result(self, _timeout: float | None = None) -> str:
        if self.is_cancelled:
            raise asyncio.CancelledError
        if self.ends:
            raise self.ends.pop(0)
        return "a result"

    def done(self) -> bool:
        return self.is_done

    def cancel(self) -> None:
        self.is_cancelled = True


def test_a_handlers_own_timeout_is_its_failure(scene: Scene) -> None:
    lease: Any = scene.held()
    with pytest.raises(TimeoutError, match="the bank did not answer"):
        lease.watch(Call(TimeoutError("the bank did not answer")))
    assert lease.watch(Call(TimeoutError(), is_done=False)) == "a result", "it was only this thread's look at the clock"


def test_a_handler_that_begins_after_the_tick_was_cancelled_is_cancelled(scene: Scene) -> None:
    lease: Any = scene.held()
    lease.cancel()
    call = Call()
    with pytest.raises(TickCancelled):
        lease.watch(call)
    assert call.is_cancelled


def test_a_pause_lasts_until_it_is_woken_and_each_waking_ends_one(scene: Scene) -> None:
    lease: Any = scene.lease
    waits: list[float] = []

    class Woken(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return self.is_set()

    lease._woken = Woken()
    lease.wake()
    lease.pause(7)
    assert waits == [7]
    assert not lease._woken.is_set(), "the next pause lasts again"
    lease.cancel()
    lease.pause(7)
    assert lease._woken.is_set(), "after its end a tick pauses no more"


def test_a_lease_that_is_held_is_kept_alive_until_it_is_stopped(scene: Scene) -> None:
    before = set(threading.enumerate())
    lease = scene.held()
    [keeper] = set(threading.enumerate()) - before
    assert keeper.name == "azfdb-heartbeat"
    lease.stop()
    keeper.join(30)
    assert not keeper.is_alive()
