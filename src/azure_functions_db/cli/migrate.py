"""`azfdb migrate`: from release 0.8 to this one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from azure_functions_db.cli.drawing import indented, stacked, text
from azure_functions_db.cli.options import BACKUPS, AppName, AsJson, BackupFolder, Exit, Force, StoreUrl, Yes
from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from azure_functions_db.operations.migrate import Advice, AppReading, CheckpointReport, Migration
    from azure_functions_db.state.store import DocumentStateStore

_GRADES = {"change": ("change", "red"), "warning": ("warns", "yellow"), "note": ("note", "cyan")}
_FATES = {"ready": "yellow", "carried over": "green", "not carried over": "dim"}


def migrate(
    place: Annotated[
        Path,
        typer.Option(
            "--from-0.8", metavar="PATH", exists=True, resolve_path=True, help="The app: its directory or one file."
        ),
    ],
    poller: Annotated[
        list[str] | None,
        typer.Option("--poller", metavar="NAME", help="A poller whose name is computed; repeatable."),
    ] = None,
    carry_over: Annotated[
        bool, typer.Option("--carry-over", help="Carry the checkpoints over; otherwise it is only shown.")
    ] = False,
    yes: Yes = False,
    force: Force = False,
    backups: BackupFolder = BACKUPS,
    store: StoreUrl = None,
    app_name: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Tell line by line what an app of release 0.8 would have to change, and carry its checkpoints over.

    The app is read, never run. Exit code 1 when something has to change.
    """
    from azure_functions_db.cli.changes import confirm
    from azure_functions_db.cli.drawing import show
    from azure_functions_db.operations.migrate import Migration, carried_over, planned, read_app

    reading = read_app(place)
    pollers, place_of_state = [*reading.pollers, *(poller or ())], store or _only_store(reading)
    result = Migration(reading.advice, store=place_of_state)
    asked = store is not None or carry_over or _knows_app(app_name)
    if place_of_state is not None and pollers and asked:
        opened = _opened(place_of_state, app_name)
        result = Migration(reading.advice, planned(opened, pollers, force=force), store=place_of_state)
        ready = [report.poller for report in result.checkpoints if report.fate == "ready"]
        if carry_over and ready:
            if not as_json:
                show(result, _screen, as_json=False)
            confirm(*ready, yes=yes)
            done = carried_over(opened, result.checkpoints, backups, force=force)
            result = Migration([], done, dry_run=False, store=place_of_state)
    elif carry_over:
        raise ConfigurationError("Give --store URL: where the app keeps its state cannot be read from its files")
    show(result, _screen, as_json=as_json)
    must_change = any(advice.grade == "change" for advice in reading.advice)
    raise typer.Exit(Exit.FAILED if must_change else Exit.OK)


def _only_store(reading: AppReading) -> str | None:
    return reading.stores[0] if len(reading.stores) == 1 else None


def _knows_app(app_name: str | None) -> bool:
    return app_name is not None or "WEBSITE_SITE_NAME" in os.environ


def _opened(store: str, app_name: str | None) -> DocumentStateStore:
    from azure_functions_db.operations.pollers import store_at

    if not _knows_app(app_name):
        raise ConfigurationError(
            "Give --app-name NAME: the function app's name in Azure, under which it keeps its state"
        )
    return store_at(store, app_name)


def _screen(result: Migration, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    lines: list[RenderableType] = [_line(advice) for advice in result.advice]
    if result.dry_run and not lines:
        lines.append(text("There is nothing to change.", "green"))
    lines.extend(map(_checkpoint, result.checkpoints))
    if result.dry_run and any(report.fate == "ready" for report in result.checkpoints):
        lines.append(text("Nothing was written: --carry-over does it."))
    elif result.dry_run and not result.checkpoints:
        lines.append(text("No checkpoint was looked for: give --store URL and --app-name NAME."))
    return stacked(*lines)


def _line(advice: Advice) -> RenderableType:
    word, style = _GRADES[advice.grade]
    said = text(f"{advice.file}:{advice.line}: {advice.text}")
    return stacked(text(f"{word:6} ", style).append_text(said), indented(text(f"→ {advice.remedy}"), below=0))


def _checkpoint(report: CheckpointReport) -> RenderableType:
    from azure_functions_db.cli.drawing import value

    at = f", from {value((report.checkpoint or {}).get('cursor'))}" if report.checkpoint else ""
    return text(f"{report.poller}: {report.fate}: {report.text}{at}", _FATES[report.fate])
