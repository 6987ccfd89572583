"""Take the pictures of the dashboard that the documentation shows: ``python -m tools.screenshots``."""

from __future__ import annotations

import datetime as dt
import random
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import azure.functions as func
from playwright.sync_api import sync_playwright
from sqlalchemy import create_engine, text

from azure_functions_db import DbBindings, DbError, FileQuarantine, MemoryStateStore, RowChange, SqlAlchemySource
from azure_functions_db.dashboard.board import Board
from azure_functions_db.dashboard.server import DashboardServer
from azure_functions_db.dashboard.site import Site
from azure_functions_db.operations.pollers import Pollers, app_of
from azure_functions_db.trigger.batch import Checkpoint, Sample

ASSETS = Path(__file__).parent.parent / "docs" / "assets"
_ROWS = 400


def main() -> None:
    """Take the pictures anew."""
    with tempfile.TemporaryDirectory() as folder:
        pollers = shop(Path(folder))
        with DashboardServer(Site(Board(lambda: pollers), base="", backups=Path(folder))) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            take(server)
            server.shutdown()


def take(server: DashboardServer) -> None:
    """Look at the pages with the machine's Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 520})
        page.goto(server.url)
        page.screenshot(path=ASSETS / "dashboard.png")
        page.set_viewport_size({"width": 1200, "height": 900})
        page.get_by_role("link", name="mirror_orders").click()
        page.wait_for_selector(".uplot")
        page.screenshot(path=ASSETS / "dashboard-poller.png")
        browser.close()


def shop(folder: Path) -> Pollers:
    """Return pollers of a made-up shop in various conditions, with a week behind them."""
    url, store, app = f"sqlite:///{folder / 'shop.db'}", MemoryStateStore(), func.FunctionApp()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)"))
        notes = [{"note": "gift card" if number % 150 == 70 else f"order {number}"} for number in range(_ROWS)]
        connection.execute(text("INSERT INTO orders (note) VALUES (:note)"), notes)
    engine.dispose()
    options: dict[str, Any] = {"batch_size": 100, "max_attempts": 1, "quarantine": FileQuarantine(folder / "aside")}
    follow(app, store, url, mirror_orders, max_batches_per_tick=20, **options)
    follow(app, store, url, send_mails)
    follow(app, store, url, update_search, partitions=6, batch_size=20, max_batches_per_tick=1)
    follow(app, store, url, bill_customers)
    pollers = Pollers.of_app(app_of(app))
    for poller in pollers.all():
        remember(store, poller.name)
        with suppress(DbError):
            poller.defined.trigger.run(timer=None, handler=HANDLERS[poller.name.partition("-")[0]])
    store.pause("bill_customers", "pia@example.com", "until the new price list is in")
    return pollers


def follow(app: func.FunctionApp, store: MemoryStateStore, url: str, handler: Any, **options: Any) -> None:
    """Let a handler follow the orders."""
    source = SqlAlchemySource(url=url, table="orders", cursor_column="id", pk_columns=["id"])
    triggered = DbBindings().trigger(arg_name="events", source=source, checkpoint_store=store, **options)(handler)
    app.timer_trigger(schedule="0 */5 * * * *", arg_name="timer")(triggered)


def remember(store: MemoryStateStore, name: str) -> None:
    """Give a poller a week of busy days and quiet nights."""
    chance, checkpoint, now = random.Random(name), Checkpoint(), dt.datetime.now(dt.UTC)
    for minute in range(7 * 24 * 60, 0, -1):
        at = now - dt.timedelta(minutes=minute)
        rows = round(chance.uniform(0.5, 1) * (900 if 7 <= at.hour <= 20 else 120))
        spent = {"fetch_ms": rows // 20, "handler_ms": rows // 8, "commit_ms": chance.randrange(4, 9)}
        lag = chance.randrange(2, 9) if chance.random() > 0.01 else chance.randrange(30, 90)
        checkpoint = checkpoint.written_at(at, Sample(rows, 1 + rows // 500, lag_seconds=lag, **spent))
    lease = store.acquire_lease(name, 30)
    store.commit_checkpoint(name, checkpoint.stored, lease)
    store.release_lease(name, lease)


def mirror_orders(timer: func.TimerRequest, events: list[RowChange]) -> None:  # noqa: ARG001 - the host's
    """Refuse gift cards."""
    if any((event.after or {})["note"] == "gift card" for event in events):
        raise ValueError("no such product: gift card")


def send_mails(timer: func.TimerRequest, events: list[RowChange]) -> None:  # noqa: ARG001 - as above
    """Find nobody who takes mails."""
    raise ConnectionError("mail.example.com does not answer")


def update_search(timer: func.TimerRequest, events: list[RowChange]) -> None:
    """Do all there is to do."""


def bill_customers(timer: func.TimerRequest, events: list[RowChange]) -> None:
    """Do all there is to do."""


HANDLERS = {
    handler.__name__: lambda events, handler=handler: handler(None, events)
    for handler in (mirror_orders, send_mails, update_search, bill_customers)
}


if __name__ == "__main__":
    main()
