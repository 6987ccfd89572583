"""The dashboard for oneself: on the loopback address, behind a token that only its URL has."""

from __future__ import annotations

import hmac
import secrets
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from azure_functions_db.dashboard.site import Request

if TYPE_CHECKING:
    from azure_functions_db.dashboard.site import Site

_COOKIE = "azfdb"
_LONGEST_BODY = 10_000


class DashboardServer(ThreadingHTTPServer):
    """Serves a site to whoever came by its URL first; the token in it opens the door once, then a cookie does."""

    daemon_threads = True

    def __init__(self, site: Site, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.site = site
        self.token: str | None = secrets.token_urlsafe(32)
        self.session = secrets.token_urlsafe(32)

    @property
    def url(self) -> str:
        """Where to look, once."""
        return f"http://127.0.0.1:{self.server_port}/?token={self.token}"

    def opens(self, token: str) -> bool:
        """Tell whether the token is the one of the URL; it is good for one visit."""
        if self.token is None or not hmac.compare_digest(token, self.token):
            return False
        self.token = None
        return True


class _Handler(BaseHTTPRequestHandler):
    server: DashboardServer
    server_version = "azfdb"
    sys_version = ""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, *_: object) -> None:
        """Keep quiet: the URL has the token in it."""

    def _serve(self) -> None:
        asked = urlsplit(self.path)
        query = dict(parse_qsl(asked.query))
        # A page of elsewhere may have a name that leads to this address.
        if self.headers.get("Host") != f"127.0.0.1:{self.server.server_port}":
            self._refuse("This is not the address of the dashboard")
        elif self.command == "GET" and self.server.opens(query.get("token", "")):
            self._let_in()
        elif not self._is_let_in():
            self._refuse("Open the URL that azfdb dashboard has printed; it is good for one visit")
        else:
            self._answer(asked.path, query)

    def _let_in(self) -> None:
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Set-Cookie", f"{_COOKIE}={self.server.session}; HttpOnly; SameSite=Strict; Path=/")
        self.send_header("Location", "/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _is_let_in(self) -> bool:
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(_COOKIE)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value, self.server.session)

    def _refuse(self, text: str) -> None:
        body = text.encode()
        self.send_response(HTTPStatus.FORBIDDEN)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, path: str, query: dict[str, str]) -> None:
        length = self.headers.get("Content-Length", "0")
        body = self.rfile.read(min(int(length), _LONGEST_BODY)) if length.isdecimal() else b""
        headers = {name.lower(): value for name, value in self.headers.items()}
        response = self.server.site.answer(Request(self.command, path, query, headers, body))
        self.send_response(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        self.wfile.write(response.body)
