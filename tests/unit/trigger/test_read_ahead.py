from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from azure_functions_db.core import bridge
from azure_functions_db.core.errors import FetchError, HandlerError, LostLeaseError, RowsFailed, SerializationError
from azure_functions_db.core.signals import Stage, StageEnded
from azure_functions_db.core.types import AdapterCapability, Change, FetchResult, HandledFirst, SourceDescriptor
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.state.sql import SqlStateStore
from azure_functions_db.testing.memory import MemoryQuarantine
from azure_functions_db.trigger import pace as ahead_module
from azure_functions_db.trigger import tick
from azure_functions_db.trigger.events import RowChange
from azure_functions_db.trigger.normalizers import ChangeNormalizer
from azure_functions_db.trigger.pace import Pace, Page, PageAhead
from tests.unit.trigger.poller import Collected, ListSource, PlainStore, Recorder, poller, position, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from azure_functions_db.core.types import CheckpointJson
    from azure_functions_db.trigger.handler import PollContext

PATIENCE = 30


class Book:
    """Numbers from 0 on, page by page; tells which page is being read, from where, and whether by the tick itself."""

    cursor_column = "id"
    pk_columns = ("id",)
    source_descriptor = SourceDescriptor("numbers", "book", "sha256:numbers")

    def __init__(self, count: int, *, reads_ahead: bool = True, acknowledges: bool = False) -> None:
        self.count = count
        self.reads_ahead = reads_ahead
        self.acknowledges = acknowledges
        self.pages: list[tuple[int, bool]] = []
        self.turned = threading.Semaphore(0)
        self.failures: dict[int, list[Exception]] = {}
        self.held = threading.Event()
        self.held.set()
        self.reading = 0
        self.closed_while_reading: bool | None = None
        self.acknowledged: list[tuple[int, bool]] = []
        self._owner = threading.get_ident()

    def validate(self) -> None: ...

    def open(self) -> None:
        self._owner = threading.get_ident()

    def close(self) -> None:
        self.closed_while_reading = self.reading > 0

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        self.acknowledged.append((checkpoint["cursor"], self.reading > 0))

    def capability(self) -> AdapterCapability:
        return AdapterCapability(acknowledges=self.acknowledges)

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        self.reading += 1
        try:
            return self._page(checkpoint.get("cursor", 0), limit)
        finally:
            self.reading -= 1

    def _page(self, first: int, limit: int) -> FetchResult:
        is_ahead = threading.get_ident() != self._owner
        self.pages.append((first, is_ahead))
        self.turned.release()
        if is_ahead:
            assert self.held.wait(PATIENCE)
        if self.failures.get(first):
            raise self.failures[first].pop(0)
        end = min(first + limit, self.count)
        return FetchResult([{"id": number} for number in range(first, end)], {"cursor": end}, end < self.count)

    @property
    def ahead(self) -> list[int]:
        return [first for first, is_ahead in self.pages if is_ahead]


@pytest.fixture(autouse=True)
def _always_worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tick, "WORTHWHILE_SECONDS", float("-inf"))  # two clocks may seem to run apart


def after_pages(book: Book, counts: Sequence[int], then: Callable[[int, list[Any]], object]) -> Callable[..., object]:
    """A handler that goes on only when so many pages have been read, one count for each call."""
    calls = iter(counts)
    turned = 0

    def handler(events: list[Any]) -> object:
        nonlocal turned
        wanted = next(calls)
        while turned < wanted:
            assert book.turned.acquire(timeout=PATIENCE), f"page {turned + 1} was not read while the handler ran"
            turned += 1
        return then(wanted, events)

    return handler


def drained(book: Book, **options: Any) -> tuple[list[int], MemoryStateStore]:
    handler, store = Collected(), MemoryStateStore()
    run(poller(book, store, batch_size=10, max_batches_per_tick=10, **options), handler)
    return handler.ids, store


def test_the_next_page_is_read_while_the_handler_has_this_one() -> None:
    book, seen = Book(35), Collected()
    handler = after_pages(book, [2, 3, 4, 4], lambda _count, events: seen(events))
    store = MemoryStateStore()
    assert run(poller(book, store, batch_size=10, max_batches_per_tick=10), handler) == 35
    assert seen.ids == list(range(35))
    assert book.pages == [(0, False), (10, True), (20, True), (30, True)]
    assert position(store) == {"cursor": 35}


def test_how_long_a_tick_waits_for_a_page_that_is_read_ahead_is_told_as_its_fetch() -> None:
    recorder = Recorder()
    drained(Book(20), observers=[recorder])
    assert [signal.stage for signal in recorder.of(StageEnded)].count(Stage.FETCH) == 2


def test_an_async_handler_has_its_next_page_read_as_well() -> None:
    book, ids = Book(20), list[int]()
    waits = after_pages(book, [2, 2], lambda _count, _events: None)

    async def handler(events: list[Any]) -> None:
        await asyncio.to_thread(waits, events)
        ids.extend(event.pk["id"] for event in events)

    trigger = poller(book, batch_size=10, max_batches_per_tick=10)
    assert asyncio.run(trigger.run_async(timer=None, handler=handler)) == 20
    assert (ids, book.ahead) == (list(range(20)), [10])


def test_no_more_than_one_page_is_read_ahead() -> None:
    book = Book(50)
    seen: list[int] = []

    def handler(_events: list[Any]) -> None:
        seen.append(len(book.pages))

    run(
        poller(book, batch_size=10, max_batches_per_tick=10),
        after_pages(book, [2, 3, 4, 5, 5], lambda _, e: handler(e)),
    )
    assert seen == [2, 3, 4, 5, 5]


@pytest.mark.parametrize(
    ("options", "reads_ahead"),
    [
        ({"read_ahead": False}, True),
        ({"commit": "row"}, True),
        ({"transactional": True}, True),
        ({"max_batches_per_tick": 1}, True),
        ({}, False),
    ],
    ids=["unwanted", "row by row", "in a transaction", "the last batch of a tick", "a source that cannot"],
)
def test_nothing_is_read_ahead_where_it_must_not_be(
    options: dict[str, Any], reads_ahead: bool, sqlite_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "is_read_at_once", True)  # what is to be read ahead is begun, whoever waits
    store = SqlStateStore(url=sqlite_database) if "transactional" in options else MemoryStateStore()
    book, handler = Book(30, reads_ahead=reads_ahead), Collected()
    trigger = poller(book, store, **({"batch_size": 10, "max_batches_per_tick": 10} | options))
    run(trigger, handler)
    assert handler.ids == list(range(len(handler.ids)))
    assert book.ahead == []


def test_nothing_is_read_ahead_where_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tick, "WORTHWHILE_SECONDS", float("inf"))
    book = Book(30)
    assert drained(book)[0] == list(range(30))
    assert book.ahead == []


@pytest.mark.parametrize(("waits", "ahead"), [("source", [30, 40]), ("handler", [40])])
def test_pages_are_read_ahead_once_the_source_or_the_handler_has_waited_three_times(
    monkeypatch: pytest.MonkeyPatch, waits: str, ahead: list[int]
) -> None:
    now = [0.0]
    monkeypatch.setattr(tick, "WORTHWHILE_SECONDS", 0.5)
    monkeypatch.setattr(tick, "perf_counter", lambda: now[0])
    monkeypatch.setattr(tick, "thread_time", lambda: 0.0)

    class Waiting(Book):
        def _page(self, first: int, limit: int) -> FetchResult:
            now[0] += waits == "source"
            return super()._page(first, limit)

    def handler(_events: list[Any]) -> None:
        now[0] += waits == "handler"

    book = Waiting(50)
    run(poller(book, batch_size=10, max_batches_per_tick=10), handler)
    assert book.ahead == ahead


def test_the_last_batch_of_a_tick_has_nothing_read_behind_it() -> None:
    book, handler = Book(50), Collected()
    run(poller(book, batch_size=10, max_batches_per_tick=3), handler)
    assert (handler.ids, [first for first, _ in book.pages]) == (list(range(30)), [0, 10, 20])


def test_a_page_that_could_not_be_read_ahead_is_read_in_its_turn() -> None:
    book = Book(30)
    book.failures[10] = [RuntimeError("gone for a moment")]
    ids, _ = drained(book)
    assert ids == list(range(30))
    assert book.pages[1:3] == [(10, True), (10, False)]


def test_what_was_handled_is_committed_before_a_failed_read_is_told() -> None:
    book, handler, store = Book(30), Collected(), MemoryStateStore()
    book.failures[10] = [RuntimeError("gone"), RuntimeError("gone for good")]
    with pytest.raises(FetchError, match="gone for good"):
        run(poller(book, store, batch_size=10, max_batches_per_tick=10), handler)
    assert (handler.ids, position(store)) == (list(range(10)), {"cursor": 10})


def test_a_failed_batch_throws_the_page_away_and_comes_again() -> None:
    book, store = Book(30), MemoryStateStore()

    def fail(_count: int, _events: list[Any]) -> None:
        raise ValueError("no stock")

    trigger = poller(book, store, batch_size=10, max_batches_per_tick=10)
    with pytest.raises(HandlerError, match="no stock"):
        run(trigger, after_pages(book, [2], fail))
    assert position(store) == {}
    handler = Collected()
    run(trigger, handler)
    assert handler.ids == list(range(30))


def test_a_lost_lease_throws_the_page_away() -> None:
    book, store = Book(30), MemoryStateStore()
    rival = Collected()

    def lose(_count: int, _events: list[Any]) -> None:
        store.break_lease("orders")
        run(poller(Book(30), store, batch_size=10, read_ahead=False), rival)

    with pytest.raises(LostLeaseError):
        run(poller(book, store, batch_size=10, max_batches_per_tick=10), after_pages(book, [2], lose))
    assert (rival.ids, position(store)) == (list(range(10)), {"cursor": 10})
    assert book.ahead == [10]


def test_a_source_is_closed_only_when_its_reader_has_come_to_rest() -> None:
    book = Book(30)
    book.held.clear()

    def fail(_count: int, _events: list[Any]) -> None:
        threading.Timer(0.05, book.held.set).start()
        raise ValueError("no stock")

    with pytest.raises(HandlerError):
        run(poller(book, batch_size=10, max_batches_per_tick=10), after_pages(book, [2], fail))
    assert book.closed_while_reading is False


@pytest.mark.parametrize(
    ("acknowledges", "told"), [(True, [(10, False), (20, False), (30, False)]), (False, [(30, False)])]
)
def test_a_reader_is_told_of_a_commit_only_when_it_has_come_to_rest(
    acknowledges: bool, told: list[tuple[int, bool]]
) -> None:
    """Who lets go of nothing is not kept waiting for: the next commit is told as well."""
    book, seen = Book(30, acknowledges=acknowledges), Collected()
    book.held.clear()

    class Letting(MemoryStateStore):
        """Lets the page that is read ahead come only after the commit."""

        def commit_checkpoint(self, *args: Any) -> None:
            super().commit_checkpoint(*args)
            threading.Timer(0.02, book.held.set).start()

    handler = after_pages(book, [2, 3, 3], lambda _count, events: seen(events))
    run(poller(book, PlainStore(Letting()), batch_size=10, max_batches_per_tick=10), handler)
    assert seen.ids == list(range(30))
    assert book.acknowledged == told


def test_a_source_is_not_read_again_for_a_part_of_a_batch_before_its_reader_has_come_to_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once: list[int] = []

    class OneAtATime(Book):
        def _page(self, first: int, limit: int) -> FetchResult:
            at_once.append(self.reading)
            if self.reading > 1:
                self.held.set()
            return super()._page(first, limit)

    book, wait = OneAtATime(30), PageAhead.wait

    def rest(ahead: PageAhead) -> None:
        book.held.set()
        wait(ahead)

    book.held.clear()
    monkeypatch.setattr(PageAhead, "wait", rest)
    trigger = poller(book, batch_size=10, max_batches_per_tick=10)
    assert run(trigger, after_pages(book, [2], lambda _count, _events: HandledFirst(3))) == 3
    assert at_once == [1, 1, 1]


def test_a_cancelled_tick_waits_for_the_reader_and_commits_nothing() -> None:
    book, store = Book(30), MemoryStateStore()

    async def main() -> None:
        begun = asyncio.Event()

        async def handler(_events: list[Any]) -> None:
            begun.set()
            await asyncio.Event().wait()

        trigger = poller(book, store, batch_size=10, max_batches_per_tick=10)
        call = asyncio.ensure_future(trigger.run_async(timer=None, handler=handler))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())
    assert (position(store), book.closed_while_reading, book.reading) == ({}, False, 0)


def test_rows_named_by_the_handler_end_the_tick_before_them() -> None:
    book, store = Book(30), MemoryStateStore()

    def name(_count: int, events: list[Any]) -> None:
        raise RowsFailed({events[4].event_id: "no stock"})

    with pytest.raises(HandlerError):
        run(poller(book, store, batch_size=10, max_batches_per_tick=10), after_pages(book, [2], name))
    assert position(store) == {"cursor": 4}


def test_a_handler_that_got_through_a_part_has_the_rest_come_again() -> None:
    book, store = Book(30), MemoryStateStore()
    first = after_pages(book, [2], lambda _count, _events: HandledFirst(3))
    assert run(poller(book, store, batch_size=10, max_batches_per_tick=10), first) == 3
    assert position(store) == {"cursor": 3}


def test_poison_is_found_with_pages_read_ahead() -> None:
    book, store, sink, handled = Book(60), MemoryStateStore(), MemoryQuarantine(), list[int]()

    def handler(events: list[Any]) -> None:
        ids = [event.pk["id"] for event in events]
        if 17 in ids:
            raise ValueError("no stock")
        handled.extend(ids)

    trigger = poller(book, store, batch_size=10, max_batches_per_tick=100, quarantine=sink, max_attempts=1)
    run(trigger, handler)
    assert sorted(set(handled)) == [number for number in range(60) if number != 17]
    assert [row.event["pk"] for row in sink.entries("orders")] == [{"id": 17}]
    assert position(store) == {"cursor": 60}
    assert 10 in book.ahead
    assert 30 in book.ahead


def test_who_waits_now_and_then_waits_for_the_machine_and_who_waits_each_time_for_others() -> None:
    pace = Pace()
    told = []
    for waited in (0.5, 0.0, 0.4, 0.3, 0.6):
        pace.handler_waits.append(waited)
        told.append(pace.waited)
    assert told == [0.0, 0.0, 0.0, 0.0, 0.3]


def test_a_page_is_asked_for_at_once_where_a_read_waits_longer_than_the_handler() -> None:
    pace = Pace()
    told = []
    for fetched, handled in ((0.0, 0.0), (0.02, 0.5), (0.01, 0.0), (0.03, 0.5), (0.02, 0.5), (0.02, 0.5)):
        pace.fetch_waits.append(fetched)
        pace.handler_waits.append(handled)
        told.append(pace.is_read_at_once)
    assert told == [False, False, False, True, True, False]


def test_a_handler_that_waits_does_not_wait_for_the_page_to_be_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    book, called = Book(20), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        busy = threads.submit(called.wait, PATIENCE)  # nobody can begin to read before the handler was called
        monkeypatch.setattr(bridge, "_threads", lambda: threads)
        monkeypatch.setattr(Pace, "is_read_at_once", False)
        assert run(poller(book, batch_size=10, max_batches_per_tick=10), lambda _events: called.set()) == 20
        assert busy.result()
    assert book.pages == [(0, False), (10, True)]


def test_a_page_that_is_asked_for_at_once_is_begun_before_the_handler_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book, begun = Book(20), list[bool]()
    begin = bridge.in_background

    def held(work: Callable[[], Any], *, at_once: bool) -> Any:
        page = begin(work, at_once=at_once)
        begun.append(page.running())
        book.held.set()
        return page

    book.held.clear()
    monkeypatch.setattr("azure_functions_db.trigger.pace.in_background", held)
    monkeypatch.setattr(Pace, "is_read_at_once", True)
    run(poller(book, batch_size=10, max_batches_per_tick=10), Collected())
    assert begun == [True]


@pytest.mark.parametrize(("store", "made_before"), [(PlainStore, [0, 10]), (MemoryStateStore, [10, 10])])
def test_it_is_begun_before_the_events_of_this_one_are_made_where_the_lease_is_held(
    store: Callable[[], Any], made_before: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that can be looked at is asked for the lease when there is work, after the events of the first page."""
    made, begun = list[int](), list[int]()
    begin = bridge.in_background

    def noted(work: Callable[[], Any], *, at_once: bool) -> Any:
        begun.append(len(made))
        return begin(work, at_once=at_once)

    def normalize(record: dict[str, Any], source: SourceDescriptor) -> RowChange:
        made.append(record["id"])
        return RowChange(None, "upsert", source, record["id"], {"id": record["id"]})

    monkeypatch.setattr("azure_functions_db.trigger.pace.in_background", noted)
    monkeypatch.setattr(Pace, "is_read_at_once", True)
    run(poller(Book(30), store(), batch_size=10, max_batches_per_tick=10, normalizer=normalize), Collected())
    assert begun == made_before


def test_events_of_a_page_that_was_read_ahead_tell_of_their_own_batch() -> None:
    book, batches = Book(30), list[str]()

    def handler(events: list[RowChange], context: PollContext) -> None:
        assert {event.metadata["batch_id"] for event in events} == {context.batch_id}
        assert [event.metadata["attempt"] for event in events] == [1] * 10
        with pytest.raises(TypeError):
            events[0].metadata["attempt"] = 2  # type: ignore[index]
        batches.append(context.batch_id)

    run(poller(book, batch_size=10, max_batches_per_tick=10), handler)
    assert (len(set(batches)), book.ahead) == (3, [10, 20])


class Log(Book):
    """The same numbers as changes, each of which tells something of itself."""

    cursor_column: Any = None
    pk_columns: Any = None

    def _page(self, first: int, limit: int) -> FetchResult:
        page = super()._page(first, limit)
        changes = [
            Change("insert", str(row["id"]), {"id": row["id"]}, dict(row), metadata={"transaction": row["id"]})
            for row in page.records
        ]
        return FetchResult(changes, page.next_checkpoint, page.more)


def test_changes_that_tell_something_of_themselves_tell_of_their_batch_besides() -> None:
    log, seen = Log(30), list[Any]()
    run(poller(log, batch_size=10, max_batches_per_tick=10, normalizer=ChangeNormalizer()), seen.extend)
    assert [event.metadata["transaction"] for event in seen] == list(range(30))
    assert [len({event.metadata["batch_id"] for event in seen[first : first + 10]}) for first in (0, 10, 20)] == [1] * 3
    assert log.ahead == [10, 20]


def test_a_normalizer_of_the_user_is_called_by_the_tick_itself() -> None:
    book, handler, threads = Book(30), Collected(), set[int]()

    def normalize(record: dict[str, Any], source: SourceDescriptor) -> RowChange:
        threads.add(threading.get_ident())
        return RowChange(None, "upsert", source, record["id"], {"id": record["id"]})

    run(poller(book, batch_size=10, max_batches_per_tick=10, normalizer=normalize), handler)
    assert (handler.ids, book.ahead, threads) == (list(range(30)), [10, 20], {threading.get_ident()})


def test_records_that_make_no_events_are_told_of_in_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    book, handler, store = Book(30), Collected(), MemoryStateStore()
    whole = book._page

    def torn(first: int, limit: int) -> FetchResult:
        page = whole(first, limit)
        return FetchResult([{}], page.next_checkpoint, page.more) if first == 10 else page

    monkeypatch.setattr(book, "_page", torn)
    with pytest.raises(SerializationError, match="no column 'id'"):
        run(poller(book, store, batch_size=10, max_batches_per_tick=10), handler)
    assert (handler.ids, position(store)) == (list(range(10)), {"cursor": 10})
    assert book.pages == [(0, False), (10, True), (10, False)]


def test_a_page_that_belongs_elsewhere_is_not_taken_for_the_next_one() -> None:
    page = FetchResult([{"id": 10}], {"cursor": 11})
    ahead = PageAhead.read({"cursor": 10}, lambda: page)
    assert ahead.at({"cursor": 20}) is None
    assert ahead.at({"cursor": 10}) == Page(page)


def test_what_was_handled_is_committed_though_asking_for_more_fails() -> None:
    """After a short page, a source that cannot tell whether more is waiting is asked before the commit."""

    class Failing(ListSource):
        def fetch(self, cursor: Any, batch_size: int) -> Any:
            if cursor is not None:
                raise FetchError("the table is locked")
            return super().fetch(cursor, batch_size)

    store, handler = MemoryStateStore(), Collected()
    with pytest.raises(FetchError, match="locked"):
        run(poller(Failing(5), store, batch_size=10, max_batches_per_tick=2), handler)
    assert handler.ids == list(range(5))
    assert position(store)["cursor"]["tiebreaker"] == {"id": 4}


def test_a_source_that_cannot_tell_whether_more_follows_is_read_once_for_each_page() -> None:
    class Unsure(Book):
        def _page(self, first: int, limit: int) -> FetchResult:
            page = super()._page(first, limit)
            return FetchResult(page.records, page.next_checkpoint, more=None)

    book = Unsure(30)
    assert drained(book)[0] == list(range(30))
    assert book.pages == [(0, False), (10, True), (20, True), (30, True)]


def test_where_no_thread_can_be_had_the_page_is_read_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_read: object, *, at_once: bool) -> None:
        raise RuntimeError("cannot start new thread at interpreter shutdown")

    monkeypatch.setattr(ahead_module, "in_background", refused)
    book = Book(20)
    assert drained(book)[0] == list(range(20))
    assert book.ahead == []
