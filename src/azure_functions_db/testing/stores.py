"""The suite that every state store must pass; needs pytest.

A store's own test is a fixture that makes stores on one and the same state::

    class TestMyStore(StateStoreContract):
        @pytest.fixture
        def new_store(self, tmp_path):
            return lambda **options: MyStore(tmp_path, **options)

A second fixture, ``delete``, may say how a document is deleted without the store: then it is tried
whether a document made anew refuses the writes of before.

``options`` are ``clock=`` and ``source_fingerprint=``, as far as the flags below say that the
store knows them. Each call must give an instance of its own, as two hosts would have them.
"""

# ruff: noqa: S101 - assertions are what a suite is made of

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from azure_functions_db.core.errors import (
    DbError,
    FingerprintMismatchError,
    LeaseConflictError,
    LostLeaseError,
    StateStoreError,
)
from azure_functions_db.core.ports import NotingStateStore
from azure_functions_db.testing.memory import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

POLLER = "orders"
TTL = 60.0
MARGIN = 5.0

POSITION = {
    "cursor": {"kind": "timestamp+pk", "value": "2026-04-07T01:23:45.123456Z", "tiebreaker": {"id": 12093}},
    "last_successful_batch_id": "batch_1",
    "updated_at": "2026-04-07T01:23:46.000000Z",
    "metadata": {"row_count": 100, "note": "größer", "ratio": 0.1, "big": 2**63, "nothing": None, "list": [1, [2]]},
}


class NewStore(Protocol):
    """Makes another store on the same state."""

    def __call__(self, **options: Any) -> Any:
        """Return a store of its own."""


class Delete(Protocol):
    """Deletes a poller's document past the store."""

    def __call__(self, poller_name: str) -> object:
        """Delete it."""


class StateStoreContract:
    """What holds for every state store; the flags name what goes beyond the five methods."""

    takes_clock = True
    """``clock=`` sets the time: expiry can be tested."""
    looks = True
    """Has `look` and `take`."""
    checks_fingerprints = True
    """``source_fingerprint=`` is kept with the checkpoint and compared."""
    resets = True
    """Has the operator's acts: resetting, cloning, breaking a lease."""

    @pytest.fixture
    def new_store(self) -> NewStore:
        """Return what makes stores on one and the same state; each test has a state of its own."""
        raise NotImplementedError

    @pytest.fixture
    def clock(self) -> FakeClock:
        """The clock of the stores that take one."""
        if not self.takes_clock:
            pytest.skip("this store takes no clock")
        return FakeClock()

    @pytest.fixture
    def looking(self) -> None:
        """Ask for a store that looks before it locks."""
        if not self.looks:
            pytest.skip("this store has the five methods only")

    @pytest.fixture
    def noting(self, new_store: NewStore) -> None:
        """Ask for a store that writes notes without the lease."""
        if not isinstance(new_store(), NotingStateStore):
            pytest.skip("this store writes under a lease only")

    @pytest.fixture
    def fingerprinting(self) -> None:
        """Ask for a store that checks fingerprints."""
        if not self.checks_fingerprints:
            pytest.skip("this store does not check fingerprints")

    @pytest.fixture
    def resetting(self) -> None:
        """Ask for a store with the operator's acts."""
        if not self.resets:
            pytest.skip("this store cannot be reset")

    @pytest.fixture
    def delete(self) -> Delete:
        """Return what deletes a poller's document past the store, as somebody with the right to do so could."""
        pytest.skip("the test of this store does not say how a document is deleted")

    # --- the five methods ---

    def test_a_new_poller_has_an_empty_checkpoint(self, new_store: NewStore) -> None:
        assert new_store().load_checkpoint(POLLER) == {}

    def test_a_committed_checkpoint_is_loaded_unchanged(self, new_store: NewStore) -> None:
        store = new_store()
        lease_id = store.acquire_lease(POLLER, TTL)
        store.commit_checkpoint(POLLER, POSITION, lease_id)
        assert store.load_checkpoint(POLLER) == POSITION
        assert new_store().load_checkpoint(POLLER) == POSITION

    def test_taking_and_giving_back_the_lease_keeps_the_checkpoint(self, new_store: NewStore) -> None:
        first, second = new_store(), new_store()
        lease_id = first.acquire_lease(POLLER, TTL)
        first.commit_checkpoint(POLLER, POSITION, lease_id)
        first.release_lease(POLLER, lease_id)
        second.acquire_lease(POLLER, TTL)
        assert second.load_checkpoint(POLLER) == POSITION

    def test_what_a_caller_does_to_a_checkpoint_stays_with_the_caller(self, new_store: NewStore) -> None:
        store = new_store()
        lease_id = store.acquire_lease(POLLER, TTL)
        mine = {"cursor": [1]}
        store.commit_checkpoint(POLLER, mine, lease_id)
        mine["cursor"].append(2)
        store.load_checkpoint(POLLER)["cursor"].append(3)
        assert store.load_checkpoint(POLLER) == {"cursor": [1]}

    def test_a_lease_has_one_holder(self, new_store: NewStore) -> None:
        holder = new_store()
        holder.acquire_lease(POLLER, TTL)
        with pytest.raises(LeaseConflictError):
            new_store().acquire_lease(POLLER, TTL)
        with pytest.raises(LeaseConflictError):
            holder.acquire_lease(POLLER, TTL)

    def test_a_released_lease_is_free_at_once(self, new_store: NewStore) -> None:
        first, second = new_store(), new_store()
        first.release_lease(POLLER, first.acquire_lease(POLLER, TTL))
        second.release_lease(POLLER, second.acquire_lease(POLLER, TTL))
        first.acquire_lease(POLLER, TTL)

    def test_no_two_leases_have_the_same_id(self, new_store: NewStore) -> None:
        store, seen = new_store(), set()
        for _ in range(3):
            lease_id = store.acquire_lease(POLLER, TTL)
            store.release_lease(POLLER, lease_id)
            seen.add(lease_id)
        assert len(seen) == 3

    def test_a_released_lease_commits_and_renews_nothing(self, new_store: NewStore) -> None:
        store = new_store()
        lease_id = store.acquire_lease(POLLER, TTL)
        store.commit_checkpoint(POLLER, POSITION, lease_id)
        store.release_lease(POLLER, lease_id)
        with pytest.raises(LostLeaseError):
            store.commit_checkpoint(POLLER, {"cursor": ["stale"]}, lease_id)
        with pytest.raises(LostLeaseError):
            store.renew_lease(POLLER, lease_id, TTL)
        assert new_store().load_checkpoint(POLLER) == POSITION

    def test_a_stale_owner_can_do_nothing_to_the_next_one(self, new_store: NewStore) -> None:
        stale, current = new_store(), new_store()
        old = stale.acquire_lease(POLLER, TTL)
        stale.release_lease(POLLER, old)
        lease_id = current.acquire_lease(POLLER, TTL)
        with pytest.raises(LostLeaseError):
            stale.commit_checkpoint(POLLER, {"cursor": ["stale"]}, old)
        with pytest.raises(LostLeaseError):
            stale.renew_lease(POLLER, old, TTL)
        with pytest.raises(LostLeaseError):
            stale.release_lease(POLLER, old)
        with pytest.raises(LeaseConflictError):
            new_store().acquire_lease(POLLER, TTL)
        current.commit_checkpoint(POLLER, POSITION, lease_id)

    def test_releasing_twice_is_no_error(self, new_store: NewStore) -> None:
        store = new_store()
        lease_id = store.acquire_lease(POLLER, TTL)
        store.release_lease(POLLER, lease_id)
        store.release_lease(POLLER, lease_id)

    def test_a_renewed_lease_still_commits(self, new_store: NewStore) -> None:
        store = new_store()
        lease_id = store.acquire_lease(POLLER, TTL)
        store.renew_lease(POLLER, lease_id, TTL)
        store.commit_checkpoint(POLLER, POSITION, lease_id)
        store.renew_lease(POLLER, lease_id, TTL)
        assert store.load_checkpoint(POLLER) == POSITION

    @pytest.mark.parametrize(
        "other", ["Orders", "orders ", "orders/2024", "größe", "..", "orders.json", "a%2Fb", "o'x"]
    )
    def test_pollers_do_not_meet(self, new_store: NewStore, other: str) -> None:
        store = new_store()
        lease_id, other_id = store.acquire_lease(POLLER, TTL), store.acquire_lease(other, TTL)
        store.commit_checkpoint(POLLER, {"cursor": [1]}, lease_id)
        store.commit_checkpoint(other, {"cursor": [2]}, other_id)
        reader = new_store()
        assert [reader.load_checkpoint(name) for name in (POLLER, other)] == [{"cursor": [1]}, {"cursor": [2]}]

    def test_the_longest_name_has_a_place(self, new_store: NewStore) -> None:
        longest = "ö" * 33 + "xx"  # 200 characters when it is percent-encoded
        store = new_store()
        store.commit_checkpoint(longest, POSITION, store.acquire_lease(longest, TTL))
        assert new_store().load_checkpoint(longest) == POSITION

    def test_of_many_that_race_for_the_lease_one_gets_it(self, new_store: NewStore) -> None:
        stores = [new_store() for _ in range(4)]
        together = threading.Barrier(len(stores))

        def attempt(store: Any) -> bool:
            together.wait()
            try:
                store.acquire_lease(POLLER, TTL)
            except LeaseConflictError:
                return False
            return True

        with ThreadPoolExecutor(len(stores)) as pool:
            assert sum(pool.map(attempt, stores)) == 1

    def test_a_heartbeat_and_a_commit_do_not_disturb_each_other(self, new_store: NewStore) -> None:
        store = new_store()
        lease_id = store.acquire_lease(POLLER, TTL)
        with ThreadPoolExecutor(1) as heart:
            beats = [heart.submit(store.renew_lease, POLLER, lease_id, TTL) for _ in range(10)]
            for position in range(10):
                store.commit_checkpoint(POLLER, {"cursor": [position]}, lease_id)
            for beat in beats:
                beat.result()
        assert new_store().load_checkpoint(POLLER) == {"cursor": [9]}

    # --- documents that come again ---

    def test_a_document_that_was_deleted_and_made_anew_refuses_the_writes_of_before(
        self, new_store: NewStore, delete: Delete
    ) -> None:
        stale, current = new_store(), new_store()
        old = stale.acquire_lease(POLLER, TTL)
        delete(POLLER)
        lease_id = current.acquire_lease(POLLER, TTL)
        with pytest.raises(LostLeaseError):
            stale.commit_checkpoint(POLLER, {"cursor": ["stale"]}, old)
        with pytest.raises(LostLeaseError):
            stale.renew_lease(POLLER, old, TTL)
        with pytest.raises(LostLeaseError):
            stale.release_lease(POLLER, old)
        current.commit_checkpoint(POLLER, POSITION, lease_id)
        assert new_store().load_checkpoint(POLLER) == POSITION

    @pytest.mark.usefixtures("looking")
    def test_a_document_that_was_deleted_and_made_anew_is_not_the_one_that_was_looked_at(
        self, new_store: NewStore, delete: Delete
    ) -> None:
        first, slow, quick = new_store(), new_store(), new_store()
        first.release_lease(POLLER, first.acquire_lease(POLLER, TTL))
        state = slow.look(POLLER)
        delete(POLLER)
        quick.take(quick.look(POLLER), TTL).commit(POSITION, release=True)
        with pytest.raises(LeaseConflictError):
            slow.take(state, TTL)
        assert new_store().load_checkpoint(POLLER) == POSITION

    # --- time ---

    def test_an_abandoned_lease_is_free_after_ttl_and_margin(self, new_store: NewStore, clock: FakeClock) -> None:
        new_store(clock=clock).acquire_lease(POLLER, TTL)
        taker = new_store(clock=clock)
        clock.advance(TTL + MARGIN - 0.001)
        with pytest.raises(LeaseConflictError):
            taker.acquire_lease(POLLER, TTL)
        clock.advance(0.001)
        taker.acquire_lease(POLLER, TTL)

    def test_a_renewal_counts_from_now(self, new_store: NewStore, clock: FakeClock) -> None:
        holder, taker = new_store(clock=clock), new_store(clock=clock)
        lease_id = holder.acquire_lease(POLLER, TTL)
        for _ in range(5):
            clock.advance(TTL / 2)
            holder.renew_lease(POLLER, lease_id, TTL)
        clock.advance(TTL - MARGIN - 1)
        with pytest.raises(LeaseConflictError):
            taker.acquire_lease(POLLER, TTL)
        holder.commit_checkpoint(POLLER, POSITION, lease_id)

    def test_a_holder_gives_up_a_margin_before_the_expiry(self, new_store: NewStore, clock: FakeClock) -> None:
        store = new_store(clock=clock)
        lease_id = store.acquire_lease(POLLER, TTL)
        clock.advance(TTL - MARGIN)
        with pytest.raises(LostLeaseError):
            store.commit_checkpoint(POLLER, POSITION, lease_id)
        with pytest.raises(LostLeaseError):
            store.renew_lease(POLLER, lease_id, TTL)

    def test_a_holder_that_was_replaced_cannot_commit_whatever_its_clock_says(
        self, new_store: NewStore, clock: FakeClock
    ) -> None:
        slow, taker = FakeClock(clock.now), new_store(clock=clock)
        stale = new_store(clock=slow)
        old = stale.acquire_lease(POLLER, TTL)
        clock.advance(TTL + MARGIN)
        lease_id = taker.acquire_lease(POLLER, TTL)
        taker.commit_checkpoint(POLLER, POSITION, lease_id)
        with pytest.raises(LostLeaseError):
            stale.commit_checkpoint(POLLER, {"cursor": ["stale"]}, old)
        assert taker.load_checkpoint(POLLER) == POSITION
        taker.renew_lease(POLLER, lease_id, TTL)

    # --- looking before locking ---

    @pytest.mark.usefixtures("looking")
    def test_a_look_takes_nothing(self, new_store: NewStore) -> None:
        state = new_store().look(POLLER)
        assert (state.checkpoint, state.lease) == ({}, None)
        assert new_store().acquire_lease(POLLER, TTL)

    @pytest.mark.usefixtures("looking")
    def test_a_look_shows_the_checkpoint_and_who_is_at_work(self, new_store: NewStore) -> None:
        holder = new_store()
        lease_id = holder.acquire_lease(POLLER, TTL)
        holder.commit_checkpoint(POLLER, POSITION, lease_id)
        state = new_store().look(POLLER)
        assert state.checkpoint == POSITION
        assert state.lease is not None
        assert lease_id == f"{state.lease.owner_id}:{state.lease.fencing_token}"
        with pytest.raises(LeaseConflictError):
            new_store().take(state, TTL)

    @pytest.mark.usefixtures("looking")
    def test_a_lease_is_taken_only_from_the_state_that_was_seen(self, new_store: NewStore) -> None:
        slow, quick = new_store(), new_store()
        state = slow.look(POLLER)
        quick.take(quick.look(POLLER), TTL).commit(POSITION, release=True)
        with pytest.raises(LeaseConflictError):
            slow.take(state, TTL)
        assert slow.take(slow.look(POLLER), TTL).lease_id
        assert slow.load_checkpoint(POLLER) == POSITION

    @pytest.mark.usefixtures("looking")
    def test_the_last_commit_can_release(self, new_store: NewStore) -> None:
        store = new_store()
        held = store.take(store.look(POLLER), TTL)
        assert held.commit(POSITION, release=True)
        with pytest.raises(LostLeaseError):
            held.commit({"cursor": ["late"]}, release=False)
        other = new_store()
        other.acquire_lease(POLLER, TTL)
        assert other.load_checkpoint(POLLER) == POSITION

    @pytest.mark.usefixtures("looking")
    def test_the_token_grows_with_every_lease(self, new_store: NewStore) -> None:
        tokens = []
        for _ in range(3):
            store = new_store()
            lease_id = store.acquire_lease(POLLER, TTL)
            tokens.append(int(lease_id.rpartition(":")[2]))
            store.release_lease(POLLER, lease_id)
        assert tokens == [1, 2, 3]

    # --- notes ---

    def test_what_is_noted_of_a_failure_is_kept_beside_the_position(self, new_store: NewStore) -> None:
        store = new_store()
        failure = {"attempts": 3, "error": "größer", "batch": {"id": "batch_2", "rows": 7, "first": "5 (id=1)"}}
        failing = {**POSITION, "metadata": {"failure": failure}}
        store.commit_checkpoint(POLLER, failing, store.acquire_lease(POLLER, TTL))
        assert new_store().load_checkpoint(POLLER) == failing

    @pytest.mark.usefixtures("noting")
    def test_a_note_is_written_without_the_lease(self, new_store: NewStore) -> None:
        store = new_store()
        store.take(store.look(POLLER), TTL).commit(POSITION, release=True)
        noted = {**POSITION, "metadata": {"ticked_at": "2026-04-07T01:23:46.000000Z"}}
        store.note(store.look(POLLER), noted)
        state = new_store().look(POLLER)
        assert (state.checkpoint, state.lease, state.abandoned) == (noted, None, None)

    @pytest.mark.usefixtures("noting")
    def test_a_note_never_undoes_what_was_written_since_the_look(self, new_store: NewStore) -> None:
        slow, quick = new_store(), new_store()
        state = slow.look(POLLER)
        held = quick.take(quick.look(POLLER), TTL)
        with pytest.raises(LeaseConflictError):
            slow.note(state, {"metadata": {"late": 1}})
        with pytest.raises(LeaseConflictError):
            slow.note(slow.look(POLLER), {"metadata": {"late": 1}})
        held.commit(POSITION, release=True)
        with pytest.raises(LeaseConflictError):
            slow.note(state, {"metadata": {"late": 1}})
        assert new_store().load_checkpoint(POLLER) == POSITION

    # --- fingerprints ---

    @pytest.mark.usefixtures("fingerprinting")
    def test_another_definition_of_the_source_is_refused(self, new_store: NewStore) -> None:
        store = new_store(source_fingerprint="sha256:a")
        store.take(store.look(POLLER), TTL).commit(POSITION, release=True)
        changed = new_store(source_fingerprint="sha256:b")
        with pytest.raises(FingerprintMismatchError, match="azfdb reset orders") as refused:
            changed.acquire_lease(POLLER, TTL)
        assert (refused.value.stored, refused.value.current) == ("sha256:a", "sha256:b")
        with pytest.raises(FingerprintMismatchError):
            changed.load_checkpoint(POLLER)
        assert new_store(source_fingerprint="sha256:a").load_checkpoint(POLLER) == POSITION

    @pytest.mark.usefixtures("looking", "fingerprinting")
    def test_a_look_brings_the_fingerprint_along(self, new_store: NewStore) -> None:
        store = new_store()
        store.take(store.look(POLLER, "sha256:a"), TTL)
        with pytest.raises(FingerprintMismatchError):
            new_store().look(POLLER, "sha256:b")
        assert new_store().look(POLLER, "sha256:a").lease is not None

    # --- the operator ---

    @pytest.mark.usefixtures("resetting")
    def test_nothing_is_reset_under_a_holder(self, new_store: NewStore) -> None:
        holder, operator = new_store(), new_store()
        lease_id = holder.acquire_lease(POLLER, TTL)
        holder.commit_checkpoint(POLLER, POSITION, lease_id)
        with pytest.raises(LeaseConflictError):
            operator.reset_to_beginning(POLLER)
        assert holder.load_checkpoint(POLLER) == POSITION
        change = operator.reset_to_beginning(POLLER, force=True)
        assert (change.before["checkpoint"], change.after["checkpoint"]) == (POSITION, {})
        with pytest.raises(LostLeaseError):
            holder.commit_checkpoint(POLLER, POSITION, lease_id)
        assert new_store().load_checkpoint(POLLER) == {}

    @pytest.mark.usefixtures("resetting")
    def test_a_broken_lease_is_free_and_its_holder_is_shut_out(self, new_store: NewStore) -> None:
        holder, operator = new_store(), new_store()
        lease_id = holder.acquire_lease(POLLER, TTL)
        operator.break_lease(POLLER)
        operator.acquire_lease(POLLER, TTL)
        with pytest.raises(LostLeaseError):
            holder.commit_checkpoint(POLLER, POSITION, lease_id)

    @pytest.mark.usefixtures("resetting")
    def test_a_position_can_be_set_restored_and_cloned(self, new_store: NewStore, tmp_path: Path) -> None:
        store = new_store()
        store.reset_to_cursor(POLLER, 7, {"id": 3})
        expected = {"cursor": {"kind": "integer+pk", "value": 7, "tiebreaker": {"id": 3}}}
        assert store.load_checkpoint(POLLER) == expected
        file = tmp_path / "saved.json"
        file.write_text('{"cursor": [5, 1]}')
        store.reset_to_checkpoint(POLLER, file)
        assert store.load_checkpoint(POLLER) == {"cursor": [5, 1]}
        assert store.clone_checkpoint(POLLER, "copy").before is None
        assert store.load_checkpoint("copy") == {"cursor": [5, 1]}
        with pytest.raises(StateStoreError):
            store.clone_checkpoint(POLLER, "copy")
        assert store.poller_names() == ["copy", POLLER]

    @pytest.mark.usefixtures("resetting")
    def test_a_pause_is_seen_by_every_instance_and_harms_no_holder(self, new_store: NewStore) -> None:
        holder, operator = new_store(), new_store()
        held = holder.take(holder.look(POLLER), TTL)
        operator.pause(POLLER, "ann@desk", "the target is rebuilt")
        held.renew(TTL)
        held.commit(POSITION, release=True)
        paused = new_store().look(POLLER).paused
        assert (paused.by, paused.why) == ("ann@desk", "the target is rebuilt")
        assert new_store().load_checkpoint(POLLER) == POSITION
        operator.reset_to_beginning(POLLER)
        assert new_store().look(POLLER).paused == paused
        operator.resume(POLLER)
        assert holder.look(POLLER).paused is None

    @pytest.mark.usefixtures("resetting")
    def test_a_poller_that_never_ran_can_be_paused(self, new_store: NewStore) -> None:
        new_store().pause(POLLER, "ann@desk")
        state = new_store().look(POLLER)
        assert (state.paused.by, state.paused.why, state.checkpoint) == ("ann@desk", None, {})
        with pytest.raises(StateStoreError):
            new_store().resume("another")

    @pytest.mark.usefixtures("fingerprinting", "resetting")
    def test_a_changed_source_can_be_adopted(self, new_store: NewStore) -> None:
        store = new_store(source_fingerprint="sha256:a")
        store.take(store.look(POLLER), TTL).commit(POSITION, release=True)
        new_store().adopt_fingerprint(POLLER, "sha256:b")
        assert new_store(source_fingerprint="sha256:b").load_checkpoint(POLLER) == POSITION

    def test_errors_are_of_this_library(self, new_store: NewStore) -> None:
        store = new_store()
        with pytest.raises(DbError):
            store.commit_checkpoint(POLLER, POSITION, "nobody:1")
