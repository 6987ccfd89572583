"""What an operator can do from the dashboard: the same operations as on the command line, rehearsed first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.operations import quarantine, reset

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from azure_functions_db.operations.pollers import Poller, Pollers
    from azure_functions_db.operations.quarantine import Entry
    from azure_functions_db.operations.reset import PlannedChange

    Form = Mapping[str, str]


class Refused(Exception):  # noqa: N818 - an answer, not a failure
    """A request that is not granted, with the HTTP status that says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Told:
    """What an act did, or would do: then it is to be confirmed by typing a word."""

    text: str
    done: bool
    confirm: str | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that can be done to a poller."""

    name: str
    run: Callable[[Pollers, str, Form, str, Path], Told]


def _pause(pollers: Pollers, name: str, form: Form, who: str, _backups: Path) -> Told:
    reset.pause([pollers.one(name)], who, form.get("why") or None)
    return Told("paused: no instance ticks until it is resumed", done=True)


def _resume(pollers: Pollers, name: str, _form: Form, _who: str, _backups: Path) -> Told:
    reset.resume([pollers.one(name)])
    return Told("resumed: the next tick goes on", done=True)


def _replay(pollers: Pollers, name: str, form: Form, _who: str, _backups: Path) -> Told:
    entries = _chosen(pollers, name, form)
    if not _is_confirmed(form, name):
        return Told(f"{len(entries)} row(s) go to the handler again", done=False, confirm=name)
    report = quarantine.replay(entries)
    return Told(f"{len(report.handled)} handled, {len(report.failed)} failed again", done=True)


def _drop(pollers: Pollers, name: str, form: Form, _who: str, backups: Path) -> Told:
    entries = _chosen(pollers, name, form)
    if not _is_confirmed(form, name):
        return Told(f"{len(entries)} row(s) leave the quarantine and are never delivered", done=False, confirm=name)
    backup = quarantine.drop(entries, backups)
    return Told(f"{len(entries)} row(s) dropped; a copy is in {backup}", done=True)


def _changing(plan: Callable[..., PlannedChange]) -> Callable[[Pollers, str, Form, str, Path], Told]:
    def run(pollers: Pollers, name: str, form: Form, _who: str, backups: Path) -> Told:
        planned = plan(pollers.one(name), force=form.get("force") == "yes")
        if not _is_confirmed(form, name):
            report = planned.dry_run()
            return Told(f"{report.action}: {_rows(report)}", done=False, confirm=name)
        report = planned.apply(backups)
        return Told(f"{report.action}: {_rows(report)}; the state of before is in {report.backup}", done=True)

    return run


def _rows(report: Any) -> str:
    again = "an unknown number of" if report.rows_again is None else f"{report.rows_again:,}"
    skipped = "an unknown number" if report.rows_skipped is None else f"{report.rows_skipped:,}"
    return f"{again} row(s) come again, {skipped} are skipped"


def _break(poller: Poller, *, force: bool) -> PlannedChange:
    return reset.break_lease(poller, force=force)


def _chosen(pollers: Pollers, name: str, form: Form) -> list[Entry]:
    """Return the rows that a filter means; one without an error or an id means all."""
    ids = tuple(filter(None, [form.get("id", "")]))
    selection = quarantine.Selection(poller=name, ids=ids, error=form.get("error") or None)
    return quarantine.selected(quarantine.app_entries(pollers, name), selection)


def _is_confirmed(form: Form, word: str) -> bool:
    typed = form.get("confirm")
    if typed and typed != word:
        raise Refused(400, f"Type {word!r} to confirm")
    return typed == word


ACTS = {
    act.name: act
    for act in (
        Act("pause", _pause),
        Act("resume", _resume),
        Act("replay", _replay),
        Act("drop", _drop),
        Act("break-lease", _changing(_break)),
        Act("reset-to-beginning", _changing(reset.to_beginning)),
        Act("reset-to-end", _changing(reset.to_end)),
    )
}
