"""The tool that runs the test services stops its own processes, and nobody else's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tools.services import instance
from tools.services.processes import Process, start_time


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as child:
        yield child
        child.kill()


@pytest.fixture
def services_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(instance, "ROOT", tmp_path)
    return tmp_path


def process_of(child: subprocess.Popen[bytes]) -> Process:
    return Process("postgres", child.pid, start_time(child.pid) or 0)


def record(folder: Path, *processes: Process) -> None:
    folder.mkdir()
    content = {"processes": [asdict(process) for process in processes], "settings": {}}
    (folder / "instance.json").write_text(json.dumps(content))


def test_a_process_of_ours_is_stopped(sleeper: subprocess.Popen[bytes]) -> None:
    process_of(sleeper).stop()
    assert start_time(sleeper.pid) is None


def test_a_stranger_with_a_reused_id_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    ours = process_of(sleeper)
    replace(ours, started=ours.started - 1).stop()
    assert ours.is_alive()


def test_leftovers_of_a_killed_run_are_swept(services_folder: Path, sleeper: subprocess.Popen[bytes]) -> None:
    dead_owner = replace(Process.current(), started=1)
    record(services_folder / "run-1", dead_owner, process_of(sleeper))
    instance.sweep()
    assert start_time(sleeper.pid) is None
    assert not (services_folder / "run-1").exists()


def test_a_run_that_is_still_going_is_not_swept(services_folder: Path, sleeper: subprocess.Popen[bytes]) -> None:
    record(services_folder / "run-2", Process.current(), process_of(sleeper))
    instance.sweep()
    assert process_of(sleeper).is_alive()
    assert (services_folder / "run-2").exists()


def test_what_lies_in_memory_goes_with_its_instance(
    services_folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path_factory.mktemp("memory")
    monkeypatch.setattr(instance, "roomy_memory", lambda: memory)
    ours = instance.Instance(services_folder / "run-3")
    ours.claim()
    assert ours.temporary().is_relative_to(memory)
    ours.stop()
    assert [*memory.iterdir(), *services_folder.iterdir()] == []


def test_a_link_into_memory_that_a_reboot_has_emptied_is_swept(services_folder: Path) -> None:
    (services_folder / "up").symlink_to(services_folder / "nowhere")
    instance.sweep()
    assert list(services_folder.iterdir()) == []
