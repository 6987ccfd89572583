"""Runs the ticks of one poller."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.bridge import finished, in_thread
from azure_functions_db.core.ports import ChangeSource, LookingStateStore, QuarantineSink, SourceAdapter, StateStore
from azure_functions_db.trigger.handler import Handler
from azure_functions_db.trigger.lease import TickCancelled
from azure_functions_db.trigger.tick import Tick

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure_functions_db.trigger.settings import PollSettings

__all__ = ["ChangeSource", "LookingStateStore", "PollRunner", "QuarantineSink", "SourceAdapter", "StateStore"]


class PollRunner:
    """A poller that is ready to run: each call is one tick."""

    def __init__(self, settings: PollSettings) -> None:
        self.settings = settings

    def run(self, handler: Callable[..., Any], *, invocation_id: str | None = None) -> int:
        """Run one tick here and now; return the number of events handled."""
        return Tick(self.settings, Handler(handler), invocation_id).run()

    async def run_async(self, handler: Callable[..., Any], *, invocation_id: str | None = None) -> int:
        """Run one tick in a thread; an async handler is awaited on this loop.

        Cancelling this call cancels the handler, commits nothing more and gives the lease back
        before the cancellation goes on.
        """
        tick = Tick(self.settings, Handler(handler, asyncio.get_running_loop()), invocation_id)
        work = asyncio.ensure_future(in_thread(_run, tick))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            tick.lease.cancel()
            with suppress(Exception):  # the cancellation is what counts now
                await finished(work)
            raise


def _run(tick: Tick) -> int:
    try:
        return tick.run()
    except TickCancelled:
        return 0  # whoever cancelled is told by asyncio
