"""The dashboard's pages, API and acts, whoever serves them.

Nothing is fetched from elsewhere, and no text of others becomes markup: templates escape every value, the content
security policy allows this site's own script and style alone. Acts need a header that a form of another site cannot
send, and come from this very site where the browser says where they come from.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from azure_functions_db.core.errors import Code, ConfigurationError, DbError
from azure_functions_db.core.secrets import masked_words
from azure_functions_db.core.serializers import parsed_json
from azure_functions_db.dashboard.board import FILTERS, PollerView, overview
from azure_functions_db.operations import quarantine, reset
from azure_functions_db.operations.pollers import UnknownPollerError
from azure_functions_db.operations.quarantine import Selection, selected
from azure_functions_db.operations.reports import jsonable, without_secrets

if TYPE_CHECKING:
    from azure_functions_db.dashboard.board import Board
    from azure_functions_db.operations.pollers import Poller, Pollers
    from azure_functions_db.operations.quarantine import Entry
    from azure_functions_db.operations.reset import PlannedChange

    Form = Mapping[str, str]

logger = logging.getLogger("azure_functions_db")

Permission = Callable[["Request"], "str | None"]
"""Tells who is asking where they may change something, None where they may not."""

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_ASSETS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "dashboard.js": ("text/javascript", ("uplot.min.js", "dashboard.js")),
    "dashboard.css": ("text/css", ("uplot.min.css", "dashboard.css")),
}
ACT_HEADER = "X-Azfdb-Act"
# A body is a form of a few short fields.
_LONGEST_BODY = 10_000


@dataclass(frozen=True, slots=True)
class Request:
    """What a browser asks for; header names are in lower case."""

    method: str
    path: str
    """Below the dashboard's own route."""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    host_request: Any = field(default=None, repr=False)
    """The request as the host gave it, for those who decide who may change something."""


@dataclass(frozen=True, slots=True)
class Response:
    """What the browser gets."""

    status: int
    body: bytes
    content_type: str
    headers: Mapping[str, str] = field(default_factory=lambda: _HEADERS)


class Site:
    """Answers requests; who may change something is decided for each."""

    def __init__(
        self,
        board: Board,
        *,
        base: str,
        permission: Permission | None = None,
        backups: Path,
        refresh_seconds: float = 5.0,
    ) -> None:
        self._board = board
        self._every = refresh_seconds
        self._base = base.rstrip("/")
        self._permission = permission
        self._backups = backups

    def prepare(self) -> None:
        """Refuse now what every page would fail for."""
        _ = self._templates

    def answer(self, request: Request) -> Response:
        """Return the answer; what goes wrong is one sentence, without secrets."""
        try:
            return self._answered(request)
        except Refused as refused:
            return self._failed(request, refused.status, str(refused))
        except UnknownPollerError as error:
            return self._failed(request, 404, str(error))
        except DbError as error:
            return self._failed(request, 503, masked_words(error))
        except Exception:
            logger.exception("The dashboard could not answer %s", request.path)
            return self._failed(request, 500, "The dashboard could not answer; the log says why")

    def _answered(self, request: Request) -> Response:
        parts = [unquote(part) for part in request.path.strip("/").split("/") if part]
        match request.method, parts:
            case "GET", ["assets", name] if name in _ASSETS:
                return self._asset(name)
            case "GET", []:
                return self._overview(request)
            case "GET", ["pollers", name]:
                return self._poller(request, name)
            case "GET", ["pollers", name, "quarantine", event_id]:
                return self._entry(request, name, event_id)
            case "GET", ["api", "pollers"]:
                return _json(200, without_secrets(jsonable(self._board.status())))
            case "GET", ["api", "pollers", name]:
                return _json(200, without_secrets(jsonable(self._board.one(name))))
            case "POST", ["api", "pollers", name, act] if act in ACTS:
                return self._act(request, name, ACTS[act])
            case "GET" | "POST", _:
                raise Refused(404, "There is no such page")
            case _:
                raise Refused(405, "Only GET and POST are answered")

    def _overview(self, request: Request) -> Response:
        status = self._board.status()
        paces = {each.poller: self._board.pace(each) for each in status.pollers}
        return self._page(request, "pollers.html", view=overview(status), paces=paces)

    def _poller(self, request: Request, name: str) -> Response:
        status = self._board.one(name)
        error = request.query.get("error") or None
        entries = self._board.entries(name)
        all_of_them = self._board.status()
        view = PollerView(
            status, all_of_them.at, self._board.findings(name), entries, error, pace=self._board.pace(status)
        )
        return self._page(request, "poller.html", view=view, pollers=all_of_them.pollers)

    def _entry(self, request: Request, name: str, event_id: str) -> Response:
        entries = selected(self._board.entries(name), Selection(poller=name, ids=(event_id,)))
        if not entries:
            raise Refused(404, "That row is no longer in quarantine")
        row = without_secrets(jsonable(entries[0].row))
        return self._page(request, "entry.html", poller=name, row=row, event=json.dumps(row["event"], indent=2))

    # Acts.

    def _act(self, request: Request, name: str, act: Act) -> Response:
        who = self._allowed(request)
        _check_origin(request)
        told = act.run(self._board.pollers, name, _form(request), who, self._backups)
        if told.done:
            self._board.changed()
            logger.warning("%s: %s by %s from the dashboard: %s", name, act.name, who, told.text)
        return _json(200, without_secrets(jsonable(told)))

    def _allowed(self, request: Request) -> str:
        if self._permission is None:
            raise Refused(403, "This dashboard is for looking only: see allow_changes=")
        who = self._permission(request)
        if not who:
            raise Refused(403, "You may not change anything here")
        return who

    def _may_change(self, request: Request) -> bool:
        return self._permission is not None and bool(self._permission(request))

    # Drawing.

    def _page(self, request: Request, template: str, **values: Any) -> Response:
        return self._drawn(200, template, at=self._board.status().at, may_change=self._may_change(request), **values)

    def _drawn(self, status: int, template: str, **values: Any) -> Response:
        html = self._templates.get_template(template).render(base=self._base, every=self._every, **values)
        # What is no text, such as half of a surrogate pair, is shown as a question mark.
        return Response(status, html.encode(errors="replace"), "text/html; charset=utf-8")

    def _failed(self, request: Request, status: int, text: str) -> Response:
        if "/api/" in f"/{request.path}":
            return _json(status, {"error": text})
        return self._drawn(status, "failed.html", code=status, text=text, at=None, may_change=False)

    def _asset(self, name: str) -> Response:
        kind, parts = _ASSETS[name]
        body = b"\n".join(files(__package__).joinpath("assets", part).read_bytes() for part in parts)
        return Response(200, body, f"{kind}; charset=utf-8", {**_HEADERS, "Cache-Control": "max-age=3600"})

    @cached_property
    def _templates(self) -> Any:
        try:
            from jinja2 import Environment, PackageLoader, StrictUndefined
        except ImportError:
            raise ConfigurationError(
                'The dashboard needs: pip install "azure-functions-db[dashboard]"', code=Code.PACKAGE_MISSING
            ) from None
        environment = Environment(
            loader=PackageLoader("azure_functions_db.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters.update(FILTERS)
        return environment


def _json(status: int, value: Any) -> Response:
    return Response(status, json.dumps(value).encode(), "application/json")


def _form(request: Request) -> dict[str, str]:
    try:
        form = parsed_json(request.body[:_LONGEST_BODY] or b"{}")
    except ValueError:
        form = None
    if not isinstance(form, dict) or not all(isinstance(value, str) for value in form.values()):
        raise Refused(400, "An act is told as a JSON object of texts")
    return form


def _check_origin(request: Request) -> None:
    """Refuse what another site has made a browser send."""
    if ACT_HEADER.lower() not in request.headers:
        raise Refused(403, f"An act needs the header {ACT_HEADER}")
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
    host = request.headers.get("x-forwarded-host") or request.headers.get("host", "")
    if site != "same-origin" or (origin is not None and origin.partition("://")[2] != host):
        raise Refused(403, "This act comes from another site")


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
