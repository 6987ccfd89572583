"""`azfdb reset`: another position for a poller."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from azure_functions_db.cli.options import (
    BACKUPS,
    AppName,
    AppPlace,
    AsJson,
    BackupFolder,
    Force,
    PollerName,
    StoreUrl,
    Yes,
)

if TYPE_CHECKING:
    from azure_functions_db.cli.changes import Act, Changing
    from azure_functions_db.cli.targets import Target


def reset(
    name: PollerName,
    to_beginning: Annotated[bool, typer.Option("--to-beginning", help="Deliver everything again.")] = False,
    to_checkpoint: Annotated[
        Path | None,
        typer.Option("--to-checkpoint", metavar="FILE", resolve_path=True, help="An exported document or a backup."),
    ] = None,
    to_cursor: Annotated[
        str | None, typer.Option("--to-cursor", metavar="VALUE", help="Go on after this cursor value; needs --pk.")
    ] = None,
    pk: Annotated[
        list[str] | None, typer.Option("--pk", metavar="NAME=VALUE", help="A key column of that row; repeatable.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="The cursor's type, where it cannot be told: integer, timestamp, …")
    ] = None,
    adopt_fingerprint: Annotated[
        bool, typer.Option("--adopt-fingerprint", help="Keep the position for the app's changed source.")
    ] = False,
    yes: Yes = False,
    force: Force = False,
    backups: BackupFolder = BACKUPS,
    app: AppPlace = None,
    store: StoreUrl = None,
    app_name: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Move a poller's checkpoint; shows before and after, asks first, keeps a backup.

    Refused while a lease is alive (exit code 5).
    """
    from azure_functions_db.cli.perform import perform
    from azure_functions_db.cli.targets import Targets

    _check_one_goal(to_beginning, to_checkpoint, to_cursor, adopt_fingerprint)
    target = Targets(app, store, app_name).one(name)
    if to_checkpoint is not None:
        changing = _to_checkpoint(name, to_checkpoint, force=force)
    elif to_cursor is not None:
        changing = _to_cursor(target, to_cursor, kind, pk or [], force=force)
    elif adopt_fingerprint:
        changing = _adopting(target, force=force)
    else:
        changing = _change(name, "reset to the beginning", lambda s: s.reset_to_beginning(name, force=force))
    perform(changing, target.documents, yes=yes, backups=backups, as_json=as_json)


def _check_one_goal(*goals: object) -> None:
    if sum(goal is not None and goal is not False for goal in goals) != 1:
        raise typer.BadParameter(
            "give exactly one of --to-beginning, --to-checkpoint FILE, --to-cursor VALUE and --adopt-fingerprint"
        )


def _to_checkpoint(name: str, file: Path, *, force: bool) -> Changing:
    return _change(name, f"reset to {file.name}", lambda store: store.reset_to_checkpoint(name, file, force=force))


def _to_cursor(target: Target, text: str, kind: str | None, pairs: list[str], *, force: bool) -> Changing:
    from azure_functions_db.cli.values import cursor_from, key_from, typed_source
    from azure_functions_db.core.errors import StateStoreError
    from azure_functions_db.core.serializers import serialize_position

    try:
        document = target.document()
    except StateStoreError:
        if not force:
            raise
        document = None
    source = None if target.poller is None else target.poller.settings.source
    value = cursor_from(text, kind, document, typed_source(source))
    key = key_from(pairs, document, typed_source(source))
    if source is not None and not force:
        source.fetch_changes({"cursor": serialize_position(value, key)}, 1)  # a position that cannot be read is refused
    name = target.name
    return _change(name, f"reset to {text}", lambda store: store.reset_to_cursor(name, value, key, force=force))


def _adopting(target: Target, *, force: bool) -> Changing:
    fingerprint = target.defined.settings.source.source_descriptor.fingerprint
    name = target.name
    return _change(name, "adopt the source", lambda store: store.adopt_fingerprint(name, fingerprint, force=force))


def _change(name: str, action: str, act: Act) -> Changing:
    from azure_functions_db.cli.changes import Changing

    return Changing(action, name, act)
