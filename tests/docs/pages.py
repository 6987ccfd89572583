"""The code blocks of a documentation page, run as a reader would run them."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, create_engine

CHECKOUT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<kind>python|sql|text)(?P<rest>[^\n]*)\n(?P<code>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_OUTPUT = 'title="Output"'


@dataclass(frozen=True)
class Block:
    """A fenced block: Python and SQL are run, text with the title Output is what was to be printed."""

    kind: str
    code: str
    line: int


def pages() -> list[Path]:
    """Return every page whose Python and SQL is read as one program."""
    return [page for page in _all_pages() if blocks_of(page) and not is_typed(page)]


def typed_pages() -> list[Path]:
    """Return every how-to whose files are saved and whose commands are typed; the tutorial has a test of its own."""
    return [page for page in _all_pages() if is_typed(page) and page.parent.name != "tutorial"]


def is_typed(page: Path) -> bool:
    """Tell whether a page names the files that its code belongs to."""
    return re.search(r'^```python title="\w+\.py"$', page.read_text(), re.MULTILINE) is not None


def _all_pages() -> list[Path]:
    return sorted((CHECKOUT / "docs").rglob("*.md"))


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page that are run or compared, in their order."""
    text = page.read_text()
    found = []
    for match in _BLOCK.finditer(text):
        if match["kind"] == "text" and _OUTPUT not in match["rest"]:
            continue
        lines = [line.removeprefix(match["indent"]) for line in match["code"].splitlines()]
        found.append(Block(match["kind"], "\n".join(lines) + "\n", text.count("\n", 0, match.start("code")) + 1))
    return found


class Reader:
    """Runs the blocks of one page in one namespace; SQL goes to one database."""

    def __init__(self, page: Path, database: str) -> None:
        self._page = page
        self._database = database
        # Models and type hints written as text look their names up in a module.
        self._module = types.ModuleType("docs_" + re.sub(r"\W", "_", page.stem))
        self._module.__file__ = str(page)
        self._printed = io.StringIO()

    def read(self) -> None:
        """Run all blocks and compare what they print with what the page says."""
        sys.modules[self._module.__name__] = self._module
        try:
            for block in blocks_of(self._page):
                self._take(block)
        finally:
            del sys.modules[self._module.__name__]
            for value in vars(self._module).values():
                if isinstance(value, Engine):
                    value.dispose()

    def _take(self, block: Block) -> None:
        match block.kind:
            case "python":
                self._run(block)
            case "sql":
                self._execute(block)
            case _:
                printed = self._printed.getvalue()
                self._printed = io.StringIO()
                assert printed == block.code, f"{self._page}:{block.line}"

    def _run(self, block: Block) -> None:
        padded = "\n" * (block.line - 1) + block.code  # so that a traceback names the page's own line
        code = compile(padded, str(self._page), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(self._printed):
            exec(code, vars(self._module))

    def _execute(self, block: Block) -> None:
        engine = create_engine(self._database)
        connection = engine.raw_connection()
        for statements in _pieces(block.code, engine.dialect.name):
            connection.cursor().execute(statements)
        connection.commit()
        connection.close()
        engine.dispose()


def _pieces(code: str, dialect: str) -> list[str]:
    """Return what the driver takes at once: PostgreSQL's a whole script, the others' a statement."""
    return [code] if dialect == "postgresql" else [piece for piece in re.split(r";\s*\n", code) if piece.strip()]
