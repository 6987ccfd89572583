"""The processes of a fleet do not outlive whoever started them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from tests.chaos.poller import Task
from tests.chaos.record import Gates, entries
from tests.support.waiting import wait_for
from tools.services.processes import start_time
from tools.services.server import CHECKOUT

PARENT = """
import json, sys
from pathlib import Path
from tests.chaos.fleet import Fleet
from tests.chaos.poller import Task

task = Task(**json.loads(sys.argv[1]))
fleet = Fleet(Path(task.folder))
fleet.start(task)
print(fleet._running[task.who].pid, flush=True)
sys.stdin.read()
"""


def test_a_poller_that_waits_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    task = Task(folder=str(tmp_path), poller="orphan", who="orphan", url="sqlite://", ttl=1.0)
    Gates(tmp_path, task.who).close("start")
    command = [sys.executable, "-c", PARENT, json.dumps(asdict(task))]
    with subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        orphan = int(parent.stdout.readline())
        wait_for(lambda: entries(tmp_path, "orphan", "waits"), 60, "the poller never came to its gate")
        parent.kill()
    wait_for(lambda: start_time(orphan) is None, 60, "the poller still waits")
