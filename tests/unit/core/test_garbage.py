"""What a process loads to keep is not looked through by the garbage collector to find out that it stays."""

from __future__ import annotations

import subprocess
import sys

LOADING = """
import gc
from azure_functions_db import DbConfig, EngineProvider
provider = EngineProvider()
provider.get_engine(DbConfig(connection_url="sqlite://"))
gc.collect()
looks = gc.get_stats()[0]["collections"]
provider.get_engine(DbConfig(connection_url="postgresql+psycopg://nobody@localhost/nothing"))
print(gc.get_stats()[0]["collections"] - looks, gc.get_freeze_count())
"""

FROZEN = """
import gc
from azure_functions_db.core.garbage import settle
gc.freeze()
settle()
print(gc.get_freeze_count())
"""


def printed(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_what_a_process_has_frozen_stays_so() -> None:
    assert int(printed(FROZEN)) > 0


def test_a_dialect_is_loaded_without_a_look_at_it() -> None:
    """Nor is it frozen: what a process does with its own objects later is up to it."""
    assert printed(LOADING) == "0 0\n"
