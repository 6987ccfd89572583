"""How much of a cold start the package costs, beside SQLAlchemy's own import."""

from __future__ import annotations

import subprocess
import sys

from common import as_installed, report_turns

ROUNDS = 15
PROGRAM = "import time; began = time.perf_counter(); import {module}; print(time.perf_counter() - began)"


def seconds(module: str) -> float:
    """Return how long a fresh interpreter takes for the import alone."""
    command = [sys.executable, "-c", PROGRAM.format(module=module)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=as_installed()).stdout)


if __name__ == "__main__":
    turns = [(seconds("azure_functions_db"), seconds("sqlalchemy")) for _ in range(1 + ROUNDS)]
    ours, baseline = map(list, zip(*turns[1:], strict=True))
    report_turns("import_time", "beside `import sqlalchemy`", ours, baseline, target=0.2)
