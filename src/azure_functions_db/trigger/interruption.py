"""What can end a tick from outside: a lost lease, or the host."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import LostLeaseError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from azure_functions_db.core.bridge import LoopCall
    from azure_functions_db.trigger.tenure import Tenure


class TickCancelled(BaseException):
    """The host no longer wants the tick; nothing was committed since."""


class Interruption:
    """Knows whether the tick may still go on, and stops what it is waiting for."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._cancelled = False
        self._tenure: Tenure | None = None
        self._call: LoopCall[Any] | None = None

    @property
    def is_lost(self) -> bool:
        """Tell whether the lease is lost."""
        return self._tenure is not None and self._tenure.is_set()

    def cancel(self) -> None:
        """End the tick: the host has cancelled it."""
        self._cancelled = True
        self._stop()

    def follow(self, tenure: Tenure) -> None:
        """End the tick when this lease is lost."""
        self._tenure = tenure
        tenure.on_loss(self._stop)

    def check(self) -> None:
        """Raise when the tick must not go on."""
        if self._cancelled:
            raise TickCancelled
        if self.is_lost:
            raise LostLeaseError("The lease was lost; nothing was committed since, and the batch comes again")

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Run work that counts for nothing once the tick is interrupted, whatever it returns or raises."""
        self.check()
        try:
            yield
        except Exception:
            self.check()
            raise
        self.check()

    def pause(self, seconds: float) -> None:
        """Sleep, but not through an interruption."""
        self._stopped.wait(seconds)

    def watch(self, call: LoopCall[Any]) -> None:
        """Wait for a coroutine on the loop; cancel it when the tick is interrupted."""
        self._call = call
        if self._stopped.is_set():
            call.cancel()
        try:
            self._wait_for(call)
        except asyncio.CancelledError as cancelled:
            self.check()
            raise RuntimeError("The handler's task was cancelled") from cancelled
        finally:
            self._call = None

    def _wait_for(self, call: LoopCall[Any]) -> None:
        # A renewal that hangs tells nobody; so this thread looks at the clock itself.
        while self._tenure is not None and not self._tenure.is_set():
            try:
                call.result(self._tenure.remaining())
            except TimeoutError:
                if call.done():
                    raise
            else:
                return
        call.result()

    def _stop(self) -> None:
        self._stopped.set()
        if self._call is not None:
            self._call.cancel()
