"""A minute of bad weather with a seed that stays the same; `make chaos` has more of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tools.services.server import CHECKOUT

SECONDS = os.environ.get("AZFDB_CHAOS_SECONDS", "60")
SEED = os.environ.get("AZFDB_CHAOS_SEED", "7")


@pytest.mark.timeout(float(SECONDS) + 300)
def test_a_storm_loses_no_row_and_never_are_two_handlers_at_work() -> None:
    command = [sys.executable, "-m", "tests.chaos", SECONDS, SEED]
    storm = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert storm.returncode == 0, storm.stdout + storm.stderr
