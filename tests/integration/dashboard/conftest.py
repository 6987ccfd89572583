"""A dashboard over real pollers, and a real browser to look at it."""

from __future__ import annotations

import shutil
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import azure.functions as func
import pytest
from playwright.sync_api import sync_playwright
from sqlalchemy import create_engine, text

from azure_functions_db import DbBindings, FileQuarantine, MemoryStateStore, RowChange, SqlAlchemySource
from azure_functions_db.dashboard.board import Board
from azure_functions_db.dashboard.server import DashboardServer
from azure_functions_db.dashboard.site import Site
from azure_functions_db.operations.pollers import Pollers, app_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, ConsoleMessage, Page

    from azure_functions_db.dashboard.site import Permission


@dataclass
class Shop:
    """A database with orders, and pollers that follow them."""

    folder: Path
    app: func.FunctionApp = field(default_factory=func.FunctionApp)
    store: MemoryStateStore = field(default_factory=MemoryStateStore)
    handlers: dict[str, Callable[[list[RowChange]], None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.url = f"sqlite:///{self.folder / 'shop.db'}"
        self.engine = create_engine(self.url)
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)"))
        self._db = DbBindings()

    def order(self, *notes: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(text("INSERT INTO orders (note) VALUES (:note)"), [{"note": note} for note in notes])

    def follow(self, name: str, handler: Callable[[list[RowChange]], None], **options: Any) -> None:
        source = SqlAlchemySource(url=self.url, table="orders", cursor_column="id", pk_columns=["id"])

        def function(timer: func.TimerRequest, events: list[RowChange]) -> None:
            self.handlers[name](events)

        self.handlers[name] = handler
        function.__name__ = name
        triggered = self._db.trigger(arg_name="events", source=source, checkpoint_store=self.store, **options)(function)
        self.app.function_name(name)(self.app.timer_trigger(schedule="0 0 0 * * *", arg_name="timer")(triggered))

    @property
    def pollers(self) -> Pollers:
        return Pollers.of_app(app_of(self.app))

    def tick(self, name: str) -> None:
        trigger = self.pollers.one(name).defined.trigger
        trigger.run(timer=None, handler=self.handlers[name])

    def quarantine(self) -> FileQuarantine:
        return FileQuarantine(self.folder / "quarantine")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    opened = Shop(tmp_path)
    yield opened
    opened.engine.dispose()


@dataclass
class Dashboard:
    """A dashboard that is served on this machine."""

    server: DashboardServer

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def served(shop: Shop, permission: Permission | None = None) -> Iterator[Dashboard]:
    pollers = shop.pollers
    board = Board(lambda: pollers)
    site = Site(board, base="", permission=permission, backups=shop.folder / "backups", refresh_seconds=0.2)
    with DashboardServer(site) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield Dashboard(server)
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")  # while it lives, its thread has a loop that no other test could run beside
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program is not None, "Chromium is not installed: run `make test`"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of the browser that fails the test for whatever it complains about."""
    complaints: list[str] = []
    opened = browser.new_page()

    def notice(message: ConsoleMessage) -> None:
        # A refusal is an answer, and a dashboard that is gone is the end of a test.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            complaints.append(message.text)

    opened.on("console", notice)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
    yield opened
    opened.context.close()
    assert complaints == []
