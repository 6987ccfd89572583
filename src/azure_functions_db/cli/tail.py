"""`azfdb tail`: what the next tick would deliver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from azure_functions_db.cli.options import AppName, AppPlace, AsJson, PollerName, StoreUrl

if TYPE_CHECKING:
    from azure_functions_db.cli.targets import Target
    from azure_functions_db.core.types import Horizon


@dataclass(frozen=True, slots=True)
class Tail:
    """The events that wait, oldest first."""

    poller: str
    events: list[dict[str, Any]]
    more: bool
    """Whether further ones wait behind them."""
    horizon: Horizon | None = None


def tail(
    name: PollerName,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="How many events; a batch of the poller otherwise.")
    ] = None,
    app: AppPlace = None,
    store: StoreUrl = None,
    app_name: AppName = None,
    as_json: AsJson = False,
) -> None:
    """Show what the next tick would deliver; a dry run that changes nothing and calls no handler."""
    from azure_functions_db.cli.output import show
    from azure_functions_db.cli.targets import Targets

    show(tailed(Targets(app, store, app_name).one(name), limit), as_json=as_json)


def tailed(target: Target, limit: int | None) -> Tail:
    """Fetch after the present checkpoint and leave everything as it is."""
    from azure_functions_db.trigger.normalizers import normalized

    settings = target.defined.settings
    source = settings.source
    checkpoint = target.store.load_checkpoint(target.name)
    source.open()
    try:
        result = source.fetch_changes(checkpoint, limit or settings.batch_size)
    finally:
        source.close()
    described, noted = source.source_descriptor, {"dry_run": True}
    events = normalized(settings.normalizer, result.records, described, noted, result.revisions)
    return Tail(target.name, [event.to_json() for event in events], bool(result.more), result.horizon)
