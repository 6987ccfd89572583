"""Checks the Python code in README and docs: it parses, every name exists, and it fits the library's types.

The code blocks of one page are read in order as one module, as a reader would type them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
BUILD = CHECKOUT / "build" / "docs-code"
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^(?P<indent> *)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)
CHECKS = (
    ["ruff", "check", "--isolated", "--select=E9,F", "--ignore=F401,F811", "--output-format=concise"],
    [
        "mypy",
        "--disable-error-code=no-redef",
        "--disable-error-code=import-not-found",
        "--allow-untyped-defs",
        "--allow-untyped-calls",
        "--no-error-summary",
    ],
)


def python_of(page: str) -> str:
    """The page with everything but its Python blanked out, so that line numbers stay those of the page."""
    lines = [""] * (page.count("\n") + 1)
    for block in BLOCK.finditer(page):
        first = page.count("\n", 0, block.start("code"))
        indent = len(block["indent"])
        for number, line in enumerate(block["code"].splitlines(), first):
            lines[number] = line[indent:]
    return "\n".join(lines).rstrip() + "\n"


def write_modules() -> list[Path]:
    """One module for each page that shows Python."""
    BUILD.mkdir(parents=True, exist_ok=True)
    for stale in BUILD.glob("*.py"):
        stale.unlink()
    return [written for page in PAGES if (written := write_module(page))]


def write_module(page: Path) -> Path | None:
    code = python_of(page.read_text())
    if not code.strip():
        return None
    name = re.sub(r"\W", "_", str(page.relative_to(CHECKOUT).with_suffix("")))
    module = BUILD / f"{name}.py"
    module.write_text(code)
    return module


def main() -> int:
    modules = write_modules()
    if not modules:
        return 0
    programs = Path(sys.executable).parent
    failures = [
        check[0]
        for check in CHECKS
        if subprocess.run([programs / check[0], *check[1:], *modules], cwd=CHECKOUT, check=False).returncode
    ]
    print(f"code of {len(modules)} pages: {'failed ' + ' and '.join(failures) if failures else 'fine'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
