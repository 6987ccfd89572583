"""Run every benchmark of this folder, or those named, and show their ratios as a table.

A benchmark is a script that prints one JSON line for each measurement, with at least
``benchmark`` and ``ratio``, and better ``case``, ``target``, ``ours_ms`` and ``baseline_ms``.
``--keep`` writes them to results.jsonl, of which the plots of the documentation are drawn.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.jsonl"
HELPERS = {"run", "common"}


def scripts(names: list[str]) -> list[Path]:
    found = [path for path in sorted(FOLDER.glob("*.py")) if path.stem not in HELPERS and path.stem[0] != "_"]
    return [path for path in found if not names or path.stem in names]


def lines_of(script: Path) -> list[dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": f"{FOLDER}:{os.environ.get('PYTHONPATH', '')}"}
    print(f"running {script.name} …", file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(f"{script.name} failed", file=sys.stderr)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def shown(line: dict[str, Any]) -> list[str]:
    target, ratio = line.get("target"), line.get("ratio")
    verdict = "" if target is None or ratio is None else ("ok" if ratio <= target else "MISSED")
    first, last = (line.get("benchmark"), line.get("case")), (line.get("ours_ms"), line.get("baseline_ms"))
    values = [*first, ratio, target, *last]
    return [*("" if value is None else str(value) for value in values), verdict]


def print_table(lines: list[dict[str, Any]]) -> None:
    rows = [["benchmark", "case", "ratio", "target", "ours ms", "baseline ms", ""], *map(shown, lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def keep(lines: list[dict[str, Any]]) -> None:
    """Put what was measured in the place of what was measured before, case by case."""
    kept = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.is_file() else []
    today = {"measured": dt.datetime.now(dt.UTC).date().isoformat()}
    by_case = {(line["benchmark"], line.get("case")): line for line in [*kept, *({**line, **today} for line in lines)]}
    RESULTS.write_text("".join(json.dumps(line) + "\n" for line in by_case.values()))


def main() -> None:
    names = [name for name in sys.argv[1:] if name != "--keep"]
    lines = [line for script in scripts(names) for line in lines_of(script)]
    if "--keep" in sys.argv:
        keep(lines)
    for line in lines:
        print(json.dumps(line))
    print_table(lines)


if __name__ == "__main__":
    main()
