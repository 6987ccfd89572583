"""One poller over the rows of a drill, with a clock of its own."""

from __future__ import annotations

import asyncio
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import DbError, HandlerError, LostLeaseError, PollerError
from azure_functions_db.testing.breakpoints import CrashError, LineCounter
from azure_functions_db.testing.clock import FakeClock
from azure_functions_db.trigger.poll import PollTrigger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from azure_functions_db.core.ports import QuarantineSink, StateStore
    from azure_functions_db.core.types import RawRecord
    from azure_functions_db.testing.subject import Subject

    Call = Callable[[Any, Any], Any]
    Around = Callable[[Call], Call]

_TTL = 120.0
_MOST_TICKS = 100


class Scene:
    """Two instances of one poller on one state: the one that runs, and its rival."""

    def __init__(
        self,
        subject: Subject,
        rows: Sequence[RawRecord] | None = None,
        *,
        batch_size: int | None = None,
        quarantine: QuarantineSink | None = None,
    ) -> None:
        self.subject = subject
        self.clock = FakeClock()
        self.source = subject.source(subject.rows if rows is None else rows)
        self.batch_size = batch_size or len(self.source.rows)
        self._name = f"drill-{uuid.uuid4().hex}"
        self._quarantine = quarantine
        self._store, self._rival_store = subject.stores(self.clock)
        subject.reset()

    def tick(self, around: Around | None = None) -> int:
        """Run one tick; ``around`` puts something around the handler."""
        return self._run(self._store, around)

    def drain(self) -> Any:
        """Tick until nothing is left; return the effects."""
        for _ in range(_MOST_TICKS):
            if not self.tick():
                return self.subject.seen()
        raise PollerError(f"The rows were not through after {_MOST_TICKS} ticks")

    def count_lines(self) -> int:
        """Run one tick and return how many lines the handler ran through."""
        counter = LineCounter(self.subject.file)
        self.tick(lambda call: self._counted(call, counter))
        return counter.lines

    def crash_after_success(self) -> None:
        """Run one tick that ends after the handler's success and before the commit."""
        with suppress(CrashError):
            self.tick(lambda call: self._followed(call, _crash))

    def crash_at(self, line: int) -> str:
        """Run one tick that ends before a line of the handler; return where that is."""
        counter = LineCounter(self.subject.file, at=line, act=_crash)

        def still_crash() -> None:
            if counter.place:  # a handler may have swallowed it, the end of a process cannot be
                _crash()

        with suppress(CrashError):
            self.tick(lambda call: self._followed(self._counted(call, counter), still_crash))
        return counter.place or "the handler's end"

    def lose_lease_at(self, line: int | None, later: Sequence[RawRecord]) -> str:
        """Run one tick that is frozen until its rival has done the work; return where that was.

        It is frozen before a line of the handler, or after its end. ``later`` are rows that change
        in between, which the rival handles as well.
        """
        rivals: list[threading.Thread] = []

        def freeze() -> None:
            self.clock.advance(2 * _TTL)
            rivals.append(threading.Thread(target=self._take_over, args=(later,), daemon=True))
            rivals[0].start()
            # A frozen owner may keep rows locked that its rival wants; then the rival has to wait for its end.
            rivals[0].join(self.subject.freeze_seconds)

        counter = LineCounter(self.subject.file, at=line, act=freeze)
        # A handler that notices the loss and raises is as good as one that comes to its end.
        with suppress(LostLeaseError, HandlerError):
            self.tick(lambda call: self._followed(call, freeze) if line is None else self._counted(call, counter))
        for rival in rivals:
            rival.join()
        self.clock.advance(2 * _TTL)
        self._take_over(later)
        return counter.place or "the handler's end"

    def _take_over(self, later: Sequence[RawRecord]) -> None:
        for rows in ((), later):
            self.source.rows.extend(row for row in rows if row not in self.source.rows)
            with suppress(DbError):
                while self._run(self._rival_store):
                    pass

    def _followed(self, call: Call, act: Callable[[], None]) -> Call:
        async def followed_async(events: Any, context: Any) -> None:
            await call(events, context)
            act()

        def followed(events: Any, context: Any) -> None:
            call(events, context)
            act()

        return followed_async if self.subject.is_async else followed

    def _counted(self, call: Call, counter: LineCounter) -> Call:
        async def counted_async(events: Any, context: Any) -> None:
            with counter:
                await call(events, context)

        def counted(events: Any, context: Any) -> None:
            with counter:
                call(events, context)

        return counted_async if self.subject.is_async else counted

    def _run(self, store: StateStore, around: Around | None = None) -> int:
        subject = self.subject
        trigger = PollTrigger(
            name=self._name,
            source=self.source,
            checkpoint_store=store,
            normalizer=subject.normalizer,
            batch_size=self.batch_size,
            lease_ttl_seconds=_TTL,
            quarantine=self._quarantine,
            max_attempts=2,
            model=subject.model,
            transactional=subject.transactional,
            now=self.clock,
            monotonic=self.clock.monotonic,
        )
        handler = around(subject.handler) if around else subject.handler
        if not subject.is_async:
            return trigger.run(timer=None, handler=handler)
        # In a thread of its own: the test itself may be running on a loop.
        with ThreadPoolExecutor(1, thread_name_prefix="azfdb-drill") as thread:
            return thread.submit(lambda: asyncio.run(trigger.run_async(timer=None, handler=handler))).result()


def _crash() -> None:
    raise CrashError("the process ends here")
