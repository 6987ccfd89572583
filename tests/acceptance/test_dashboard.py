"""The dashboard in the real runtime, looked at with a real browser through a front like the host's."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from playwright.sync_api import expect
from sqlalchemy import create_engine, text

from tests.acceptance.host import FunctionApp, http, timer
from tests.integration.dashboard.conftest import browser, page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

__all__ = ["browser", "page"]

APP = Path(__file__).parent / "apps" / "dashboard"
KEY = "a-key-of-the-function"
_ROUTE = "/api/dashboard"


@contextmanager
def fronted(app: FunctionApp) -> Iterator[str]:
    """Pass requests on to the app as the host does: by route, behind a key where the function wants one."""

    class Front(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            query, path = dict(parse_qsl(asked.query)), asked.path.removeprefix(_ROUTE).strip("/")
            is_asset = path.startswith("assets/")
            if not is_asset and KEY not in {query.get("code"), self.headers.get("x-functions-key")}:
                self.send_error(401)
                return
            function = "azfdb_dashboard_assets" if is_asset else "azfdb_dashboard"
            route = {"name": path.removeprefix("assets/")} if is_asset else {"path": unquote(path)}
            invoked = app.invoke(function, req=http(query=query, route=route, headers=dict(self.headers)))
            self._send(invoked.returned)

        def _send(self, returned: dict[str, Any]) -> None:
            body = str(returned["body"]).encode()
            self.send_response(int(returned["status_code"]))
            for name, value in returned["headers"].items():
                if name.lower() != "content-length":
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Front) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{_ROUTE}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)"))
        connection.execute(text("INSERT INTO orders (note) VALUES ('a')"))
    engine.dispose()
    return {"SHOP_DB": url, "STATE": str(tmp_path / "state")}


def test_the_runtime_serves_the_dashboard_to_whoever_has_the_key(settings: dict[str, str], page: Page) -> None:
    with FunctionApp(APP, settings) as app, fronted(app) as address:
        bindings = {name: told[0] for name, told in app.functions.items()}
        assert bindings["azfdb_dashboard"]["authLevel"] == "FUNCTION"
        assert app.invoke("copy_orders", timer=timer()).ok
        page.goto(f"{address}?code={KEY}")
        expect(page.locator("tr[data-name=copy_orders] .badge")).to_have_text("idle")
        page.get_by_role("link", name="copy_orders").click()
        expect(page.locator(".uplot")).to_have_count(4)
        assert KEY not in page.request.get(f"{address}?code={KEY}").text()
