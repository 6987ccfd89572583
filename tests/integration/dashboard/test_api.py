"""What the dashboard answers, and what it refuses."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import azure.functions as func
import pytest

from azure_functions_db import ConfigurationError, MemoryStateStore, dashboard_blueprint
from azure_functions_db.dashboard.board import Board
from azure_functions_db.dashboard.site import ACT_HEADER, Request, Response, Site
from azure_functions_db.trigger.batch import Checkpoint, Sample
from tests.integration.dashboard.test_pages import broken, fine, picky

if TYPE_CHECKING:
    from azure_functions_db import RowChange
    from azure_functions_db.dashboard.site import Permission
    from tests.integration.dashboard.conftest import Shop

SECRET = "hunter2hunter2"
ACTS = ("pause", "resume", "replay", "drop", "break-lease", "reset-to-beginning", "reset-to-end")


def site_of(shop: Shop, permission: Permission | None = None, **options: Any) -> Site:
    pollers = shop.pollers
    return Site(Board(lambda: pollers, **options), base="/api/dashboard", permission=permission, backups=shop.folder)


def post(path: str, headers: dict[str, str] | None = None, **form: str) -> Request:
    given = {ACT_HEADER.lower(): "1", "host": "shop.example"} if headers is None else headers
    return Request("POST", path, {}, given, json.dumps(form).encode())


def told(response: Response) -> Any:
    return json.loads(response.body)


def anybody(_request: Request) -> str:
    return "pia"


@pytest.mark.parametrize("act", ACTS)
def test_a_dashboard_for_looking_refuses_every_act(shop: Shop, act: str) -> None:
    shop.order("a")
    shop.follow("copy", fine)
    shop.tick("copy")
    before = shop.store.raw_document("copy")
    response = site_of(shop).answer(post(f"api/pollers/copy/{act}", confirm="copy"))
    assert (response.status, shop.store.raw_document("copy")) == (403, before)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "shop.example"},
        {ACT_HEADER.lower(): "1", "host": "shop.example", "origin": "https://evil.example"},
        {ACT_HEADER.lower(): "1", "host": "shop.example", "sec-fetch-site": "cross-site"},
        {ACT_HEADER.lower(): "1", "host": "shop.example", "origin": "null"},
    ],
    ids=["a form", "another origin", "another site", "a sandbox"],
)
def test_another_site_cannot_act(shop: Shop, headers: dict[str, str]) -> None:
    shop.follow("copy", fine)
    assert site_of(shop, anybody).answer(post("api/pollers/copy/pause", headers)).status == 403
    assert shop.store.look("copy").paused is None


def test_an_act_is_written_to_the_log_with_who_did_it(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.order("a")
    shop.follow("copy", fine)
    shop.tick("copy")
    assert told(site_of(shop, anybody).answer(post("api/pollers/copy/pause", why="stocktaking")))["done"]
    assert "copy: pause by pia from the dashboard" in caplog.text


def test_one_who_may_not_is_refused(shop: Shop) -> None:
    shop.follow("copy", fine)
    response = site_of(shop, lambda _request: None).answer(post("api/pollers/copy/pause"))
    assert (response.status, told(response)["error"]) == (403, "You may not change anything here")


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"confirm": 1}', b"\xff"])
def test_what_is_no_form_is_refused(shop: Shop, body: bytes) -> None:
    shop.follow("copy", fine)
    headers = {ACT_HEADER.lower(): "1", "host": "shop.example"}
    assert site_of(shop, anybody).answer(Request("POST", "api/pollers/copy/pause", {}, headers, body)).status == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "pollers/nobody", 404),
        ("GET", "pollers/copy/quarantine/none", 404),
        ("GET", "assets/../site.py", 404),
        ("GET", "assets/uplot.LICENSE", 404),
        ("GET", "elsewhere", 404),
        ("DELETE", "pollers/copy", 405),
        ("POST", "api/pollers/copy/explode", 404),
    ],
)
def test_what_is_not_there_is_told_in_one_line(shop: Shop, method: str, path: str, status: int) -> None:
    shop.follow("copy", picky, quarantine=shop.quarantine())
    assert site_of(shop).answer(Request(method, path)).status == status


def test_no_page_has_a_secret_or_loads_anything_from_elsewhere(shop: Shop) -> None:
    shop.order("good", "bad")

    def leaking(events: list[RowChange]) -> None:
        if any((event.after or {})["note"] == "bad" for event in events):
            raise ValueError(f"postgresql://shop:{SECRET}@db.example/shop is gone")

    shop.follow("copy", leaking, quarantine=shop.quarantine(), max_attempts=1)
    shop.follow("mails", broken)
    shop.tick("copy")
    site = site_of(shop, anybody)
    entry = next(iter(shop.quarantine().entries("copy"))).event_id
    for path in ("", "pollers/copy", f"pollers/copy/quarantine/{entry}", "api/pollers", "api/pollers/copy"):
        response = site.answer(Request("GET", path))
        assert (response.status, SECRET in response.body.decode()) == (200, False), path
        assert "http://" not in response.body.decode()
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert "unsafe" not in response.headers["Content-Security-Policy"]


class Counting(MemoryStateStore):
    """Counts how often documents are read."""

    reads = 0

    def raw_document(self, poller_name: str) -> bytes | None:
        self.reads += 1
        return super().raw_document(poller_name)


def test_an_answer_reads_each_state_once_however_many_look(shop: Shop) -> None:
    shop.store = store = Counting()
    for number in range(5):
        shop.follow(f"copy_{number}", fine)
    now = [0.0]
    site = site_of(shop, clock=lambda: now[0])
    for _ in range(10):
        site.answer(Request("GET", ""))
        site.answer(Request("GET", "api/pollers"))
    assert store.reads == 5
    now[0] = 60.0
    site.answer(Request("GET", ""))
    assert store.reads == 10


def test_changes_for_everybody_with_a_key_need_the_admin_level() -> None:
    with pytest.raises(ConfigurationError, match=r"AuthLevel\.ADMIN"):
        dashboard_blueprint(allow_changes=True)
    dashboard_blueprint(allow_changes=True, auth_level=func.AuthLevel.ADMIN)
    with pytest.raises(ConfigurationError, match="allow_changes="):
        dashboard_blueprint(allow_changes="yes")  # type: ignore[arg-type]


def test_the_state_grows_by_less_than_8_kb() -> None:
    checkpoint = bare = Checkpoint({"cursor": 7})
    began = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    busy = Sample(987_654, 987, fetch_ms=54_321, handler_ms=59_999, commit_ms=9_999, lag_seconds=3600)
    for minute in range(0, 8 * 24 * 60, 5):
        checkpoint = checkpoint.written_at(began + dt.timedelta(minutes=minute), busy)
    assert len(json.dumps(checkpoint.stored)) - len(json.dumps(bare.stored)) <= 8_000
