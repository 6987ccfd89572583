"""How much of a cold start the package costs, beside SQLAlchemy's own import.

Prints one line of JSON; the ratio must stay at or below 0.2.
"""

from __future__ import annotations

import json
import subprocess
import sys

ROUNDS = 15
PROGRAM = "import time; began = time.perf_counter(); import {module}; print(time.perf_counter() - began)"


def seconds(module: str) -> float:
    """Return how long a fresh interpreter takes for the import."""
    command = [sys.executable, "-c", PROGRAM.format(module=module)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Measure both imports in turns, so that a busy machine slows both alike."""
    rounds = [(seconds("azure_functions_db"), seconds("sqlalchemy")) for _ in range(ROUNDS)]
    ours, theirs = (min(times) for times in zip(*rounds, strict=True))
    result = {
        "benchmark": "import_time",
        "azure_functions_db_ms": round(ours * 1000, 2),
        "sqlalchemy_ms": round(theirs * 1000, 2),
        "ratio": round(ours / theirs, 4),
        "at_most": 0.2,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
