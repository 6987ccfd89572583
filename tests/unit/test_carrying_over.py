"""State of an earlier release: carried over by one app only, and by none that it does not belong to."""

from __future__ import annotations

import datetime as dt
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from azure_functions_db import LeaseConflictError, LostLeaseError
from azure_functions_db.state.backend import Stored
from azure_functions_db.state.document import Document, encoded
from azure_functions_db.state.memory import MemoryBackend
from azure_functions_db.state.store import DocumentStateStore

if TYPE_CHECKING:
    from azure_functions_db.state.backend import DocumentName, Version

OURS, THEIRS = "sha256:ours", "sha256:theirs"
OLD = {"cursor": [1, 4]}


class Attic(MemoryBackend):
    """Finds a document of an older layout as long as none is here; whoever claims it first has it."""

    def __init__(self, fingerprint: str | None = OURS, *, told_by_fingerprint: bool = True) -> None:
        super().__init__()
        self.old = Stored(
            encoded(replace(Document("orders", OLD), source_fingerprint=fingerprint)),
            None,
            origin="v1",
            told_by_fingerprint=told_by_fingerprint,
        )
        self.claimed: list[Version] = []
        self.is_taken = False

    def read(self, name: DocumentName) -> Stored | None:
        return super().read(name) or self.old

    def claim(self, name: DocumentName, origin: Version) -> bool:
        self.claimed.append(origin)
        return not self.is_taken


def test_it_is_claimed_once_and_gone_on_from() -> None:
    attic = Attic()
    store = DocumentStateStore(attic)
    state = store.look("orders", OURS)
    assert (state.checkpoint, attic.claimed) == (OLD, []), "looking takes nothing"
    lease = store.take(state, 60)
    lease.commit({"cursor": [2, 0]})
    assert attic.claimed == ["v1"]
    assert DocumentStateStore(attic).look("orders", OURS).checkpoint == {"cursor": [2, 0]}


def test_what_another_app_has_claimed_is_not_taken() -> None:
    attic = Attic()
    store = DocumentStateStore(attic)
    state = store.look("orders", OURS)
    attic.is_taken = True
    with pytest.raises(LeaseConflictError):
        store.take(state, 60)
    assert MemoryBackend.read(attic, store._stored("orders").name) is None, "nothing was written"


def test_a_note_does_not_carry_it_over() -> None:
    attic = Attic()
    store = DocumentStateStore(attic)
    with pytest.raises(LeaseConflictError):
        store.note(store.look("orders", OURS), OLD)
    assert MemoryBackend.read(attic, store._stored("orders").name) is None, "nothing was written"


def test_a_place_without_older_state_has_nothing_to_claim() -> None:
    class Plain(MemoryBackend):
        def read(self, name: DocumentName) -> Stored | None:
            return super().read(name) or Attic().old

    assert DocumentStateStore(Plain()).acquire_lease("orders", 60).endswith(":1")


def test_that_of_another_source_is_left_alone_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    store = DocumentStateStore(Attic(THEIRS))
    with caplog.at_level(logging.WARNING):
        assert store.look("orders", OURS).checkpoint == {}
        assert store.look("orders", OURS).checkpoint == {}
    assert caplog.text.count("is of another source: this app begins anew") == 1
    assert store.look("orders", OURS, THEIRS).checkpoint == OLD, "a former fingerprint is our own"


def test_without_a_fingerprint_to_tell_it_by_it_is_taken_as_it_is() -> None:
    assert DocumentStateStore(Attic(THEIRS)).look("orders").checkpoint == OLD
    assert DocumentStateStore(Attic(THEIRS, told_by_fingerprint=False)).look("orders", OURS).checkpoint == OLD


def test_a_lease_is_not_renewed_in_a_document_that_is_only_found_elsewhere() -> None:
    attic = Attic()
    store = DocumentStateStore(attic)
    lease_id = store.acquire_lease("orders", 60)
    attic._documents.clear()
    with pytest.raises(LostLeaseError, match="vanished"):
        DocumentStateStore(attic).renew_lease("orders", lease_id, 60)


def test_only_documents_of_pollers_are_listed() -> None:
    class Cluttered(MemoryBackend):
        def pollers(self, app: str) -> list[str]:
            return [*super().pollers(app), "lost+found", "%zz", ".hidden", "", "x" * 201]

    store = DocumentStateStore(Cluttered())
    store.acquire_lease("orders / eu", 60)
    assert store.poller_names() == ["orders / eu"]


def test_the_time_is_that_of_whoever_keeps_the_state() -> None:
    noon = dt.datetime(2026, 11, 16, 12, tzinfo=dt.UTC)

    class Timed(MemoryBackend):
        def now(self) -> dt.datetime:
            return noon

    assert DocumentStateStore(Timed()).storage_time() == noon
    assert DocumentStateStore(MemoryBackend()).storage_time() is None


def test_a_lease_in_doubt_knows_of_no_pause() -> None:
    store = DocumentStateStore(MemoryBackend())
    lease_id = store.acquire_lease("orders", 60)
    lease = store._stored("orders").lease
    assert lease is not None
    DocumentStateStore(store._backend).pause("orders", "ann@desk")
    store.renew_lease("orders", lease_id, 60)
    assert lease.paused is not None, "a holder's next write takes the mark along"
    lease.doubt()
    assert lease.paused is None
