"""`azfdb init`: a function app that follows a table, ready to run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from azure_functions_db.cli.drawing import findings_table, indented, shown, stacked, text
from azure_functions_db.cli.options import AsJson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from azure_functions_db.operations.init import InitReport


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where the app is to be; it is made where it is missing.")
    ] = Path(),
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="The database; %NAME% stands for a setting.")
    ] = None,
    table: Annotated[str | None, typer.Option("--table", metavar="NAME", help="The table to follow.")] = None,
    schema: Annotated[str | None, typer.Option("--schema", metavar="NAME", help="Its schema.")] = None,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="COLUMN", help="The column that grows with every change.")
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="COLUMN", help="What tells rows apart; may be repeated.")
    ] = None,
    store: Annotated[
        Literal["azure", "files", "database"] | None,
        typer.Option("--store", help="Where the state is: blobs in Azure and files here; files; the same database."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a function app that follows a table: code, settings and a test. Nothing is overwritten.

    What is not given is asked for on a terminal; elsewhere the proposal is taken.
    """
    import logging

    from azure_functions_db.cli.drawing import show
    from azure_functions_db.operations import init as operations

    logging.getLogger().addHandler(logging.NullHandler())  # what sources warn of is among the findings
    operations.require_free(folder)
    ask = _Questions(quiet=as_json)
    url = url or ask("Database URL (dialect+driver://user:password@host/name)", option="--url")
    table = table or ask("Table", operations.tables_at(url, schema), option="--table")
    found = operations.propose(url, table, schema)
    cursor = cursor or ask("Column that grows with every change", found.columns, found.cursor, option="--cursor")
    key = key or found.key or [ask("Column that tells rows apart", found.columns, option="--key")]
    where = store or ask("State (azure, files, database)", ["azure", "files", "database"], "azure", option="--store")
    choice = operations.Choice(url, table, cursor, key, schema, where)  # type: ignore[arg-type] # one of the three
    show(operations.init(choice, folder), _screen, as_json=as_json)


class _Questions:
    """Asks on a terminal; takes the proposal elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self._asks = not quiet and sys.stdin.isatty() and sys.stderr.isatty()

    def __call__(self, question: str, known: Sequence[str] = (), proposal: str | None = None, *, option: str) -> str:
        """Return one of the known answers, or any where none is known."""
        proposal = known[0] if proposal is None and len(known) == 1 else proposal
        answer = self._answer(question, known, proposal) if self._asks else proposal
        if not answer:
            raise typer.BadParameter(_missing(question, known), param_hint=option)
        if known and answer not in known:
            raise typer.BadParameter(f"there is no {shown(answer)}{_among(known)}", param_hint=option)
        return answer

    @staticmethod
    def _answer(question: str, known: Sequence[str], proposal: str | None) -> str | None:
        hint = f" [{shown(proposal)}]" if proposal else _among(known)
        print(f"{question}{hint}: ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip() or proposal


def _missing(question: str, known: Sequence[str]) -> str:
    return f"cannot be guessed: {question[0].lower()}{question[1:]}{_among(known)}"


def _among(known: Sequence[str]) -> str:
    return f" (there are {', '.join(map(shown, known[:20]))}{', …' if len(known) > 20 else ''})" if known else ""


def _screen(result: InitReport, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    key = ", ".join(result.key)
    head = text(f"{result.function} follows {result.table} by {result.cursor}, key {key}.", "bold")
    files = [text(f"wrote {Path(result.folder) / name}") for name in result.files]
    known = [text("To know about the table:"), indented(findings_table(result.findings))] if result.findings else []
    there = "" if result.folder == "." else f"cd {result.folder}; "
    steps = [f"{there}azfdb run", "pip install pytest; pytest"]
    return stacked(head, *files, *known, text("Next:"), *(indented(text(step)) for step in steps))
