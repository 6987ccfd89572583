"""What an operator does to a poller's state: each act on the state that it is meant for, and on no other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from azure_functions_db import ConfigurationError, LeaseConflictError, MemoryStateStore, StateStoreError
from azure_functions_db.state.backend import Stored, document_name
from azure_functions_db.state.document import Document, encoded
from azure_functions_db.state.memory import MemoryBackend
from azure_functions_db.state.store import DocumentStateStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from azure_functions_db.state.backend import DocumentName, Version

POLLER = "orders"
FIRST, SECOND = {"cursor": [1]}, {"cursor": [2]}
NAME = document_name(None, POLLER)


class Attic(MemoryBackend):
    """Finds a document of release 0.8 as long as there is none here, and notes by which version it was claimed."""

    def __init__(self) -> None:
        super().__init__()
        self.old: Stored | None = Stored(encoded(Document(POLLER, FIRST, None, "sha256:old")), None, origin="v1")
        self.claimed: list[Version] = []

    def read(self, name: DocumentName) -> Stored | None:
        return super().read(name) or self.old

    def claim(self, _name: DocumentName, origin: Version) -> bool:
        self.claimed.append(origin)
        return True


class Busy(MemoryBackend):
    """Lets somebody else write just before some of the writes."""

    def __init__(self) -> None:
        super().__init__()
        self.interruptions = 0

    def replace(self, name: DocumentName, content: bytes, version: Version) -> Version | None:
        if self.interruptions:
            self.interruptions -= 1
            stored = self.read(name)
            assert stored is not None
            super().replace(name, stored.content, version)
        return super().replace(name, content, version)


def with_checkpoint(store: DocumentStateStore, poller_name: str = POLLER, checkpoint: Any = FIRST) -> None:
    store.take(store.look(poller_name), 60).commit(checkpoint, release=True)


def damage(store: DocumentStateStore) -> None:
    assert isinstance(store._backend, MemoryBackend)
    store._backend._documents[NAME] = (b"{", 0)


class TestRestoring:
    @pytest.fixture
    def saved(self, tmp_path: Path) -> Callable[[object], Path]:
        def save(content: object) -> Path:
            (tmp_path / "saved.json").write_text(json.dumps(content))
            return tmp_path / "saved.json"

        return save

    def test_a_bare_checkpoint_leaves_the_state_bound_to_its_source(self, saved: Callable[[object], Path]) -> None:
        store = MemoryStateStore(source_fingerprint="sha256:a")
        with_checkpoint(store)
        after = store.reset_to_checkpoint(POLLER, saved(SECOND)).after
        assert (after["checkpoint"], after["source_fingerprint"]) == (SECOND, "sha256:a")

    def test_a_document_without_its_version_is_not_taken_for_a_position(self, saved: Callable[[object], Path]) -> None:
        with pytest.raises(ConfigurationError, match="lacks its version or its poller_name"):
            MemoryStateStore().reset_to_checkpoint(POLLER, saved({"checkpoint": FIRST}))

    def test_a_file_that_is_not_there_is_named_once(self, tmp_path: Path) -> None:
        file = tmp_path / "saved.json"
        with pytest.raises(ConfigurationError) as refused:
            MemoryStateStore().reset_to_checkpoint(POLLER, file)
        assert str(refused.value).endswith(f"The checkpoint cannot be read from {file}: No such file or directory")

    def test_a_file_that_is_no_json_says_where(self, tmp_path: Path) -> None:
        file = tmp_path / "saved.json"
        file.write_text('{"cursor": ')
        with pytest.raises(ConfigurationError, match=r"cannot be read from .*: Expecting value: line 1 column 12"):
            MemoryStateStore().reset_to_checkpoint(POLLER, file)


def test_a_position_is_cloned_over_another_by_force() -> None:
    store = MemoryStateStore()
    with_checkpoint(store)
    with_checkpoint(store, "copy", SECOND)
    change = store.clone_checkpoint(POLLER, "copy", force=True)
    assert change.before is not None
    assert (change.before["checkpoint"], store.load_checkpoint("copy")) == (SECOND, FIRST)


class TestCarryingOver:
    def test_the_state_of_release_08_is_claimed_and_bound_anew(self) -> None:
        attic = Attic()
        change = DocumentStateStore(attic).carry_over(POLLER)
        assert (change.after["checkpoint"], change.after["source_fingerprint"]) == (FIRST, None)
        assert attic.claimed == ["v1"]
        with pytest.raises(StateStoreError, match="'orders' has a state of its own, from which it goes on"):
            DocumentStateStore(attic).carry_over(POLLER)

    def test_of_nothing_is_refused(self) -> None:
        with pytest.raises(StateStoreError, match=r"'orders' has no state of release 0\.8"):
            MemoryStateStore().carry_over(POLLER)

    def test_whoever_begins_elsewhere_leaves_the_old_state_to_others(self) -> None:
        attic = Attic()
        DocumentStateStore(attic).reset_to_cursor(POLLER, 7, {"id": 1})
        assert attic.claimed == []


class TestForgetting:
    def test_the_state_of_release_08_is_not_this_apps_to_forget(self) -> None:
        with pytest.raises(StateStoreError, match="There is no state of poller 'orders'"):
            DocumentStateStore(Attic()).forget(POLLER)

    def test_what_cannot_be_read_is_forgotten_by_force_only(self) -> None:
        store = MemoryStateStore()
        damage(store)
        with pytest.raises(StateStoreError, match="cut short"):
            store.forget(POLLER)
        assert store.raw_document(POLLER) == b"{"
        assert store.forget(POLLER, force=True).before == {"unreadable": "{"}
        assert store.raw_document(POLLER) is None

    def test_a_place_that_removes_nothing_says_so(self) -> None:
        class Keeper:
            def __init__(self) -> None:
                memory = MemoryBackend()
                self.read, self.create, self.replace, self.pollers = (
                    memory.read,
                    memory.create,
                    memory.replace,
                    memory.pollers,
                )

        store = DocumentStateStore(Keeper())
        with_checkpoint(store)
        with pytest.raises(ConfigurationError, match="A DocumentStateStore cannot remove a state"):
            store.forget(POLLER)


class TestPausing:
    def test_goes_in_between_the_writes_of_a_holder(self) -> None:
        busy = Busy()
        store = DocumentStateStore(busy)
        with_checkpoint(store)
        busy.interruptions = 4
        store.pause(POLLER, "ann@desk")
        assert store.look(POLLER).paused is not None

    def test_of_a_state_that_never_stands_still_is_told_as_refused(self) -> None:
        busy = Busy()
        store = DocumentStateStore(busy)
        with_checkpoint(store)
        busy.interruptions = 5
        with pytest.raises(LeaseConflictError, match="changed by another instance"):
            store.pause(POLLER, "ann@desk")
        assert store.look(POLLER).paused is None


def test_a_place_that_is_not_there_yet_is_told_from_one_without_pollers() -> None:
    class Placed(MemoryBackend):
        missing: str | None = "container db-state"

        def missing_place(self) -> str | None:
            return self.missing

    place = Placed()
    with pytest.raises(ConfigurationError, match="There is no container db-state here: it is made by the first tick"):
        DocumentStateStore(place).check_place()
    place.missing = None
    DocumentStateStore(place).check_place()
    MemoryStateStore().check_place()
