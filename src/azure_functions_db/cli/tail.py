"""`azfdb tail`: what the next tick would deliver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from azure_functions_db.cli.drawing import holders, number, position, stacked, text, value
from azure_functions_db.cli.options import AsJson, PollerName, Target, targeted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType
    from rich.text import Text

    from azure_functions_db.operations.status import Tail


@targeted
def tail(
    target: Target,
    name: PollerName,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="How many events; a batch of the poller otherwise.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what the next tick would deliver; a dry run that changes nothing and calls no handler."""
    from azure_functions_db.cli.drawing import show
    from azure_functions_db.operations.status import tail

    show(tail(target.one(name), limit), _screen, as_json=as_json)


def _screen(result: Tail, width: int) -> RenderableType:
    if result.has_one_reader:
        waiting = "" if result.backlog is None else f"{number(result.backlog.amount)} {result.backlog.unit} wait; "
        return text(f"{result.poller}: {waiting}only the poller itself may read this source.")
    if not result.events:
        held = "" if result.horizon is None else f"; held back by {holders(result.horizon)}"
        return text(f"{result.poller}: nothing waits{held}.")
    blocks = [_event(event, width) for event in result.events]
    more = "; more wait behind them" if result.more else ""
    return stacked(*blocks, text(f"{result.poller}: {len(result.events)} event(s) would be delivered{more}."))


def _event(event: Mapping[str, Any], width: int) -> Text:
    line = text(f"{event['op']} {position(event['cursor'], event['pk'])}  {value(event['after'] or {})}")
    line.truncate(width, overflow="ellipsis")
    line.no_wrap = True
    return line
