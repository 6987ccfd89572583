"""What a command's result looks like to people."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from azure_functions_db.cli import words
from azure_functions_db.cli.changes import Change
from azure_functions_db.cli.examination import Examination, Examinations
from azure_functions_db.cli.filling import Filled
from azure_functions_db.cli.inspect import Inspected
from azure_functions_db.cli.plain import jsonable
from azure_functions_db.cli.quarantine import Dropped, Listed, Shown
from azure_functions_db.cli.replay import Replayed
from azure_functions_db.cli.standing import LeaseStanding, Standing, Status
from azure_functions_db.cli.tail import Tail
from azure_functions_db.cli.verification import Verified
from azure_functions_db.core.serializers import json_safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import RenderableType

    from azure_functions_db.core.types import QuarantinedRow

_ENDLESS = 10_000


@singledispatch
def screen(result: Any, width: int) -> RenderableType:  # noqa: ARG001 - others need the width
    """Return what to draw for a result in a terminal of this width."""
    return text(str(result), lines=True)


@screen.register(Status)
def _status(result: Status, width: int) -> RenderableType:
    if not result.pollers:
        return Text("There are no pollers here.")
    table = _status_table(result.pollers)
    if Console(width=_ENDLESS, markup=False).measure(table).maximum > width:
        return Group(*map(_status_block, result.pollers))
    problems = [_problem(standing.poller, text) for standing in result.pollers for text in standing.problems]
    return Group(table, *problems)


def _status_table(standings: Sequence[Standing]) -> Table:
    table = grid("poller", "position", "lag", "waiting", "rate", "last success", "lease", "quarantined", "held back by")
    for standing in standings:
        table.add_row(text(standing.poller, "bold"), *(text(value) for _, value in _status_facts(standing)))
    return table


def _status_block(standing: Standing) -> RenderableType:
    facts = [(name, text(told)) for name, told in _status_facts(standing) if told != words.NONE]
    facts += [("problem", text(problem, "red")) for problem in standing.problems]
    return Group(text(standing.poller, "bold"), Padding(pairs(facts), (0, 0, 1, 2)))


def _status_facts(standing: Standing) -> list[tuple[str, str]]:
    waiting = words.number(standing.waiting_rows) + ("+" if standing.waiting_is_more else "")
    # What could not be looked at may well have been taken.
    lease = words.NONE if standing.lease is None and standing.problems else _lease(standing.lease)
    return [
        ("position", words.position(standing.cursor, standing.key)),
        ("lag", words.duration(standing.lag_seconds)),
        ("waiting", f"{waiting} rows" if standing.waiting_rows is not None else words.NONE),
        ("rate", words.rate(standing.rows_per_second)),
        ("last success", words.ago(standing.last_success_age_seconds)),
        ("lease", lease),
        ("quarantined", words.number(standing.quarantined)),
        ("held back by", words.holders(standing.horizon)),
    ]


def _lease(lease: LeaseStanding | None) -> str:
    if lease is None:
        return "never taken"
    if lease.alive:
        return f"{lease.owner} #{lease.token}, for {words.duration(lease.age_seconds)}"
    return f"free, last #{lease.token}"


_GRADES = {"ok": ("ok", "green"), "note": ("note", "cyan"), "warning": ("WARN", "yellow"), "error": ("FAIL", "red")}


@screen.register(Examinations)
def _examinations(result: Examinations, width: int) -> RenderableType:  # noqa: ARG001 - see screen
    if not result.pollers:
        return Text("There are no pollers here.")
    return Group(*map(_examination, result.pollers))


def _examination(examination: Examination) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in examination.findings:
        mark, style = _GRADES[finding.grade]
        told = text(finding.text, lines=True)
        if finding.remedy:
            told.append_text(text(f"\n→ {finding.remedy}", lines=True))
        table.add_row(text(mark, style), text(finding.check), told)
    return Group(text(examination.poller, "bold"), Padding(table, (0, 0, 1, 2)))


@screen.register(Inspected)
def _inspected(result: Inspected, width: int) -> RenderableType:  # noqa: ARG001 - see screen
    if result.problem is not None:
        return Group(_problem(result.poller, result.problem), text(result.raw or "", lines=True))
    return _tree(result.document)


@screen.register(Change)
def _change(result: Change, width: int) -> RenderableType:
    if result.done:
        kept = "there was no document before" if result.backup is None else f"the one before is in {result.backup}"
        return text(f"Done: {result.action} of {result.poller}; {kept}.", "green")
    before, after = _flat(result.before or {}), _flat(result.after)
    names = list(dict.fromkeys([*before, *after]))
    both = [(name, before.get(name, words.NONE), after.get(name, words.NONE)) for name in names]
    rows = [row for row in both if row[1:] != (words.NONE, words.NONE)]
    if width < 100:
        return Group(text(f"{result.poller}: {result.action}", "bold"), *map(_change_block, rows))
    table = grid("", "before", "after", title=text(f"{result.poller}: {result.action}"))
    for name, old, new in rows:
        table.add_row(text(name), text(old), text(new, "" if old == new else "yellow"))
    return table


def _change_block(row: tuple[str, str, str]) -> RenderableType:
    name, old, new = row
    if old == new:
        return text(f"  {name}: {old}")
    return Group(text(f"  {name}"), text(f"    - {old}", "red"), text(f"    + {new}", "green"))


@screen.register(Tail)
def _tail(result: Tail, width: int) -> RenderableType:
    if not result.events:
        held = "" if result.horizon is None else f"; held back by {words.holders(result.horizon)}"
        return text(f"{result.poller}: nothing waits{held}.")
    blocks = [_event(event, width) for event in result.events]
    more = "; more wait behind them" if result.more else ""
    return Group(*blocks, text(f"{result.poller}: {len(result.events)} event(s) would be delivered{more}."))


def _event(event: Mapping[str, Any], width: int) -> Text:
    head = f"{event['op']} {words.position(event['cursor'], event['pk'])}"
    row = words.value(event["after"] or {})
    line = text(f"{head}  {row}")
    line.truncate(width, overflow="ellipsis")
    line.no_wrap = True
    return line


@screen.register(Listed)
def _listed(result: Listed, width: int) -> RenderableType:
    if not result.rows:
        return Text("Nothing is in quarantine.")
    if width < 100:
        return Group(*map(_quarantined_block, result.rows))
    table = grid("id", "poller", "key", "error", "attempts", "since")
    for row in result.rows:
        table.add_row(*(text(told) for told in _quarantined_facts(row)))
    return table


def _quarantined_block(row: QuarantinedRow) -> RenderableType:
    event_id, *facts = _quarantined_facts(row)
    told = pairs(zip(("poller", "key", "error", "attempts", "since"), map(text, facts), strict=True))
    return Group(text(event_id, "bold"), Padding(told, (0, 0, 0, 2)))


def _quarantined_facts(row: QuarantinedRow) -> tuple[str, ...]:
    key = " ".join(f"{name}={words.value(part)}" for name, part in row.event.get("pk", {}).items())
    error = f"{row.error_type}: {row.error}"
    return row.event_id[:12], row.poller_name, key, error, str(row.attempts), words.value(row.quarantined_at)


@screen.register(Shown)
def _shown(result: Shown, width: int) -> RenderableType:  # noqa: ARG001 - see screen
    return _tree(jsonable(result.row))


@screen.register(Replayed)
def _replayed(result: Replayed, width: int) -> RenderableType:  # noqa: ARG001 - see screen
    failures = [text(f"{event_id[:12]}: {reason}", "red") for event_id, reason in result.failed.items()]
    return Group(*failures, text(f"{len(result.handled)} handled, {len(result.failed)} failed again."))


@screen.register(Dropped)
def _dropped(result: Dropped, width: int) -> RenderableType:  # noqa: ARG001 - see screen
    kept = "" if result.backup is None else f"; they are kept in {result.backup}"
    return text(f"{len(result.rows)} row(s) dropped{kept}.")


@screen.register(Filled)
def _filled(result: Filled, width: int) -> RenderableType:  # noqa: ARG001 - see screen
    done = f"{words.number(result.rows)} row(s) in {words.duration(result.seconds)}"
    return text(f"{result.poller}: the stretch of {result.live_poller} is complete; {done}.")


@screen.register(Verified)
def _verified(result: Verified, width: int) -> RenderableType:  # noqa: ARG001 - see screen
    rows = [text(f"missing: {words.position(row.cursor, row.key)}", "red") for row in result.missing]
    told = f"{words.number(len(result.missing))} missing of {words.number(result.checked)}"
    aside = f", {words.number(result.quarantined)} in quarantine" if result.quarantined else ""
    return Group(*rows, text(told + (", now replayed" if result.replayed else "") + aside))


def _tree(document: Any) -> RenderableType:
    return pairs((name, text(told)) for name, told in _flat(document or {}).items())


def _flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return a document's values by their paths."""
    told: dict[str, str] = {}
    for name, inner in document.items():
        path = f"{prefix}{name}"
        if isinstance(inner, dict) and inner:
            told |= _flat(inner, f"{path}.")
        else:
            told[path] = words.value(json_safe(inner)) if inner != {} else words.NONE
    return told


def _problem(poller: str, problem: str) -> Text:
    return text(f"{poller}: {problem}", "red")


def grid(*headings: str, title: Text | None = None) -> Table:
    """Return an empty table in the one style there is."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", header_style="dim", padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def pairs(facts: Iterable[tuple[str, Text]]) -> Table:
    """Return names and values, one pair a line."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, told in facts:
        table.add_row(text(name), told)
    return table


def text(content: str, style: str = "", *, lines: bool = False) -> Text:
    """Return a text as it is: no markup and no control character in it counts, no secret in it shows."""
    return Text(words.shown(content, lines=lines), style=style)
