"""What an operator sees and does in a browser."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.integration.dashboard.conftest import Shop, served

if TYPE_CHECKING:
    from playwright.sync_api import Page, Request

    from azure_functions_db import RowChange

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
BIDI = "\u202e\u0007bad"
EVERYBODY = {"permission": lambda _request: "pia"}


def fine(_events: list[RowChange]) -> None:
    pass


def broken(_events: list[RowChange]) -> None:
    raise ConnectionError("mail.example.org does not answer")


def picky(events: list[RowChange]) -> None:
    for event in events:
        note = str((event.after or {})["note"])
        if note.startswith("bad"):
            raise ValueError(f"no such product: {note}")
        if note.startswith("odd"):
            raise KeyError(note)


def names(page: Page) -> list[str]:
    return page.locator("table.pollers tbody tr:visible th > a").all_inner_texts()


def test_ten_pollers_cost_three_requests_and_little(shop: Shop, page: Page) -> None:
    shop.order("a")
    for number in range(10):
        shop.follow(f"copy_{number}", fine)
        shop.tick(f"copy_{number}")
    requests: list[Request] = []
    sizes: list[int] = []
    page.on("request", lambda request: requests.append(request))  # noqa: PLW0108 - which can be marked
    page.on("response", lambda response: sizes.append(0 if response.status == 303 else len(response.body())))
    with served(shop) as dashboard:
        page.goto(dashboard.server.url)
        expect(page.locator("table.pollers tbody tr")).to_have_count(10)
        page.locator("#live-switch").click()
    pages = [request for request in requests if "token=" not in request.url and request.resource_type != "fetch"]
    assert len(pages) <= 3, [request.url for request in pages]
    assert sum(sizes[:4]) <= 150_000


def test_the_page_follows_a_poller_at_work(shop: Shop, page: Page) -> None:
    shop.order("a", "b")
    shop.follow("copy", fine)
    with served(shop) as dashboard:
        page.goto(dashboard.server.url)
        expect(page.locator("tr[data-name=copy] .badge")).to_have_text("behind")
        shop.tick("copy")
        expect(page.locator("tr[data-name=copy] .badge")).to_have_text("idle", timeout=15_000)


def test_a_poller_that_fails_goes_to_the_top_and_says_why(shop: Shop, page: Page) -> None:
    shop.order("a")
    for name in ("a_copy", "b_copy", "z_mails"):
        shop.follow(name, fine)
        shop.tick(name)
    with served(shop) as dashboard:
        page.goto(dashboard.server.url)
        expect(page.locator("table.pollers tbody tr")).to_have_count(3)
        assert names(page)[0] == "a_copy"
        shop.order("b")
        shop.handlers["z_mails"] = broken
        with pytest.raises(Exception, match="does not answer"):
            shop.tick("z_mails")
        expect(page.locator("table.pollers tbody tr").first).to_contain_text("z_mails", timeout=15_000)
        expect(page.locator("table.pollers tbody tr").first).to_contain_text("mail.example.org does not answer")


def test_quarantined_rows_are_filtered_read_and_replayed(shop: Shop, page: Page) -> None:
    shop.order("good", "bad 1", "odd 2", "bad 3")
    shop.follow("copy", picky, quarantine=shop.quarantine(), max_attempts=1)
    shop.tick("copy")
    with served(shop, **EVERYBODY) as dashboard:
        page.goto(dashboard.server.url)
        page.get_by_role("link", name="copy").click()
        expect(page.locator("#quarantine tbody tr")).to_have_count(3)
        page.get_by_role("link", name="ValueError (2)").click()
        expect(page.locator("#quarantine tbody tr")).to_have_count(2)
        page.locator("#quarantine tbody a").first.click()
        expect(page.locator("pre").first).to_contain_text("bad 3")
        expect(page.locator("pre").last).to_contain_text("in picky")
        page.go_back()
        shop.handlers["copy"] = fine
        page.get_by_role("button", name="Replay these").click()
        expect(page.locator("#confirm-text")).to_have_text("2 row(s) go to the handler again")
        page.locator("#confirm-input").fill("copy")
        page.locator("#confirm-yes").click()
        expect(page.locator("#told")).to_have_text("2 handled, 0 failed again")
    assert [row.error_type for row in shop.quarantine().entries("copy")] == ["KeyError"]


@pytest.mark.parametrize("note", [HOSTILE, BIDI, "x" * 1_000_000], ids=["script", "bidi", "a megabyte"])
def test_what_a_row_holds_is_shown_harmlessly(shop: Shop, page: Page, note: str) -> None:
    shop.order("good", f"bad {note}")
    shop.follow("copy", picky, quarantine=shop.quarantine(), max_attempts=1)
    shop.tick("copy")
    with served(shop) as dashboard:
        page.goto(dashboard.server.url)
        page.get_by_role("link", name="copy").click()
        page.locator("#quarantine tbody a").first.click()
        shown = page.locator("pre").first
        expect(shown).to_contain_text("bad ")
        if note == HOSTILE:
            expect(shown).to_contain_text("<script>alert(1)</script>")
        if note == BIDI:
            expect(shown).to_contain_text("\\u202e")
        assert len(page.content()) < 400_000


def test_everything_can_be_reached_by_keyboard(shop: Shop, page: Page) -> None:
    shop.order("a")
    shop.follow("copy", fine)
    shop.tick("copy")
    with served(shop, **EVERYBODY) as dashboard:
        page.goto(dashboard.server.url)
        page.locator("#live-switch").press("Enter")
        _tab_to(page, "copy")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_contain_text("copy")
        page.locator("#live-switch").press("Enter")
        _tab_to(page, "Pause")
        page.keyboard.press("Enter")
        page.keyboard.type("the night shift")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("h1 .badge")).to_have_text("paused")
    paused = shop.store.look("copy").paused
    assert paused is not None
    assert (paused.by, paused.why) == ("pia", "the night shift")


def _tab_to(page: Page, label: str) -> None:
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent").strip() == label:
            return
    raise AssertionError(f"{label} cannot be reached")


def test_a_reset_is_rehearsed_and_confirmed_by_the_name(shop: Shop, page: Page) -> None:
    shop.order("a", "b")
    shop.follow("copy", fine)
    shop.tick("copy")
    with served(shop, **EVERYBODY) as dashboard:
        page.goto(dashboard.server.url)
        page.get_by_role("link", name="copy").click()
        page.get_by_role("button", name="Deliver all again").click()
        expect(page.locator("#confirm-text")).to_contain_text("2 row(s) come again")
        page.locator("#confirm-input").fill("another")
        page.locator("#confirm-yes").click()
        expect(page.locator("#told")).to_contain_text("Type 'copy' to confirm")
        assert shop.store.load_checkpoint("copy")["cursor"]
        page.get_by_role("button", name="Deliver all again").click()
        expect(page.locator("#confirm-text")).to_contain_text("2 row(s) come again")
        page.locator("#confirm-input").fill("copy")
        page.locator("#confirm-yes").click()
        expect(page.locator("#told")).to_contain_text("reset to the beginning")
    assert "cursor" not in shop.store.load_checkpoint("copy")
    assert list((shop.folder / "backups").iterdir())


def test_a_button_that_is_pressed_while_the_page_is_renewed_is_clicked(shop: Shop, page: Page) -> None:
    shop.order("a")
    shop.follow("copy", fine)
    shop.tick("copy")
    with served(shop, **EVERYBODY) as dashboard:
        page.goto(dashboard.server.url)
        page.get_by_role("link", name="copy").click()
        page.get_by_role("button", name="Deliver all again").hover()
        page.mouse.down()
        for _ in range(2):  # what the first one brought is in place when the second is asked for
            with page.expect_response(lambda response: response.url == page.url, timeout=30_000):
                pass
        page.mouse.up()
        expect(page.locator("#confirm-text")).to_contain_text("1 row(s) come again")


def test_five_hundred_pollers_are_no_trouble(shop: Shop, page: Page) -> None:
    shop.order("a")
    for number in range(500):
        shop.follow(f"copy_{number}", fine)
    shop.tick("copy_499")
    with served(shop) as dashboard:
        page.goto(dashboard.server.url)
        expect(page.locator("table.pollers tbody tr")).to_have_count(500)
        page.locator("#find").fill("copy_499")
        expect(page.locator("table.pollers tbody tr:visible")).to_have_count(1)


def test_partitions_are_one_line_with_a_strip(shop: Shop, page: Page) -> None:
    shop.order("a", "b", "c")
    shop.follow("index", fine, partitions=4)
    with served(shop) as dashboard:
        page.goto(dashboard.server.url)
        expect(page.locator("table.pollers tbody tr")).to_have_count(1)
        expect(page.locator(".strip .cell")).to_have_count(4)


def test_the_plots_show_what_was_done(shop: Shop, page: Page) -> None:
    shop.order("a", "b")
    shop.follow("copy", fine)
    shop.tick("copy")
    with served(shop) as dashboard:
        page.goto(dashboard.server.url)
        page.get_by_role("link", name="copy").click()
        expect(page.locator(".uplot")).to_have_count(4)
        plots: Any = json.loads(page.locator("[data-plots]").get_attribute("data-plots") or "")
        assert sum(rate * 60 for rate in plots["hour"]["rate"]) == pytest.approx(2, abs=0.1)
        page.get_by_role("button", name="Week").click()
        expect(page.locator("[data-range=week]")).to_have_attribute("aria-pressed", "true")
