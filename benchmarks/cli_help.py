"""How long `azfdb --help` takes from start to end, beside a process that only imports SQLAlchemy.

Prints one line of JSON; the ratio must stay below 0.5.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 15
HELP = [str(Path(sys.prefix) / "bin" / "azfdb"), "--help"]
IMPORT = [sys.executable, "-c", "import sqlalchemy"]


def seconds(command: list[str]) -> float:
    """Return how long a command takes, the start of the interpreter included."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    """Measure both in turns, so that a busy machine slows both alike."""
    rounds = [(seconds(HELP), seconds(IMPORT)) for _ in range(ROUNDS)]
    ours, theirs = (min(times) for times in zip(*rounds, strict=True))
    result = {
        "benchmark": "cli_help",
        "ours_ms": round(ours * 1000, 2),
        "baseline_ms": round(theirs * 1000, 2),
        "ratio": round(ours / theirs, 4),
        "target": 0.5,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
