"""A thousand histories, and the promise that a seed tells the same story each time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.history import played, shrunk, told
from tests.simulation.plan import Plan

_HISTORIES = 1000
_AT_ONCE = 100


@pytest.mark.parametrize("first", range(0, _HISTORIES, _AT_ONCE))
def test_nothing_promised_is_broken_in_any_history(first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        history = played(Plan.of(seed))
        if history.complaints:
            pytest.fail("\n".join(told(shrunk(history))), pytrace=False)


def test_a_seed_tells_the_same_story_in_every_process() -> None:
    code = (
        "from tests.simulation.history import played, told\n"
        "from tests.simulation.plan import Plan\n"
        "for seed in (3, 4, 5, 6, 8, 114):\n"
        "    print(*told(played(Plan.of(seed))), sep='\\n')\n"
    )
    stories = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    ]
    assert stories[0] == stories[1]
    assert len(stories[0].splitlines()) > 50
