"""The dashboard as functions of an app."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import azure.functions as func  # which the worker looks up to read the functions' annotations

from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from azure_functions_db.dashboard.site import Permission, Request, Site
    from azure_functions_db.operations.pollers import Pollers

# Who App Service has let in, where it authenticates users.
_PRINCIPAL = "x-ms-client-principal-name"
_LONGEST_NAME = 100


def dashboard_blueprint(
    *,
    route: str = "dashboard",
    auth_level: func.AuthLevel | None = None,
    allow_changes: bool | Callable[[func.HttpRequest], str | bool | None] = False,
    pollers: Callable[[], Pollers] | None = None,
    route_prefix: str = "api",
    backups: str | Path | None = None,
) -> func.Blueprint:
    """Return functions that show every poller of this app in a browser: ``app.register_functions(...)``.

    The host's key is asked for (``AuthLevel.FUNCTION``). Nothing can be changed unless ``allow_changes`` is a callable
    that is given each request and returns who is asking where they may, or is True, which needs ``AuthLevel.ADMIN``.
    ``route_prefix`` is that of ``host.json``; ``backups`` the folder for the states that a reset replaces.
    """
    level = func.AuthLevel.FUNCTION if auth_level is None else auth_level
    permission = _permission(allow_changes, is_admin=level is func.AuthLevel.ADMIN)
    base = "/" + "/".join(filter(None, [route_prefix.strip("/"), route.strip("/")]))
    served = _Served(base, permission, pollers, Path(backups or Path(tempfile.gettempdir()) / "azfdb-backups"))
    blueprint = func.Blueprint()  # type: ignore[no-untyped-call]  # of the SDK

    # Style and script are the same for everybody, and a browser asks for them without the key.
    @blueprint.function_name("azfdb_dashboard_assets")
    @blueprint.route(route=f"{route}/assets/{{name}}", methods=["GET"], auth_level=func.AuthLevel.ANONYMOUS)
    def azfdb_dashboard_assets(req: func.HttpRequest) -> func.HttpResponse:
        return served.answer(req, f"assets/{req.route_params.get('name', '')}")

    @blueprint.function_name("azfdb_dashboard")
    @blueprint.route(route=f"{route}/{{*path}}", methods=["GET", "POST"], auth_level=level)
    def azfdb_dashboard(req: func.HttpRequest) -> func.HttpResponse:
        return served.answer(req, req.route_params.get("path") or "")

    return blueprint


class _Served:
    """The site behind the functions, made when the first request comes."""

    def __init__(
        self, base: str, permission: Permission | None, pollers: Callable[[], Pollers] | None, backups: Path
    ) -> None:
        self._base = base
        self._permission = permission
        self._pollers = pollers
        self._backups = backups
        self._made: Site | None = None

    def answer(self, req: func.HttpRequest, path: str) -> func.HttpResponse:
        response = self._site.answer(_request(req, path))
        return func.HttpResponse(
            response.body, status_code=response.status, headers=dict(response.headers), mimetype=response.content_type
        )

    @property
    def _site(self) -> Site:
        if self._made is None:
            from azure_functions_db.dashboard.board import Board
            from azure_functions_db.dashboard.site import Site
            from azure_functions_db.operations.pollers import Pollers

            board = Board(self._pollers or Pollers.in_process)
            self._made = Site(board, base=self._base, permission=self._permission, backups=self._backups)
        return self._made


def _request(req: func.HttpRequest, path: str) -> Request:
    from azure_functions_db.dashboard.site import Request

    headers = {name.lower(): value for name, value in req.headers.items()}
    return Request(req.method, path, dict(req.params), headers, req.get_body(), req)


def _permission(
    allow_changes: bool | Callable[[func.HttpRequest], str | bool | None],
    *,
    is_admin: bool,
) -> Permission | None:
    if allow_changes is False:
        return None
    if allow_changes is True:
        if not is_admin:
            raise ConfigurationError(
                "allow_changes=True needs auth_level=func.AuthLevel.ADMIN; "
                "or give a callable that decides for each request",
                setting="allow_changes",
            )
        return lambda request: _name_in(request) or "the holder of an admin key"
    if not callable(allow_changes):
        raise ConfigurationError("allow_changes= is True, False or a callable", setting="allow_changes")
    decide = allow_changes

    def permitted(request: Request) -> str | None:
        decided: Any = decide(request.host_request)
        if decided is True:
            return _name_in(request) or "somebody"
        return str(decided)[:_LONGEST_NAME] if decided else None

    return permitted


def _name_in(request: Request) -> str | None:
    name = "".join(char for char in request.headers.get(_PRINCIPAL, "") if char.isprintable())
    return name[:_LONGEST_NAME] or None
