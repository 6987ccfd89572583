"""State in files: whole documents only, whatever happens to the process that writes them."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from azure_functions_db import FileStateStore, LeaseConflictError, StateStoreError

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


def test_a_document_is_a_file_that_people_can_read(tmp_path: Path) -> None:
    store = FileStateStore(tmp_path / "not" / "there", app_name="my app")
    store.commit_and_release("ord/ers", {"cursor": [1]}, store.acquire_lease("ord/ers", 60))
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


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    store = FileStateStore(tmp_path, app_name="app")
    store.commit_and_release(POLLER, {"cursor": [1]}, store.acquire_lease(POLLER, 60))
    file = tmp_path / "app" / "orders.json"
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(StateStoreError, match="cut short"):
        FileStateStore(tmp_path, app_name="app").acquire_lease(POLLER, 60)
    assert len(file.read_bytes()) == 50


def test_a_path_that_is_no_directory_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateStoreError, match="cannot be used"):
        FileStateStore(tmp_path / "file").acquire_lease(POLLER, 60)


def test_names_that_could_leave_the_directory_stay_inside(tmp_path: Path) -> None:
    store = FileStateStore(tmp_path / "state", app_name="..")
    for name in ("..", ".", "../up", "/etc/passwd", "a\\b", "nul\0"):
        store.acquire_lease(name, 60)
    files = [path for path in tmp_path.rglob("*.json") if stat.S_ISREG(path.stat().st_mode)]
    assert len(files) == 6
    assert all(path.parent.parent == tmp_path / "state" for path in files)
    assert store.poller_names() == sorted(["..", ".", "../up", "/etc/passwd", "a\\b", "nul\0"])
