"""Importing an app does no I/O and reads no setting: one failure there takes down every function."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.acceptance.conftest import EXAMPLES

WATCH = """
import os, sys

READS, EVENTS = [], []

class Watched(dict):
    def _note(self, name):
        caller = sys._getframe(2).f_globals.get("__name__", "")
        if caller.startswith("azure_functions_db") or caller == "function_app":
            READS.append((caller, name))

    def __getitem__(self, name):
        self._note(name)
        return super().__getitem__(name)

    def get(self, name, default=None):
        self._note(name)
        return super().get(name, default)

    def __contains__(self, name):
        self._note(name)
        return super().__contains__(name)

def audit(event, arguments):
    writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
    if event in ("socket.connect", "sqlite3.connect", "os.mkdir", "subprocess.Popen") or writes:
        EVENTS.append((event, str(arguments)))

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
os.environ = Watched(os.environ)
sys.addaudithook(audit)
import function_app
print(READS, EVENTS)
"""


@pytest.mark.parametrize("example", sorted(path.parent.name for path in EXAMPLES.glob("*/function_app.py")))
def test_importing_an_app_touches_nothing(example: str) -> None:
    command = [sys.executable, "-c", WATCH, str(EXAMPLES / example)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[] []", done.stderr
