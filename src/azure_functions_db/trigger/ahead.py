"""Reading ahead: the next page is on its way while the handler has this one."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple, Self

from azure_functions_db.core.bridge import in_background

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure_functions_db.core.types import FetchResult, Position
    from azure_functions_db.trigger.normalizers import EarlyEvents


WORTHWHILE_SECONDS = 0.0003
"""Where nobody waits for longer than this nothing is gained: for two threads to take turns costs a third of it."""


class Page(NamedTuple):
    """What a source gave, and its events where they are made already."""

    result: FetchResult
    events: EarlyEvents | None = None


class PageAhead:
    """A page that is read before it is due, from the position where it will be wanted.

    What became of it counts only then: one that could not be read is read again in its turn, and that tells why.
    """

    def __init__(self, position: Position, page: Future[Page], *, is_here: bool) -> None:
        self._position = position
        self._page = page
        self.is_here = is_here
        """Whether it was read in the tick's own thread, and nobody has to wait for it."""

    @classmethod
    def read(cls, position: Position, read: Callable[[], FetchResult]) -> Self:
        """Read the page here and now."""
        page: Future[Page] = Future()
        try:
            page.set_result(Page(read()))
        except Exception as error:  # noqa: BLE001 - told in its turn
            page.set_exception(error)
        return cls(position, page, is_here=True)

    @classmethod
    def begin(cls, position: Position, read: Callable[[], Page], *, at_once: bool) -> Self | None:
        """Read the page in another thread, see `in_background`; None where the process ends and none can be had."""
        try:
            return cls(position, in_background(read, at_once=at_once), is_here=False)
        except RuntimeError:
            return None

    def at(self, position: Position) -> Page | None:
        """Wait for the page and return it; None where it belongs elsewhere, or could not be read."""
        self.wait()
        is_wanted = self._position == position and self._page.exception() is None
        return self._page.result() if is_wanted else None

    def wait(self) -> None:
        """Wait until nobody is reading any more: a reader serves one at a time."""
        self._page.exception()
