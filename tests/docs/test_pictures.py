"""The pictures of the documentation, as a browser draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.docs.pages import CHECKOUT
from tests.integration.dashboard.conftest import browser, page

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["browser", "page"]

# Words whose letters begin before their picture or end behind it.
CUT = """() => {
  const whole = document.querySelector("svg").getBoundingClientRect();
  return [...document.querySelectorAll("text")].filter((words) => {
    const place = words.getBoundingClientRect();
    return place.left < whole.left || place.right > whole.right || place.bottom > whole.bottom;
  }).map((words) => words.textContent);
}"""


def test_no_words_of_a_picture_are_cut_off(page: Page) -> None:
    cut = {}
    for picture in sorted((CHECKOUT / "docs" / "assets").glob("*.svg")):
        page.set_content(picture.read_text())
        cut[picture.name] = page.evaluate(CUT)
    assert len(cut) > 20
    assert {name: words for name, words in cut.items() if words} == {}
