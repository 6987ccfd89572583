"""`azfdb status`: where all pollers stand."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from azure_functions_db.cli.drawing import (
    NONE,
    ago,
    duration,
    fits,
    grid,
    holders,
    indented,
    number,
    pairs,
    position,
    problem,
    rate,
    stacked,
    text,
)
from azure_functions_db.cli.options import AnyPoller, AsJson, Exit, Target, targeted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from azure_functions_db.operations.status import PollerStatus, Status

# How many looks a trend covers.
_LOOKS = 20
_BARS = "▁▂▃▄▅▆▇█"


Order = Literal["trouble", "name", "lag", "waiting", "age"]


@targeted
def status(
    target: Target,
    name: AnyPoller = None,
    max_lag: Annotated[
        float | None, typer.Option("--max-lag", metavar="SECONDS", min=0, help="A problem when further behind.")
    ] = None,
    max_age: Annotated[
        float | None,
        typer.Option("--max-age", metavar="SECONDS", min=0, help="A problem when its last success is older."),
    ] = None,
    max_failures: Annotated[
        int, typer.Option("--max-failures", metavar="N", min=0, help="How many failed ticks in a row are no problem.")
    ] = 0,
    sort: Annotated[Order, typer.Option("--sort", help="What comes first.")] = "trouble",
    unfold: Annotated[bool, typer.Option("--unfold", help="A line for each partition.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing it until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", help="With --watch: how often.", min=0.2)] = 2,
    as_json: AsJson = False,
) -> None:
    """Show where every poller stands, those with problems first.

    Condition, checkpoint, lag, rate over five minutes and time to catch up, last tick, last success, next tick,
    lease, quarantine and late-commit horizon. Exit code 1 when a poller has a problem: it fails, it is silent though
    its schedule is due, or it is beyond a limit given here.
    """
    from azure_functions_db.cli.drawing import show, show_live
    from azure_functions_db.operations.status import Limits, status_of

    pollers, limits = target.pollers(), Limits(max_lag, max_age, max_failures)

    def look() -> Status:
        chosen = pollers.with_others() if name is None else pollers.named(name)
        return status_of(chosen, dt.datetime.now(dt.UTC), limits, sort)

    screen = Screen(unfold=unfold or name is not None)
    if watch:
        show_live(look, screen.live, every, as_json=as_json)
        return
    present = look()
    show(present, screen.once, as_json=as_json)
    raise typer.Exit(Exit.FAILED if present.has_problems else Exit.OK)


class Screen:
    """Draws one status after the other, and how what waits has grown or shrunk in between."""

    def __init__(self, *, unfold: bool) -> None:
        self._unfold = unfold
        self._waited: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=_LOOKS))

    def once(self, result: Status, width: int) -> RenderableType:
        """Draw a single look."""
        if not result.pollers:
            return text("There are no pollers here.")
        problems = [problem(each.poller, each.text) for each in result.problems]
        lines = result.pollers if self._unfold else folded(result.pollers)
        table = self._table(lines)
        if not fits(table, width):
            return stacked(*map(self._block, lines))
        paused = [text(f"{each.poller}: {_paused(each)}", "yellow") for each in lines if each.paused is not None]
        facts = [text(f"{each.poller}: {reported}") for each in result.pollers if (reported := _reported(each))]
        return stacked(*problems, *paused, table, *facts)

    def live(self, result: Status, width: int) -> RenderableType:
        """Draw one of many looks, under the time at which it was taken."""
        for each in result.pollers if self._unfold else folded(result.pollers):
            self._waited[each.poller].append(each.waiting_rows or 0)
        wrong = f", {len(result.problems)} problem(s)" if result.problems else ""
        return stacked(text(f"{result.at:%Y-%m-%d %H:%M:%S}Z{wrong}", "bold"), self.once(result, width))

    def _table(self, pollers: Sequence[PollerStatus]) -> Table:
        lines = [dict(self._facts(each)) for each in pollers]
        names = [name for name in lines[0] if any(line[name] != NONE for line in lines)]
        table = grid("poller", *names)
        for each, line in zip(pollers, lines, strict=True):
            facts = [text(line[name], _style(each) if name == "is" else "") for name in names]
            table.add_row(text(each.poller, "bold"), *facts)
        return table

    def _block(self, poller: PollerStatus) -> RenderableType:
        facts = [(name, text(content)) for name, content in self._facts(poller) if content != NONE]
        facts += [("reports", text(reported))] if (reported := _reported(poller)) else []
        facts[:1] = facts[:1] if poller.paused is None else [("is", text(_paused(poller), "yellow"))]
        wrong = [("problem", text(message, "red")) for message in poller.problems]
        return stacked(text(poller.poller, "bold"), indented(pairs([*wrong, *facts]), below=1))

    def _facts(self, poller: PollerStatus) -> list[tuple[str, str]]:
        trend = [("trend", sparkline(self._waited[poller.poller]))] if self._waited else []
        return [
            ("is", poller.condition),
            ("position", position(poller.cursor, poller.key)),
            ("lag", duration(poller.lag_seconds)),
            ("waiting", _waiting(poller)),
            *trend,
            (f"rate ({duration(poller.rate_window_seconds)})", rate(poller.rows_per_second)),
            ("catches up in", duration(poller.catch_up_seconds)),
            ("last tick", ago(poller.last_tick_age_seconds)),
            ("last success", ago(poller.last_success_age_seconds)),
            ("next tick", NONE if poller.next_expected is None else f"{poller.next_expected:%H:%M:%S}Z"),
            ("lease", _lease(poller)),
            ("quarantined", number(poller.quarantined)),
            ("held back by", holders(poller.horizon)),
        ]


def folded(pollers: Sequence[PollerStatus]) -> list[PollerStatus]:
    """Return the pollers with the partitions of each function as one; those with problems follow by themselves."""
    groups: dict[str, list[PollerStatus]] = {}
    for each in pollers:
        groups.setdefault(each.partition_of or each.poller, []).append(each)
    lines: list[PollerStatus] = []
    for name, members in groups.items():
        if len(members) == 1:
            lines += members
        else:
            lines += [_together(name, members), *(each for each in members if each.problems)]
    return lines


def _together(name: str, members: Sequence[PollerStatus]) -> PollerStatus:
    """Return what is to be known of several partitions at once: sums, and the worst of what cannot be added."""
    worst = members[0] if members[0].problems else max(members, key=lambda each: each.lag_seconds or 0)
    working = sum(each.lease is not None and each.lease.alive for each in members)
    return replace(
        worst,
        poller=f"{name} ({len(members)} partitions, {working} at work)",
        cursor=None,
        lag_seconds=_largest(each.lag_seconds for each in members),
        waiting_rows=_sum(each.waiting_rows for each in members),
        waiting_is_more=any(each.waiting_is_more for each in members),
        rows_per_second=_sum(each.rows_per_second for each in members),
        catch_up_seconds=_largest(each.catch_up_seconds for each in members),
        last_tick_age_seconds=_largest(each.last_tick_age_seconds for each in members),
        last_success_age_seconds=_largest(each.last_success_age_seconds for each in members),
        lease=None,
        quarantined=_sum(each.quarantined for each in members),
        facts={},
        problems=[],
    )


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _sum(values: Iterable[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def sparkline(values: Sequence[int]) -> str:
    """Return numbers as bars one beside the other, the last one now."""
    top = max(values, default=0)
    return "".join(_BARS[round(value / top * (len(_BARS) - 1)) if top else 0] for value in values)


def _style(poller: PollerStatus) -> str:
    if poller.problems:
        return "red"
    return {"paused": "yellow", "working": "green", "idle": "green"}.get(poller.condition, "")


def _paused(poller: PollerStatus) -> str:
    """Return who has paused a poller, when and why."""
    pause = poller.paused
    if pause is None:
        return NONE
    why = f": {pause.why}" if pause.why else ""
    return f"paused by {pause.by} at {pause.at:%Y-%m-%d %H:%M}Z{why}"


def _waiting(poller: PollerStatus) -> str:
    if poller.waiting_rows is None:
        return NONE
    return f"{number(poller.waiting_rows)}{'+' if poller.waiting_is_more else ''} {poller.waiting_unit}"


def _reported(poller: PollerStatus) -> str:
    """Return what the source reports of itself, on a line."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in poller.facts.items())


def _lease(poller: PollerStatus) -> str:
    lease = poller.lease
    if lease is None:
        # What could not be looked at may well have been taken.
        return "never taken" if poller.condition == "new" else NONE
    if lease.alive:
        beat = duration(lease.heartbeat_age_seconds)
        return f"{lease.owner} #{lease.token}, for {duration(lease.age_seconds)}, heartbeat {beat} ago"
    return f"free, last #{lease.token}"
