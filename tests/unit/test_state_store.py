"""The store over compare and swap: lost answers, ghosts, vanished documents and the number of its calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from azure_functions_db import (
    ConfigurationError,
    LeaseConflictError,
    LostLeaseError,
    MemoryStateStore,
    StateStoreError,
)
from azure_functions_db.core.ports import LookingStateStore, StateStore, TransactionalStateStore
from azure_functions_db.core.types import PollerState
from azure_functions_db.state.backend import DocumentName, Stored, document_name
from azure_functions_db.state.memory import MemoryBackend
from azure_functions_db.state.store import DocumentLease, DocumentStateStore, _after_fork
from azure_functions_db.testing.faults import Fault, FaultyStateStore
from azure_functions_db.testing.memory import FakeClock

POLLER = "orders"
FIRST, SECOND, THIRD = {"cursor": [1]}, {"cursor": [2]}, {"cursor": [3]}
NAME = document_name(None, POLLER)


def calls_of(store: FaultyStateStore) -> dict[str, int]:
    counted = dict(store.faults.calls)
    store.faults.calls.clear()
    return counted


def vanish(store: FaultyStateStore) -> None:
    store._memory._documents.clear()


def test_a_store_offers_the_ports() -> None:
    store = MemoryStateStore()
    assert isinstance(store, StateStore)
    assert isinstance(store, LookingStateStore)
    assert not isinstance(store, TransactionalStateStore)


def test_storage_is_asked_as_rarely_as_can_be() -> None:
    store = FaultyStateStore()
    lease_id = store.acquire_lease(POLLER, 60)
    assert calls_of(store) == {"read": 1, "create": 1}
    store.load_checkpoint(POLLER)
    assert calls_of(store) == {}
    store.commit_checkpoint(POLLER, FIRST, lease_id)
    store.renew_lease(POLLER, lease_id, 60)
    assert store.load_checkpoint(POLLER) == FIRST
    assert calls_of(store) == {"replace": 2}
    store.release_lease(POLLER, lease_id)
    assert calls_of(store) == {"replace": 1}
    lease_id = store.take(store.look(POLLER), 60).lease_id
    assert calls_of(store) == {"read": 1, "replace": 1}
    store._lease(POLLER, lease_id).commit(SECOND, release=True)
    assert calls_of(store) == {"replace": 1}


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.REFUSED_RETRY])
class TestALostAnswer:
    def test_the_lease_is_held_all_the_same(self, fault: Fault) -> None:
        store = FaultyStateStore()
        store.faults.plan("create", fault)
        lease_id = store.acquire_lease(POLLER, 60)
        store._lease(POLLER, lease_id).commit(FIRST, release=True)
        store.faults.plan("replace", fault)
        lease_id = store.acquire_lease(POLLER, 60)
        assert lease_id.endswith(":2")
        store.commit_checkpoint(POLLER, SECOND, lease_id)

    def test_the_checkpoint_is_committed_all_the_same(self, fault: Fault) -> None:
        store = FaultyStateStore()
        lease_id = store.acquire_lease(POLLER, 60)
        store.faults.plan("replace", fault, fault)
        store.commit_checkpoint(POLLER, FIRST, lease_id)
        store._lease(POLLER, lease_id).commit(SECOND, release=True)
        assert store.load_checkpoint(POLLER) == SECOND

    def test_the_lease_is_renewed_and_released_all_the_same(self, fault: Fault) -> None:
        store = FaultyStateStore()
        lease_id = store.acquire_lease(POLLER, 60)
        store.faults.plan("replace", fault, fault)
        store.renew_lease(POLLER, lease_id, 60)
        store.release_lease(POLLER, lease_id)
        FaultyStateStore(shared_with=store).acquire_lease(POLLER, 60)

    def test_an_operator_is_not_told_of_a_conflict_with_himself(self, fault: Fault) -> None:
        store = FaultyStateStore()
        store.release_lease(POLLER, store.acquire_lease(POLLER, 60))
        store.faults.plan("replace", fault)
        store.reset_to_cursor(POLLER, 1, {})
        assert store.load_checkpoint(POLLER)["cursor"]["value"] == 1


class TestSilence:
    """No answer to the write, and none to the question whether it took effect."""

    def test_an_unanswered_acquire_leaves_no_ghost(self) -> None:
        store = FaultyStateStore()
        store.faults.plan("create", Fault.LOST_REPLY)
        state = store.look(POLLER)
        store.faults.plan("read", Fault.UNREACHABLE)
        with pytest.raises(StateStoreError, match="did not answer"):
            store.take(state, 60)
        with pytest.raises(LeaseConflictError):
            FaultyStateStore(shared_with=store).acquire_lease(POLLER, 60)
        assert store.acquire_lease(POLLER, 60).endswith(":2")

    def test_nor_does_one_after_an_older_lease_that_was_never_given_back(self) -> None:
        clock = FakeClock()
        store = FaultyStateStore(clock=clock)
        store.acquire_lease(POLLER, 60)
        clock.advance(120)
        state = store.look(POLLER)
        store.faults.plan("replace", Fault.LOST_REPLY)
        store.faults.plan("read", Fault.UNREACHABLE)
        with pytest.raises(StateStoreError, match="did not answer"):
            store.take(state, 60)
        assert store.acquire_lease(POLLER, 60).endswith(":3")

    def test_an_unanswered_commit_is_settled_by_loading(self) -> None:
        store = FaultyStateStore()
        lease_id = store.acquire_lease(POLLER, 60)
        store.faults.plan("replace", Fault.LOST_REPLY)
        store.faults.plan("read", Fault.UNREACHABLE)
        with pytest.raises(StateStoreError, match="did not answer"):
            store.commit_checkpoint(POLLER, FIRST, lease_id)
        assert store.load_checkpoint(POLLER) == FIRST
        store.commit_checkpoint(POLLER, SECOND, lease_id)
        store.release_lease(POLLER, lease_id)
        assert store.load_checkpoint(POLLER) == SECOND

    def test_an_unanswered_commit_that_never_arrived_is_settled_too(self) -> None:
        store = FaultyStateStore()
        lease_id = store.acquire_lease(POLLER, 60)
        store.commit_checkpoint(POLLER, FIRST, lease_id)
        store.faults.plan("replace", Fault.UNREACHABLE)
        with pytest.raises(StateStoreError, match="cannot be reached"):
            store.commit_checkpoint(POLLER, SECOND, lease_id)
        assert store.load_checkpoint(POLLER) == FIRST
        store.commit_checkpoint(POLLER, SECOND, lease_id)

    def test_an_unanswered_release_is_taken_over_by_the_same_store(self) -> None:
        store = FaultyStateStore()
        lease_id = store.acquire_lease(POLLER, 60)
        store.faults.plan("replace", Fault.UNREACHABLE)
        with pytest.raises(StateStoreError):
            store.release_lease(POLLER, lease_id)
        assert store.acquire_lease(POLLER, 60).endswith(":2")

    def test_an_outage_is_not_a_conflict(self) -> None:
        store = FaultyStateStore()
        store.faults.plan("read", Fault.UNREACHABLE)
        with pytest.raises(StateStoreError) as failed:
            store.acquire_lease(POLLER, 60)
        assert not isinstance(failed.value, LeaseConflictError)


class TestAVanishedDocument:
    def test_ends_the_lease(self) -> None:
        store = FaultyStateStore()
        lease_id = store.acquire_lease(POLLER, 60)
        vanish(store)
        with pytest.raises(LostLeaseError, match="vanished"):
            store.commit_checkpoint(POLLER, FIRST, lease_id)
        with pytest.raises(LostLeaseError):
            store.renew_lease(POLLER, lease_id, 60)
        with pytest.raises(LostLeaseError):
            store.release_lease(POLLER, lease_id)

    def test_is_no_silent_restart(self) -> None:
        store = FaultyStateStore()
        store._lease(POLLER, store.acquire_lease(POLLER, 60)).commit(FIRST, release=True)
        vanish(store)
        with pytest.raises(StateStoreError, match="has vanished"):
            store.acquire_lease(POLLER, 60)
        with pytest.raises(StateStoreError, match="has vanished"):
            store.load_checkpoint(POLLER)
        assert store.reset_to_cursor(POLLER, 1, {"id": 1}).before is None
        store.acquire_lease(POLLER, 60)


class TestACorruptDocument:
    @pytest.fixture
    def store(self) -> FaultyStateStore:
        store = FaultyStateStore()
        store._memory.create(NAME, b'{"version": 99}')
        return store

    def test_is_refused_and_left_alone(self, store: FaultyStateStore) -> None:
        for attempt in (store.look, store.load_checkpoint, store.reset_to_beginning, store.inspect):
            with pytest.raises(StateStoreError, match="version 99"):
                attempt(POLLER)
        with pytest.raises(StateStoreError, match="version 99"):
            store.acquire_lease(POLLER, 60)
        assert store._memory.read(NAME) is not None
        assert store.faults.calls["replace"] == 0

    def test_is_replaced_by_force_only(self, store: FaultyStateStore) -> None:
        change = store.reset_to_beginning(POLLER, force=True)
        assert change.before == {"unreadable": '{"version": 99}'}
        store.acquire_lease(POLLER, 60)

    def test_under_a_holder_stops_it(self) -> None:
        store = FaultyStateStore()
        lease_id = store.acquire_lease(POLLER, 60)
        vanish(store)
        made = store._memory.create(NAME, b"{}")
        assert made is not None
        store._memory.replace(NAME, b"{", made)
        with pytest.raises(StateStoreError, match="not JSON"):
            store.commit_checkpoint(POLLER, FIRST, lease_id)


def test_a_lease_of_an_earlier_life_of_this_store_is_its_own_only() -> None:
    first = MemoryStateStore()
    second = MemoryStateStore(shared_with=first)
    assert first.owner_id != second.owner_id


def test_threads_of_one_store_do_not_take_each_others_lease_for_a_ghost() -> None:
    store = MemoryStateStore()

    def attempt(_: int) -> bool:
        try:
            store.acquire_lease(POLLER, 60)
        except LeaseConflictError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(64))) == 1


def test_a_lease_can_be_used_through_another_store() -> None:
    first = MemoryStateStore()
    lease_id = first.acquire_lease(POLLER, 60)
    second = MemoryStateStore(shared_with=first)
    second.commit_checkpoint(POLLER, FIRST, lease_id)
    first.commit_checkpoint(POLLER, SECOND, lease_id)
    assert second.look(POLLER).checkpoint == SECOND


class SlowBackend(MemoryBackend):
    """Does what it is told only when whoever told it has given up."""

    is_slow = False
    do: Callable[[], object]

    def replace(self, name: DocumentName, content: bytes, version: Any) -> Any:
        if not self.is_slow:
            return super().replace(name, content, version)
        self.do = lambda: MemoryBackend.replace(self, name, content, version)
        raise StateStoreError("no answer")


def test_a_checkpoint_is_not_written_over_that_of_a_commit_that_was_given_up() -> None:
    """A tick that fails notes it beside the checkpoint: what has been passed meanwhile must not come again."""
    backend = SlowBackend()
    store = DocumentStateStore(backend)
    lease_id = store.acquire_lease(POLLER, 60)
    store.commit_checkpoint(POLLER, FIRST, lease_id)
    backend.is_slow = True
    with pytest.raises(StateStoreError, match="no answer"):
        store.commit_checkpoint(POLLER, SECOND, lease_id)
    backend.is_slow = False
    unmoved = store.load_checkpoint(POLLER)
    assert unmoved == FIRST
    backend.do()
    with pytest.raises(StateStoreError, match="a commit that was given up has taken effect"):
        store.commit_checkpoint(POLLER, unmoved, lease_id)
    assert store.load_checkpoint(POLLER) == SECOND
    store.commit_checkpoint(POLLER, SECOND | {"metadata": {}}, lease_id)  # what is built upon it is written
    store.release_lease(POLLER, lease_id)


@pytest.mark.parametrize("is_renewed", [False, True])
def test_a_commit_that_was_given_up_counts_whoever_has_seen_it(is_renewed: bool) -> None:
    """A renewal shows it to the lease, but not to who writes the next checkpoint."""
    backend = SlowBackend()
    store = DocumentStateStore(backend)
    lease_id = store.acquire_lease(POLLER, 60)
    backend.is_slow = True
    with pytest.raises(StateStoreError, match="no answer"):
        store.commit_checkpoint(POLLER, FIRST, lease_id)
    backend.is_slow = False
    backend.do()
    if is_renewed:
        store.renew_lease(POLLER, lease_id, 60)
    with pytest.raises(StateStoreError, match="a commit that was given up has taken effect"):
        store.commit_checkpoint(POLLER, SECOND, lease_id)


def test_a_commit_that_was_given_up_is_built_upon_once_it_was_loaded() -> None:
    backend = SlowBackend()
    store = DocumentStateStore(backend)
    lease_id = store.acquire_lease(POLLER, 60)
    backend.is_slow = True
    with pytest.raises(StateStoreError, match="no answer"):
        store.commit_checkpoint(POLLER, FIRST, lease_id)
    backend.is_slow = False
    backend.do()
    store.renew_lease(POLLER, lease_id, 60)
    assert store.load_checkpoint(POLLER) == FIRST
    store.commit_checkpoint(POLLER, SECOND, lease_id)
    assert store.load_checkpoint(POLLER) == SECOND


@pytest.mark.parametrize("before", [[], [THIRD]], ids=["the first", "a later one"])
def test_a_commit_that_never_took_effect_is_made_once_more(before: list[dict[str, Any]]) -> None:
    backend = SlowBackend()
    store = DocumentStateStore(backend)
    lease_id = store.acquire_lease(POLLER, 60)
    for checkpoint in before:
        store.commit_checkpoint(POLLER, checkpoint, lease_id)
    backend.is_slow = True
    with pytest.raises(StateStoreError, match="no answer"):
        store.commit_checkpoint(POLLER, FIRST, lease_id)
    backend.is_slow = False
    store.commit_checkpoint(POLLER, SECOND, lease_id)
    assert store.load_checkpoint(POLLER) == SECOND


def test_a_commit_that_never_took_effect_is_made_once_more_under_a_lease_that_another_store_has_taken() -> None:
    backend = SlowBackend()
    lease_id = DocumentStateStore(backend).acquire_lease(POLLER, 60)
    store = DocumentStateStore(backend)
    store.renew_lease(POLLER, lease_id, 60)
    backend.is_slow = True
    with pytest.raises(StateStoreError, match="no answer"):
        store.commit_checkpoint(POLLER, FIRST, lease_id)
    backend.is_slow = False
    store.commit_checkpoint(POLLER, FIRST, lease_id)
    assert store.load_checkpoint(POLLER) == FIRST


def test_a_checkpoint_that_could_not_be_read_again_is_not_written() -> None:
    store = MemoryStateStore()
    lease_id = store.acquire_lease(POLLER, 60)
    with pytest.raises(StateStoreError):
        store.commit_checkpoint(POLLER, {"last_successful_batch_id": "b"}, lease_id)
    with pytest.raises(StateStoreError):
        store.commit_checkpoint(POLLER, {"cursor": object()}, lease_id)
    store.commit_checkpoint(POLLER, FIRST, lease_id)


def test_apps_do_not_meet() -> None:
    mine = MemoryStateStore(app_name="a")
    theirs = MemoryStateStore(shared_with=mine, app_name="b")
    mine.acquire_lease(POLLER, 60)
    theirs.acquire_lease(POLLER, 60)
    theirs.acquire_lease("other", 60)
    assert (mine.poller_names(), theirs.poller_names()) == ([POLLER], [POLLER, "other"])


def test_the_apps_name_comes_from_azure_when_it_is_first_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStateStore()
    monkeypatch.setenv("WEBSITE_SITE_NAME", "shop")
    store.acquire_lease(POLLER, 60)
    assert MemoryStateStore(shared_with=store, app_name="shop").poller_names() == [POLLER]


@pytest.mark.parametrize("name", ["", "x" * 201, "ä" * 50, None, 5])
def test_an_impossible_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        MemoryStateStore().acquire_lease(name, 60)


def test_a_whole_saved_document_brings_its_fingerprint(tmp_path: Path) -> None:
    store = MemoryStateStore(source_fingerprint="sha256:a")
    store._lease(POLLER, store.acquire_lease(POLLER, 60)).commit(FIRST, release=True)
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps(store.inspect(POLLER)))
    store.reset_to_beginning(POLLER)
    assert store.reset_to_checkpoint(POLLER, saved).after["source_fingerprint"] == "sha256:a"
    assert store.load_checkpoint(POLLER) == FIRST


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"version": 99, "poller_name": "orders"}', '{"cursor": '])
def test_a_file_without_a_checkpoint_resets_nothing(tmp_path: Path, content: str) -> None:
    store = MemoryStateStore()
    store._lease(POLLER, store.acquire_lease(POLLER, 60)).commit(FIRST, release=True)
    file = tmp_path / "saved.json"
    file.write_text(content)
    with pytest.raises((ConfigurationError, StateStoreError)):
        store.reset_to_checkpoint(POLLER, file)
    assert store.load_checkpoint(POLLER) == FIRST


def test_acts_on_an_unknown_poller_are_refused() -> None:
    store = MemoryStateStore()
    with pytest.raises(StateStoreError, match="no state"):
        store.break_lease(POLLER)
    with pytest.raises(StateStoreError, match="no state"):
        store.adopt_fingerprint(POLLER, "sha256:a")
    with pytest.raises(StateStoreError, match="no state"):
        store.clone_checkpoint(POLLER, "copy")
    assert store.poller_names() == []


def test_a_reset_changes_no_document_that_changed_meanwhile() -> None:
    clock = FakeClock()
    store = FaultyStateStore(clock=clock)
    store._lease(POLLER, store.acquire_lease(POLLER, 60)).commit(FIRST, release=True)
    quick = FaultyStateStore(shared_with=store, clock=clock)
    replace = store._memory.replace

    def interrupted(*arguments: object) -> object:
        store._memory.replace = replace  # type: ignore[method-assign]
        quick._lease(POLLER, quick.acquire_lease(POLLER, 60)).commit(SECOND, release=True)
        return replace(*arguments)  # type: ignore[arg-type]

    store._memory.replace = interrupted  # type: ignore[method-assign, assignment]
    with pytest.raises(LeaseConflictError):
        store.reset_to_beginning(POLLER)
    assert quick.load_checkpoint(POLLER) == SECOND


def test_a_reset_replaces_the_document_whose_lease_it_has_found_free() -> None:
    clock = FakeClock()
    store = FaultyStateStore(clock=clock)
    store._lease(POLLER, store.acquire_lease(POLLER, 60)).commit(FIRST, release=True)
    quick = FaultyStateStore(shared_with=store, clock=clock)
    read = store._memory.read

    def overtaken(name: DocumentName) -> Stored | None:
        store._memory.read = read  # type: ignore[method-assign]
        stored = read(name)
        quick.acquire_lease(POLLER, 60)
        return stored

    store._memory.read = overtaken  # type: ignore[method-assign]
    with pytest.raises(LeaseConflictError):
        store.reset_to_beginning(POLLER)
    assert quick.load_checkpoint(POLLER) == FIRST


def test_a_dry_run_shows_what_an_act_would_do_and_does_not_do_it() -> None:
    store = MemoryStateStore()
    lease_id = store.acquire_lease(POLLER, 60)
    store.commit_checkpoint(POLLER, FIRST, lease_id)
    with pytest.raises(LeaseConflictError):
        store.dry_run().reset_to_beginning(POLLER)
    change = store.dry_run().reset_to_beginning(POLLER, force=True)
    assert change.before is not None
    assert (change.before["checkpoint"], change.after["checkpoint"]) == (FIRST, {})
    assert store.dry_run().poller_names() == [POLLER]
    store._lease(POLLER, lease_id).commit(SECOND, release=True)


def test_what_an_operator_does_with_a_change_stays_with_the_operator() -> None:
    store = MemoryStateStore()
    store.reset_to_cursor(POLLER, 1, {}).after["checkpoint"]["cursor"]["value"] = 2
    assert store.load_checkpoint(POLLER)["cursor"]["value"] == 1


def test_a_document_that_vanishes_under_a_taker_gives_no_lease() -> None:
    store = FaultyStateStore()
    taken(store).commit(FIRST, release=True)
    looked = store.look(POLLER)
    vanish(store)
    with pytest.raises(LeaseConflictError):
        store.take(looked, 60)


def test_a_document_without_a_position_may_vanish_and_one_that_was_forgotten_is_not_missed() -> None:
    store = FaultyStateStore()
    taken(store).release()
    vanish(store)
    assert store.look(POLLER).checkpoint == {}
    plain = MemoryStateStore()
    taken(plain).commit(FIRST, release=True)
    plain.forget(POLLER)
    assert plain.look(POLLER).checkpoint == {}


def test_memory_forgets_only_the_version_that_was_read() -> None:
    memory = MemoryBackend()
    version = memory.create(NAME, b"one")
    assert version is not None
    assert not memory.delete(NAME, "another")
    assert not memory.delete(document_name(None, "invoices"), version)
    assert memory.read(NAME) is not None
    assert memory.delete(NAME, version)
    assert memory.read(NAME) is None


def test_a_document_that_was_only_looked_at_may_not_vanish_either() -> None:
    store = FaultyStateStore()
    taken(store).commit(FIRST, release=True)
    onlooker = FaultyStateStore(shared_with=store)
    onlooker.look(POLLER)
    vanish(store)
    with pytest.raises(StateStoreError, match="vanished"):
        onlooker.look(POLLER)


def test_only_a_free_lease_that_another_has_left_behind_is_abandoned() -> None:
    clock = FakeClock()
    store = FaultyStateStore(clock=clock)
    other = FaultyStateStore(shared_with=store, clock=clock)
    taken(store)
    assert other.look(POLLER).abandoned is None, "it is held"
    clock.advance(120)
    assert other.look(POLLER).abandoned is not None
    store._stored(POLLER).lease = None  # as if the answer to its taking had got lost
    assert store.look(POLLER).abandoned is None, "it is its own"
    other.release_lease(POLLER, other.acquire_lease(POLLER, 60))
    assert store.look(POLLER).abandoned is None, "it was given back"


def test_an_app_is_named_as_a_document_can_be_named() -> None:
    with pytest.raises(ConfigurationError, match="app_name"):
        MemoryStateStore(app_name="x" * 201)


def test_a_dry_run_is_of_the_same_app_at_the_same_time() -> None:
    clock = FakeClock()
    store = MemoryStateStore(app_name="shop", clock=clock)
    taken(store).commit(FIRST)
    clock.advance(30)
    dry = store.dry_run()
    assert dry.load_checkpoint(POLLER) == FIRST
    assert dry.look(POLLER).lease is not None


def test_of_two_notes_from_one_look_the_second_is_refused() -> None:
    store = MemoryStateStore()
    looked = store.look(POLLER)
    store.note(looked, FIRST)
    with pytest.raises(LeaseConflictError):
        store.note(looked, SECOND)
    assert store.load_checkpoint(POLLER) == FIRST


def test_a_forked_child_is_somebody_else() -> None:
    store = MemoryStateStore()
    parent, lease = store.owner_id, taken(store)
    _after_fork()
    assert store.owner_id != parent
    assert store.look(POLLER).lease is not None, "the parent's lease is not its own to take"
    with pytest.raises(LeaseConflictError):
        store.acquire_lease(POLLER, 60)
    lease.release()


def test_memory_has_no_clock_of_its_own() -> None:
    assert MemoryStateStore().storage_time() is None


def taken(store: DocumentStateStore) -> DocumentLease:
    lease = store.take(store.look(POLLER), 60)
    assert isinstance(lease, DocumentLease)
    return lease


class TestAHeldLease:
    def test_commits_renews_and_is_given_back_without_its_id(self) -> None:
        store = FaultyStateStore()
        lease = taken(store)
        calls_of(store)
        lease.commit(FIRST)
        lease.renew(60)
        assert lease.checkpoint() == FIRST
        with lease.transaction():
            lease.commit(SECOND, release=True)
        assert calls_of(store) == {"replace": 3}
        assert store.look(POLLER).lease is None
        assert store.load_checkpoint(POLLER) == SECOND

    def test_is_the_one_that_its_id_names(self) -> None:
        store = FaultyStateStore()
        lease = taken(store)
        store.commit_checkpoint(POLLER, FIRST, lease.lease_id)
        assert lease.checkpoint() == FIRST
        store.release_lease(POLLER, lease.lease_id)
        with pytest.raises(LostLeaseError):
            lease.commit(SECOND)
        assert store.load_checkpoint(POLLER) == FIRST

    def test_does_nothing_to_the_next_one(self) -> None:
        clock = FakeClock()
        store = MemoryStateStore(clock=clock)
        late = taken(store)
        clock.advance(120)
        lease = taken(store)
        with pytest.raises(LostLeaseError):
            late.commit(FIRST)
        with pytest.raises(LostLeaseError):
            late.renew(60)
        with pytest.raises(LostLeaseError):
            late.release()
        lease.commit(SECOND, release=True)
        assert store.load_checkpoint(POLLER) == SECOND

    def test_that_was_lost_by_the_clock_vouches_for_no_checkpoint(self) -> None:
        clock = FakeClock()
        store = MemoryStateStore(clock=clock)
        lease = taken(store)
        lease.commit(FIRST)
        clock.advance(56)
        assert lease.checkpoint() is None

    def test_that_was_lost_by_the_clock_is_taken_again_at_once_by_its_own_store(self) -> None:
        clock = FakeClock()
        store = MemoryStateStore(clock=clock)
        late = taken(store)
        clock.advance(56)
        with pytest.raises(LostLeaseError):
            late.commit(FIRST)
        assert store.look(POLLER).lease is None
        taken(store).commit(SECOND)
        assert store.load_checkpoint(POLLER) == SECOND

    def test_stays_held_when_an_older_one_is_given_back(self) -> None:
        clock = FakeClock()
        store = MemoryStateStore(clock=clock)
        old = taken(store)
        clock.advance(120)
        new = taken(store)
        with pytest.raises(LostLeaseError):
            store.commit_checkpoint(POLLER, FIRST, old.lease_id)
        with pytest.raises(LostLeaseError):
            old.release()
        held = store.look(POLLER).lease
        assert held is not None
        assert new.lease_id == f"{held.owner_id}:{held.fencing_token}"

    def test_gives_up_on_a_document_that_never_stands_still(self) -> None:
        store = FaultyStateStore()
        lease = taken(store)
        memory = store._memory

        class Restless(type(store.faults)):  # type: ignore[misc]
            def replace(self, name: Any, content: bytes, version: Any) -> None:
                found = memory.read(name)
                assert found is not None
                assert found.version is not None
                memory.replace(name, found.content + b" ", found.version)

        store.faults.__class__ = Restless
        with pytest.raises(StateStoreError, match="keeps changing"):
            lease.commit(FIRST)

    def test_is_written_by_one_at_a_time(self) -> None:
        store = FaultyStateStore()
        lease = taken(store)
        stored = store._stored(POLLER)
        seen: list[bool] = []
        replaced = store._memory.replace

        def watched(name: Any, content: bytes, version: Any) -> Any:
            seen.append(stored.lock.locked())
            return replaced(name, content, version)

        store._memory.replace = watched  # type: ignore[method-assign]
        lease.renew(60)
        lease.commit(FIRST)
        lease.release()
        store.note(store.look(POLLER), FIRST)
        taken(store)
        assert seen == [True] * 5

    def test_is_taken_from_what_was_looked_at_only(self) -> None:
        with pytest.raises(ConfigurationError, match="look"):
            MemoryStateStore().take(PollerState(POLLER, {}, None, version="mine"), 60)
