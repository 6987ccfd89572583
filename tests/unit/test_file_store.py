"""State in files: whole documents only, whatever happens to the process that writes them."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from azure_functions_db import (
    DocumentName,
    FileQuarantine,
    FileStateStore,
    LeaseConflictError,
    StateStoreError,
    Stored,
)
from azure_functions_db.core import files
from azure_functions_db.core.types import QuarantinedRow
from azure_functions_db.state import file
from azure_functions_db.state.file import FileBackend

POLLER = "orders"
WRITER = """
import sys
from azure_functions_db import FileStateStore
store = FileStateStore(sys.argv[1], app_name="app")
lease_id = store.acquire_lease("orders", 3600)
print("ready", flush=True)
position = 0
while True:
    position += 1
    store.commit_checkpoint("orders", {"cursor": [position], "padding": "x" * 200_000}, lease_id)
    print(position, flush=True)
"""
LOCKER = """
import sys
from pathlib import Path
from azure_functions_db.core.files import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""
ROW = QuarantinedRow(
    poller_name=POLLER,
    event_id="e1",
    event={"pk": {"id": 1}},
    error_type="ValueError",
    error="cannot digest",
    attempts=3,
    batch_id="batch_1",
    quarantined_at=dt.datetime(2026, 4, 7, tzinfo=dt.UTC),
)


def test_a_document_is_a_file_that_people_can_read(tmp_path: Path) -> None:
    store = FileStateStore(tmp_path / "not" / "there", app_name="my app")
    store._lease("ord/ers", store.acquire_lease("ord/ers", 60)).commit({"cursor": [1]}, release=True)
    written = json.loads((tmp_path / "not" / "there" / "my%20app" / "ord%2Fers.json").read_text())
    assert written["checkpoint"] == {"cursor": [1]}


def test_a_writer_that_is_killed_leaves_a_whole_document(tmp_path: Path) -> None:
    for commits in range(1, 6):
        directory = tmp_path / str(commits)
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        confirmed = [writer.stdout.readline().strip() for _ in range(commits + 1)][-1]
        writer.send_signal(signal.SIGKILL)
        later = writer.communicate()[0].split()
        last_confirmed = int(later[-1] if later else confirmed)
        (position,) = FileStateStore(directory, app_name="app").load_checkpoint(POLLER)["cursor"]
        assert position in {last_confirmed, last_confirmed + 1}
        survivor = FileStateStore(directory, app_name="app")
        survivor.break_lease(POLLER)
        survivor.acquire_lease(POLLER, 60)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking beside the test runner's own threads
def test_a_forked_child_does_not_take_its_parents_lease_for_its_own(tmp_path: Path) -> None:
    store = FileStateStore(tmp_path)
    told, teller = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(told, 1)
        try:
            store.acquire_lease(POLLER, 60)
        except LeaseConflictError:
            os._exit(0)
        os._exit(1)
    store.acquire_lease(POLLER, 60)
    os.write(teller, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(told)
    os.close(teller)


def test_a_failed_write_leaves_the_old_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStateStore(tmp_path)
    lease_id = store.acquire_lease(POLLER, 60)
    store.commit_checkpoint(POLLER, {"cursor": [1]}, lease_id)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StateStoreError, match="No space left"):
        store.commit_checkpoint(POLLER, {"cursor": [2]}, lease_id)
    monkeypatch.undo()
    assert store.load_checkpoint(POLLER) == {"cursor": [1]}
    store.commit_checkpoint(POLLER, {"cursor": [3]}, lease_id)
    assert sorted(path.suffix for path in tmp_path.rglob("*") if path.is_file()) == [".json", ".lock"]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_what_is_made_is_its_owners_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    before = os.umask(0)
    try:
        store = FileStateStore(tmp_path / "a" / "state", app_name="app")
        store._lease(POLLER, store.acquire_lease(POLLER, 60)).commit({"cursor": [1]}, release=True)
        FileQuarantine(tmp_path / "b" / "quarantine").put([ROW])
    finally:
        os.umask(before)
    made = list(tmp_path.rglob("*"))
    assert {mode_of(path) for path in made if path.is_dir()} == {0o700}
    assert {mode_of(path) for path in made if path.is_file()} == {0o600}
    assert mode_of(tmp_path) == 0o755, "what was there before stays as it is"


def test_a_document_that_anybody_could_read_is_not_after_the_next_write(tmp_path: Path) -> None:
    store = FileStateStore(tmp_path, app_name="app")
    lease_id = store.acquire_lease(POLLER, 60)
    (tmp_path / "app" / "orders.json").chmod(0o644)
    store.release_lease(POLLER, lease_id)
    assert mode_of(tmp_path / "app" / "orders.json") == 0o600


@pytest.mark.parametrize("suffix", [".json", ".lock", ".tmp"])
def test_a_link_in_the_place_of_a_file_is_refused(tmp_path: Path, suffix: str) -> None:
    store = FileStateStore(tmp_path, app_name="app")
    store.release_lease(POLLER, store.acquire_lease(POLLER, 60))
    place, elsewhere = tmp_path / "app" / f"orders{suffix}", tmp_path / "elsewhere"
    elsewhere.write_bytes((tmp_path / "app" / "orders.json").read_bytes())
    before = elsewhere.read_bytes()
    place.unlink(missing_ok=True)
    place.symlink_to(elsewhere)
    with pytest.raises(StateStoreError, match=rf"a link in the place of a file.*orders\{suffix}"):
        store.acquire_lease(POLLER, 60)
    assert elsewhere.read_bytes() == before
    place.unlink()
    if suffix != ".json":
        store.acquire_lease(POLLER, 60)


def test_a_link_in_the_place_of_a_quarantined_row_is_refused(tmp_path: Path) -> None:
    sink, elsewhere = FileQuarantine(tmp_path / "quarantine"), tmp_path / "elsewhere"
    sink.put([ROW])
    (place,) = (tmp_path / "quarantine").rglob("*.json")
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    for attempt in (sink.entries, lambda: sink.put([ROW])):
        with pytest.raises(StateStoreError, match="a link in the place of a file"):
            attempt()
    assert elsewhere.read_bytes() == before


@pytest.mark.parametrize("suffix", [".json", ".lock", ".tmp"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "app").mkdir()
    os.mkfifo(tmp_path / "app" / f"orders{suffix}")
    with pytest.raises(StateStoreError, match="something else in the place of a file"):
        FileStateStore(tmp_path, app_name="app").acquire_lease(POLLER, 60)


@pytest.fixture
def locker(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of the poller's file."""
    (tmp_path / "app").mkdir()
    arguments = [sys.executable, "-c", LOCKER, str(tmp_path / "app" / "orders.lock")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_a_lock_that_somebody_keeps_is_an_error_that_names_file_and_holder(
    tmp_path: Path, locker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PATIENCE_SECONDS", 0.1)
    store = FileStateStore(tmp_path, app_name="app")
    with pytest.raises(StateStoreError, match=rf"held .* by process {locker.pid} \(.*orders\.lock\)") as refused:
        store.acquire_lease(POLLER, 60)
    assert refused.value.unreachable
    assert store.load_checkpoint(POLLER) == {}, "looking needs no lock"
    locker.kill()
    locker.wait()
    store.acquire_lease(POLLER, 60)


def test_a_process_that_was_stopped_with_the_lock_in_hand_ends_the_waiting_when_it_goes_on(
    tmp_path: Path, locker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PATIENCE_SECONDS", 0.1)
    store = FileStateStore(tmp_path, app_name="app")
    locker.send_signal(signal.SIGSTOP)
    with pytest.raises(StateStoreError):
        store.acquire_lease(POLLER, 60)
    locker.send_signal(signal.SIGCONT)
    monkeypatch.setattr(files, "PATIENCE_SECONDS", 30.0)
    assert locker.stdin is not None
    locker.stdin.close()  # which is what it waits for
    store.acquire_lease(POLLER, 60)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    store = FileStateStore(tmp_path, app_name="app")
    store._lease(POLLER, store.acquire_lease(POLLER, 60)).commit({"cursor": [1]}, release=True)
    file = tmp_path / "app" / "orders.json"
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(StateStoreError, match="cut short"):
        FileStateStore(tmp_path, app_name="app").acquire_lease(POLLER, 60)
    assert len(file.read_bytes()) == 50


def test_a_path_that_is_no_directory_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = FileStateStore(tmp_path / "file")
    with pytest.raises(StateStoreError, match="The state file of poller 'orders' cannot be used") as refused:
        store.acquire_lease(POLLER, 60)
    assert refused.value.poller_name == POLLER
    with pytest.raises(StateStoreError, match="The state directory cannot be used") as refused:
        store.poller_names()
    assert refused.value.poller_name is None


def test_a_folder_that_cannot_be_made_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "state").symlink_to(tmp_path / "gone" / "state")
    with pytest.raises(StateStoreError, match="The state file of poller 'orders' cannot be used"):
        FileStateStore(tmp_path / "state").acquire_lease(POLLER, 60)


def test_what_was_written_while_the_lock_was_waited_for_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, name = FileBackend(tmp_path), DocumentName("app", POLLER)
    first = place.create(name, b"first")
    assert first is not None

    @contextmanager
    def locked_after_another(path: Path) -> Iterator[None]:
        monkeypatch.undo()
        assert place.replace(name, b"second", first) == b"second"
        with files.locked(path):
            yield

    monkeypatch.setattr(file, "locked", locked_after_another)
    assert not place.delete(name, first)
    assert place.read(name) == Stored(b"second", b"second")


def test_nothing_is_forgotten_without_the_lock(tmp_path: Path) -> None:
    store = FileStateStore(tmp_path, app_name="app")
    store.release_lease(POLLER, store.acquire_lease(POLLER, 60))
    lock = tmp_path / "app" / "orders.lock"
    lock.unlink(missing_ok=True)
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateStoreError, match="a link in the place of a file"):
        store.forget(POLLER)
    assert store.poller_names() == [POLLER]


def test_names_that_could_leave_the_directory_stay_inside(tmp_path: Path) -> None:
    store = FileStateStore(tmp_path / "state", app_name="..")
    for name in ("..", ".", "../up", "/etc/passwd", "a\\b", "nul\0"):
        store.acquire_lease(name, 60)
    files = [path for path in tmp_path.rglob("*.json") if stat.S_ISREG(path.stat().st_mode)]
    assert len(files) == 6
    assert all(path.parent.parent == tmp_path / "state" for path in files)
    assert store.poller_names() == sorted(["..", ".", "../up", "/etc/passwd", "a\\b", "nul\0"])


FULL = """
import resource, sys
from azure_functions_db import FileStateStore
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
FileStateStore(sys.argv[1]).acquire_lease("orders", 60)
"""


def test_a_write_that_does_not_fit_is_told_with_its_place(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert f"The state file of poller 'orders' cannot be used: File too large ({tmp_path}" in done.stderr
