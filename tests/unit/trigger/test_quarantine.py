from __future__ import annotations

import datetime as dt
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pydantic
import pytest

from azure_functions_db.core.errors import CommitError, HandlerError, LostLeaseError, RowsFailed, SerializationError
from azure_functions_db.core.signals import RowQuarantined, TickCompleted
from azure_functions_db.core.types import FetchResult, HandledFirst, QuarantinedRow, SourceDescriptor
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.trigger.batch import Checkpoint, Search
from azure_functions_db.trigger.normalizers import RecordNormalizer, SmallSource
from azure_functions_db.trigger.retry import RetryPolicy
from tests.unit.trigger.poller import Collected, FullSource, ListSource, PlainStore, Recorder, poller, position, run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from azure_functions_db.core.types import CheckpointJson
    from azure_functions_db.trigger.events import RowChange


Elsewhere = QuarantinedRow(
    "orders", "old", {}, "ValueError", "", 1, "batch_old", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
)


@dataclass
class Sink:
    """Keeps rows in a dict, and what the checkpoint was when they came."""

    store: Any
    rows: dict[str, QuarantinedRow] = field(default_factory=dict)
    checkpoints: list[Any] = field(default_factory=list)
    broken: bool = False

    def put(self, rows: Sequence[QuarantinedRow]) -> None:
        if self.broken:
            raise OSError("disk full")
        self.checkpoints.append(self.store.load_checkpoint("orders"))
        self.rows |= {row.event_id: row for row in rows}

    def entries(self, poller_name: str | None = None) -> Iterable[QuarantinedRow]:
        return self.rows.values()

    def remove(self, poller_name: str, event_id: str) -> None:
        self.rows.pop(event_id, None)


@dataclass
class TakingBack(Sink):
    """Can take back what a batch has put aside; while it hangs, what it was asked takes effect later."""

    hangs: bool = False
    late: list[tuple[str, str]] = field(default_factory=list)

    def remove(self, poller_name: str, event_id: str) -> None:
        raise AssertionError("a removal that takes effect late would take what came since")

    def take_back(self, poller_name: str, batch_id: str) -> None:
        if self.hangs:
            self.late.append((poller_name, batch_id))
            raise TimeoutError
        assert poller_name == "orders"
        self.rows = {event_id: row for event_id, row in self.rows.items() if row.batch_id != batch_id}

    def take_effect(self) -> None:
        self.hangs = False
        for asked in self.late:
            self.take_back(*asked)


class Choosy(Collected):
    """Fails on some ids, and on everything during an outage."""

    def __init__(self, *bad: int) -> None:
        super().__init__()
        self.bad = set(bad)
        self.is_down = False
        self.calls = 0

    def __call__(self, events: Sequence[RowChange]) -> None:
        self.calls += 1
        for event in events:
            if self.is_down or event.pk["id"] in self.bad:
                raise ValueError(f"cannot digest {event.pk['id']!r}")
        super().__call__(events)


@pytest.fixture(params=["looking", "plain"])
def store(request: pytest.FixtureRequest) -> Any:
    return MemoryStateStore() if request.param == "looking" else PlainStore()


@pytest.fixture
def sink(store: Any) -> Sink:
    return Sink(store)


def fails(trigger: Any, handler: Any, times: int = 1, error: type[Exception] = HandlerError) -> None:
    for _ in range(times):
        with pytest.raises(error):
            run(trigger, handler)


def test_one_poison_row_in_forty_is_put_aside_and_the_stream_goes_on(store: Any, sink: Sink) -> None:
    source, handler, recorder = ListSource(60), Choosy(17), Recorder()
    trigger = poller(source, store, batch_size=40, quarantine=sink, max_attempts=2, observers=[recorder])
    fails(trigger, handler)
    assert run(trigger, handler) == 39
    assert list(dict.fromkeys(handler.ids)) == [number for number in range(40) if number != 17]
    [row] = sink.rows.values()
    assert (row.poller_name, row.error_type, row.error) == ("orders", "ValueError", "cannot digest 17")
    assert row.attempts == 2
    assert row.event["pk"] == {"id": 17}
    [checkpoint] = sink.checkpoints
    assert checkpoint["cursor"]["tiebreaker"] == {"id": 16}, "the row was in the sink before the checkpoint passed it"
    assert len(recorder.of(RowQuarantined)) == 1
    assert run(trigger, handler) == 20


def spoil(event: RowChange) -> None:
    row: Any = event.after
    row["document"].clear()
    row["renamed"] = row.pop("amount")


@pytest.mark.parametrize("attempts", [1, 2], ids=["once", "with a retry"])
def test_a_handler_that_changes_its_rows_does_not_spoil_the_next_attempt(store: Any, sink: Sink, attempts: int) -> None:
    source, handler = ListSource(12), Choosy(7)
    source.rows = [{**row, "amount": 1, "document": {"lines": [1]}} for row in source.rows]

    def spoiling(events: list[RowChange]) -> None:
        for event in events:
            assert event.after
            assert event.after["document"] == {"lines": [1]}
            spoil(event)
        handler(events)

    policy = RetryPolicy(max_attempts=attempts)
    trigger = poller(source, store, quarantine=sink, max_attempts=attempts, retry_policy=policy)
    assert run(trigger, spoiling) == 11
    [row] = sink.rows.values()
    assert row.error == "cannot digest 7"
    assert row.event["after"] == {"id": 7, "version": 2, "amount": 1, "document": {"lines": [1]}}


def test_an_error_that_cannot_say_what_it_is_does_not_block_for_ever(store: Any, sink: Sink) -> None:
    class SpeechlessError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def handler(events: list[RowChange]) -> None:
        if any(event.pk["id"] == 7 for event in events):
            raise SpeechlessError

    trigger = poller(ListSource(12), store, quarantine=sink, max_attempts=2)
    fails(trigger, handler)
    assert run(trigger, handler) == 11
    assert [row.error_type for row in sink.rows.values()] == ["SpeechlessError"]


def test_a_poison_row_at_the_end_of_a_batch_is_found(store: Any, sink: Sink) -> None:
    handler = Choosy(9)
    assert run(poller(ListSource(10), store, quarantine=sink, max_attempts=1), handler) == 9
    assert [row.event["pk"]["id"] for row in sink.rows.values()] == [9]


def test_many_poison_rows_at_the_start_do_not_block_for_ever(store: Any, sink: Sink) -> None:
    handler = Choosy(*range(25))
    trigger = poller(ListSource(40), store, quarantine=sink, max_attempts=1)
    fails(trigger, handler, times=2)
    assert run(trigger, handler) == 15
    assert len(sink.rows) == 25


def test_an_outage_puts_nothing_aside_and_moves_nothing(store: Any, sink: Sink) -> None:
    handler = Choosy()
    handler.is_down = True
    trigger = poller(ListSource(40), store, quarantine=sink, max_attempts=2)
    fails(trigger, handler, times=5)
    assert not sink.rows
    assert "cursor" not in store.load_checkpoint("orders")
    handler.is_down = False
    assert run(trigger, handler) == 40


def test_a_lone_poison_row_waits_until_it_can_be_told_from_an_outage(store: Any, sink: Sink) -> None:
    source, handler = ListSource(1), Choosy(0)
    trigger = poller(source, store, quarantine=sink, max_attempts=1)
    fails(trigger, handler, times=3)
    assert not sink.rows
    source.rows.append({"id": 1, "version": 1})
    run(trigger, handler)
    assert len(sink.rows) == 1
    assert run(trigger, handler) == 1


def test_batches_of_one_row_get_past_a_poison_row_too(store: Any, sink: Sink) -> None:
    source, handler = ListSource(5), Choosy(0)
    trigger = poller(source, store, batch_size=1, quarantine=sink, max_attempts=2)
    fails(trigger, handler)
    assert [run(trigger, handler) for _ in range(5)] == [0, 1, 1, 1, 1]
    assert len(sink.rows) == 1
    assert all(len(batch) == 1 for batch in handler.batches)


def test_attempts_survive_a_restart(store: Any, sink: Sink) -> None:
    source, handler = ListSource(5), Choosy(3)
    for _ in range(3):
        fails(poller(source, store, quarantine=sink, max_attempts=4), handler)
    assert run(poller(source, store, quarantine=sink, max_attempts=4), handler) == 4
    assert next(iter(sink.rows.values())).attempts == 4
    assert "failed_attempts" not in store.load_checkpoint("orders")["metadata"]


def test_without_a_sink_the_batch_is_retried_for_ever(store: Any) -> None:
    handler = Choosy(3)
    trigger = poller(ListSource(5), store, max_attempts=1)
    fails(trigger, handler, times=4)
    assert position(store) == {}


def test_a_sink_that_fails_keeps_the_checkpoint_where_it_is(store: Any, sink: Sink) -> None:
    sink.broken = True
    trigger = poller(ListSource(5), store, quarantine=sink, max_attempts=1)
    fails(trigger, Choosy(3), error=CommitError)
    assert store.load_checkpoint("orders")["cursor"]["tiebreaker"] == {"id": 2}


def test_a_lease_that_ran_out_before_the_commit_commits_nothing(store: Any) -> None:
    clock = [0.0]

    class Slow(Sink):
        def put(self, rows: Sequence[QuarantinedRow]) -> None:
            clock[0] += 0 if clock[0] else 1000
            super().put(rows)

    sink = Slow(store)
    trigger = poller(ListSource(5), store, quarantine=sink, max_attempts=1, monotonic=lambda: clock[0])
    fails(trigger, Choosy(3), error=LostLeaseError)
    assert store.load_checkpoint("orders")["cursor"]["tiebreaker"] == {"id": 2}
    assert run(trigger, Choosy(3)) == 1
    assert len(sink.rows) == 1, "the same row put aside twice is kept once"


def test_a_row_put_aside_by_a_batch_that_never_was_committed_is_taken_back(store: Any, sink: Sink) -> None:
    clock, handler = [0.0], Choosy(3)

    class Slow(Sink):
        def put(self, rows: Sequence[QuarantinedRow]) -> None:
            super().put(rows)
            clock[0] += 1000

    sink = Slow(store)
    sink.rows["old"] = Elsewhere
    trigger = poller(ListSource(5), store, quarantine=sink, max_attempts=1, monotonic=lambda: clock[0])
    fails(trigger, handler, error=LostLeaseError)
    assert len(sink.rows) == 2
    handler.bad = set()
    assert run(trigger, handler) == 2
    assert list(sink.rows) == ["old"], "a replay would hand out what has been handled since"
    assert "aside" not in store.load_checkpoint("orders")["metadata"]


def test_what_the_next_holder_has_put_aside_is_not_taken_back_by_one_whose_lease_is_over(store: Any) -> None:
    clock = [0.0]

    class Slow(Sink):
        """A second passes before a row is kept, a lifetime of the lease while rows are listed."""

        def put(self, rows: Sequence[QuarantinedRow]) -> None:
            super().put(rows)
            clock[0] += 1000

        def entries(self, poller_name: str | None = None) -> Iterable[QuarantinedRow]:
            clock[0] += 1000
            return super().entries(poller_name)

    sink = Slow(store)
    trigger = poller(ListSource(5), store, quarantine=sink, max_attempts=1, monotonic=lambda: clock[0])
    fails(trigger, Choosy(3), error=LostLeaseError)
    fails(trigger, Choosy(3), error=LostLeaseError)
    assert len(sink.rows) == 1, "by now it may be another holder's, whose checkpoint has passed it"


def test_twenty_five_poison_rows_do_not_stop_batches_of_ten(store: Any, sink: Sink) -> None:
    handler = Choosy(*range(25))
    trigger = poller(ListSource(40), store, batch_size=10, quarantine=sink, max_attempts=1)
    for _ in range(12):
        with suppress(HandlerError):
            run(trigger, handler)
    assert [row.event["pk"]["id"] for row in sink.rows.values()] == list(range(25))
    assert set(handler.ids) == set(range(25, 40))


def test_an_outage_that_ends_during_the_search_puts_no_good_row_aside(store: Any, sink: Sink) -> None:
    for end in range(1, 30, 4):
        handler = Choosy(6)
        trigger = poller(ListSource(12), MemoryStateStore(), quarantine=sink, max_attempts=1)

        def passing(events: Sequence[RowChange], end: int = end, handler: Choosy = handler) -> None:
            handler.is_down = handler.calls < end
            handler(events)

        for _ in range(12):
            with suppress(HandlerError):
                run(trigger, passing)
        assert [row.event["pk"]["id"] for row in sink.rows.values()] == [6]
        assert set(handler.ids) == {*range(12)} - {6}


def test_a_search_that_is_killed_goes_on_where_it_was(store: Any, sink: Sink) -> None:
    class KilledError(BaseException):
        pass

    handler = Choosy(17)

    def killed(events: Sequence[RowChange]) -> None:
        """End the process at every second call."""
        handler.calls += 1
        if handler.calls % 2 == 0:
            raise KilledError
        handler.calls -= 1
        handler(events)

    for _ in range(60):
        with suppress(KilledError, HandlerError):
            run(poller(ListSource(40), store, quarantine=sink, max_attempts=1), killed)
        if isinstance(store, MemoryStateStore):
            store.break_lease("orders")
        else:
            store._store.break_lease("orders")
    assert [row.event["pk"]["id"] for row in sink.rows.values()] == [17]
    assert set(handler.ids) == {*range(40)} - {17}


def test_a_search_and_its_pauses_respect_the_time_budget(store: Any, sink: Sink) -> None:
    clock, handler, ticks = [0.0], Choosy(17), []

    def slow(events: Sequence[RowChange]) -> None:
        clock[0] += 10
        handler(events)

    options: dict[str, Any] = {"quarantine": sink, "max_attempts": 1, "time_budget_seconds": 25}
    policy = RetryPolicy(max_attempts=5, delay_seconds=30, jitter=0)
    trigger = poller(
        ListSource(40),
        store,
        monotonic=lambda: clock[0],
        lease_ttl_seconds=1_000_000,
        retry_policy=policy,
        sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds),
        **options,
    )
    for _ in range(20):
        began = clock[0]
        with suppress(HandlerError):
            run(trigger, slow)
        ticks.append(clock[0] - began)
    assert max(ticks) <= 25
    assert [row.event["pk"]["id"] for row in sink.rows.values()] == [17]
    assert set(handler.ids) == {*range(40)} - {17}


def test_a_tick_that_ends_in_the_middle_of_a_search_has_handled_a_batch(store: Any, sink: Sink) -> None:
    clock, handler, recorder = [0.0], Choosy(33), Recorder()

    def slow(events: Sequence[RowChange]) -> None:
        clock[0] += 10
        handler(events)

    options: dict[str, Any] = {"quarantine": sink, "max_attempts": 1, "time_budget_seconds": 25}
    run(poller(ListSource(40), store, monotonic=lambda: clock[0], observers=[recorder], **options), slow)
    [tick] = recorder.of(TickCompleted)
    assert (tick.handled_count, tick.batches) == (20, 1)


def test_a_handler_that_names_every_row_is_believed(store: Any, sink: Sink) -> None:
    def handler(events: Sequence[RowChange]) -> None:
        raise RowsFailed({event.event_id: "never" for event in events})

    assert run(poller(ListSource(4), store, quarantine=sink, max_attempts=1), handler) == 0
    assert [row.event["pk"]["id"] for row in sink.rows.values()] == [0, 1, 2, 3]
    assert store.load_checkpoint("orders")["cursor"]["tiebreaker"] == {"id": 3}


def test_a_good_row_behind_many_pages_of_other_partitions_is_found(store: Any, sink: Sink) -> None:
    class Rare(SmallSource):
        """A source whose pages bring the rows 0 and 20 only, and one row of somebody else's at a time."""

        def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
            found = super().fetch_changes(checkpoint, 1)
            ours = [record for record in found.records if record["id"] in {0, 20}]
            return replace(found, records=ours)

    handler = Choosy(0)
    source = Rare(ListSource(21), RecordNormalizer("version", "id"))
    trigger = poller(source, store, normalizer=RecordNormalizer("version", "id"), quarantine=sink, max_attempts=1)
    for _ in range(40):
        with suppress(HandlerError):
            run(trigger, handler)
    assert [row.event["pk"]["id"] for row in sink.rows.values()] == [0]
    assert 20 in handler.ids


def test_a_row_that_changes_during_the_search_is_judged_anew(store: Any, sink: Sink) -> None:
    source, handler = ListSource(3), Choosy(0)
    trigger = poller(source, store, quarantine=sink, max_attempts=1)

    def mending(events: Sequence[RowChange]) -> None:
        if handler.calls == 4:
            handler.bad = {1}
            source.rows = [row for row in source.rows if row["id"]]
        handler(events)

    for _ in range(4):
        with suppress(HandlerError):
            run(trigger, mending)
    assert [row.event["pk"]["id"] for row in sink.rows.values()] == [1]


def test_a_good_row_that_fails_once_is_not_put_aside_for_a_bad_one_that_has_gone(store: Any, sink: Sink) -> None:
    source, handler = ListSource(3), Choosy(0)
    trigger = poller(source, store, quarantine=sink, max_attempts=1)

    def deleting(events: Sequence[RowChange]) -> None:
        if handler.calls == 7:
            handler.bad = set()
        handler(events)
        if handler.calls == 6:  # the last witness against row 0
            source.rows = [row for row in source.rows if row["id"]]
            handler.bad = {1}

    run(trigger, deleting)
    assert (sink.rows, handler.bad) == ({}, set())
    assert set(handler.ids) == {1, 2}


def test_the_last_row_that_was_digested_is_a_witness_whatever_was_put_aside_since(store: Any, sink: Sink) -> None:
    handler, options = Choosy(1, 2), {"batch_size": 1, "max_batches_per_tick": 20}
    run(poller(ListSource(3), store, quarantine=sink, max_attempts=1, **options), handler)
    assert sorted(row.event["pk"]["id"] for row in sink.rows.values()) == [1, 2]


def test_a_run_of_bad_rows_has_its_witness_looked_for_once(store: Any, sink: Sink) -> None:
    handler = Choosy(*range(8))
    run(poller(ListSource(12), store, quarantine=sink, max_attempts=1), handler)
    assert sorted(row.event["pk"]["id"] for row in sink.rows.values()) == list(range(8))
    assert handler.calls <= 58


def test_an_outage_ends_the_search_of_a_tick_after_few_calls(store: Any, sink: Sink) -> None:
    handler = Choosy()
    handler.is_down = True
    fails(poller(ListSource(100), store, quarantine=sink, max_attempts=1), handler)
    assert (handler.calls, sink.rows) == (18, {}), "seven halves and ten witnesses"


def test_a_search_is_not_begun_where_no_time_is_left_for_it(store: Any, sink: Sink) -> None:
    clock, handler = [0.0], Choosy(3)

    def slow(events: Sequence[RowChange]) -> None:
        clock[0] += 10
        handler(events)

    options: dict[str, Any] = {"quarantine": sink, "max_attempts": 1, "time_budget_seconds": 15}
    trigger = poller(ListSource(8), store, monotonic=lambda: clock[0], **options)
    fails(trigger, slow)
    assert handler.calls == 1
    for _ in range(30):
        with suppress(HandlerError):
            run(trigger, slow)
    assert set(handler.ids) == {*range(8)} - {3}, "each tick goes on where the last one was"


def test_a_handler_names_its_culprits(store: Any, sink: Sink) -> None:
    calls = []

    def handler(events: Sequence[RowChange]) -> None:
        calls.append(len(events))
        raise RowsFailed({events[2].event_id: "no such customer", events[4].event_id: KeyError("x")})

    assert run(poller(ListSource(10), store, quarantine=sink, max_attempts=1), handler) == 8
    assert {row.event["pk"]["id"]: row.error_type for row in sink.rows.values()} == {2: "RowsFailed", 4: "KeyError"}
    assert calls == [10, 10]


def test_a_handler_that_names_strangers_is_searched_like_any_other(store: Any, sink: Sink) -> None:
    def handler(_events: Sequence[RowChange]) -> None:
        raise RowsFailed({"nobody": "?"})

    fails(poller(ListSource(4), store, quarantine=sink, max_attempts=1), handler)
    assert not sink.rows


class Order(pydantic.BaseModel):
    id: int
    version: int
    amount: pydantic.PositiveInt = 1


def test_the_handler_is_given_models(store: Any) -> None:
    handler = Collected()
    run(poller(ListSource(2), store, model=Order), handler)
    assert handler.batches == [[Order(id=0, version=0), Order(id=1, version=0)]]


def test_a_row_that_fits_no_model_is_an_error_and_with_a_sink_a_failed_row(store: Any, sink: Sink) -> None:
    source, handler = ListSource(5), Collected()
    source.rows[3]["amount"] = -1
    with pytest.raises(SerializationError, match="amount") as caught:
        run(poller(source, store, model=Order), handler)
    assert "-1" not in str(caught.value), "values of rows do not belong into messages"
    assert caught.value.batch_id is not None
    assert handler.batches == []
    trigger = poller(source, store, model=Order, quarantine=sink, max_attempts=2)
    fails(trigger, handler, error=SerializationError)
    assert run(trigger, handler) == 4
    assert [row.event["pk"]["id"] for row in sink.rows.values()] == [3]
    assert [model.id for model in handler.batches[0]] == [0, 1, 2, 4]


def test_a_row_on_which_a_validator_breaks_down_does_not_block_for_ever(store: Any, sink: Sink) -> None:
    class Priced(Order):
        @pydantic.field_validator("amount")
        @classmethod
        def known(cls, amount: int) -> int:
            return {1: 1}[amount]  # Pydantic takes ValueErrors for misfits, this one it lets through

    source, handler = ListSource(5), Collected()
    source.rows[3]["amount"] = 7
    trigger = poller(source, store, model=Priced, quarantine=sink, max_attempts=2)
    fails(trigger, handler, error=SerializationError)
    assert run(trigger, handler) == 4
    assert [(row.event["pk"]["id"], row.error_type) for row in sink.rows.values()] == [(3, "KeyError")]


def test_a_model_that_fits_no_row_puts_nothing_aside(store: Any, sink: Sink) -> None:
    source = ListSource(5)
    for row in source.rows:
        row["amount"] = -1
    trigger = poller(source, store, model=Order, quarantine=sink, max_attempts=1)
    fails(trigger, Collected(), times=3)
    assert not sink.rows


def test_what_is_kept_of_an_error_is_short_and_shows_neither_secrets_nor_values(store: Any, sink: Sink) -> None:
    class Talkative(Choosy):
        def __call__(self, events: Sequence[RowChange]) -> None:
            try:
                super().__call__(events)
            except ValueError:
                raise ValueError("no route to mysql://ann:" + "hunter-2@host\n" + "and again " * 100_000) from None

    source = ListSource(5)
    source.rows[1]["amount"] = "private-amount"
    trigger = poller(source, store, model=Order, quarantine=sink, max_attempts=1)
    run(trigger, lambda _models: None)
    run(poller(ListSource(20), quarantine=sink, max_attempts=1), Talkative(13))
    misfit, talk = (row.error for row in sink.rows.values())
    assert "input_value=***" in misfit
    assert "private-amount" not in misfit
    assert talk.startswith("no route to mysql://ann:***@host\nand again")
    assert len(talk.encode()) <= 2048


class Pages(FullSource):
    """The full port over prepared pages; notes from where it was read."""

    cursor_column, pk_columns = "id", ("id",)
    source_descriptor = SourceDescriptor("pages", "fake", "sha256:p")

    def __init__(self, rows: set[int], end: int, *, size: int | None = None, held_back: bool = False) -> None:
        self.rows = rows
        self.end = end
        self.size = size
        self.held_back = held_back
        self.reads: list[int] = []

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        assert limit >= 1, "a page has at least one row"
        first = checkpoint.get("cursor", 0)
        self.reads.append(first)
        end = min(first + (self.size or limit), self.end)
        records = [{"id": number} for number in range(first, end) if number in self.rows]
        return FetchResult(records, {"cursor": end}, more=end < self.end or self.held_back)


def test_a_search_looks_for_its_witness_over_pages_that_bring_nothing() -> None:
    store = MemoryStateStore()
    sink, source, handler = Sink(store), Pages({0, 30}, 60, size=1), Choosy(0)
    trigger = poller(source, store, batch_size=1, quarantine=sink, max_attempts=1, max_batches_per_tick=100)
    run(trigger, handler)
    assert [row.event["pk"]["id"] for row in sink.rows.values()] == [0]
    assert set(handler.ids) == {30}


@pytest.mark.parametrize("held_back", [False, True])
def test_where_nothing_follows_a_suspect_it_is_not_asked_for_a_hundred_times(held_back: bool) -> None:
    store = MemoryStateStore()
    sink, source = Sink(store), Pages({0}, 1, held_back=held_back)
    fails(poller(source, store, quarantine=sink, max_attempts=1), Choosy(0))
    assert sink.rows == {}
    assert len(source.reads) <= 4
    assert source.reads.count(1) == (1 if held_back else 0)


def test_a_transaction_that_comes_whole_is_never_judged_by_what_was_known_of_its_first_row() -> None:
    """Its other rows would be passed with it."""
    store = MemoryStateStore()
    sink, source, handler = Sink(store), Pages({0, 1, 2}, 3, size=3), Choosy(0)
    trigger = poller(source, store, batch_size=1, quarantine=sink, max_attempts=5)
    fails(trigger, handler)
    noted = Checkpoint.of(store.load_checkpoint("orders"))
    assert noted.notes["failed_attempts"] == 1
    judged = noted.with_search(Search(parts=(1,), suspect=event_ids(source)[0], proofs=4))
    lease = store.acquire_lease("orders", 60)
    store.commit_checkpoint("orders", judged.stored, lease)
    store.release_lease("orders", lease)
    fails(trigger, handler)
    after = Checkpoint.of(store.load_checkpoint("orders"))
    assert (sink.rows, after.position, after.notes["failed_attempts"]) == ({}, {}, 2)


def test_a_transaction_that_comes_whole_is_handed_out_once_in_a_tick_where_no_row_of_it_was_named() -> None:
    store, handler = MemoryStateStore(), Choosy(0)
    trigger = poller(Pages({0, 1, 2}, 3, size=3), store, batch_size=1, quarantine=Sink(store), max_attempts=1)
    fails(trigger, handler, times=3)
    assert handler.calls == 3


def event_ids(source: Pages) -> list[str]:
    seen = Collected()
    run(poller(source), seen)
    return [event.event_id for event in seen.batches[0]]


def broken_off(store: MemoryStateStore, batch_id: str) -> dict[str, QuarantinedRow]:
    """Leave the note of a batch that was never committed; return its row in a quarantine, and one of another batch."""
    lease = store.acquire_lease("orders", 60)
    store.commit_checkpoint("orders", Checkpoint().noting(aside=batch_id).stored, lease)
    store.release_lease("orders", lease)
    return {"old": Elsewhere, "new": replace(Elsewhere, event_id="new", batch_id=batch_id)}


def test_only_what_the_batch_itself_has_put_aside_is_taken_back() -> None:
    store = MemoryStateStore()
    sink = Sink(store, broken_off(store, "batch_new"))
    assert run(poller(ListSource(3), store, quarantine=sink), Collected()) == 3
    assert sink.rows == {"old": Elsewhere}


def test_a_sink_that_can_take_back_is_asked_for_the_batch_and_for_nothing_else() -> None:
    store = MemoryStateStore()
    sink = TakingBack(store, broken_off(store, "batch_new"))
    assert run(poller(ListSource(3), store, quarantine=sink), Collected()) == 3
    assert sink.rows == {"old": Elsewhere}
    assert "aside" not in store.load_checkpoint("orders")["metadata"]


def test_a_note_that_was_read_after_the_lease_was_lost_takes_nothing_back() -> None:
    """It may be that of the next holder, who is about to commit."""
    clock, memory = [0.0], MemoryStateStore()
    sink = TakingBack(memory, broken_off(memory, "batch_new"))

    class Paused(PlainStore):
        def load_checkpoint(self, poller_name: str) -> CheckpointJson:
            clock[0] += 1000
            return super().load_checkpoint(poller_name)

    trigger = poller(ListSource(3), Paused(memory), quarantine=sink, monotonic=lambda: clock[0])
    fails(trigger, Collected(), error=LostLeaseError)
    assert list(sink.rows) == ["old", "new"]


def test_a_row_that_was_put_aside_anew_outlives_a_removal_that_was_given_up() -> None:
    store, handler = MemoryStateStore(), Choosy(1)
    sink = TakingBack(store, broken_off(store, "batch_new"), hangs=True)
    trigger = poller(ListSource(3), store, quarantine=sink, max_attempts=1)
    fails(trigger, handler, error=CommitError)
    assert (handler.calls, len(sink.rows)) == (0, 2), "what was put aside must be gone before its rows come again"
    sink.hangs = False
    assert run(trigger, handler) == 2
    sink.take_effect()
    assert [row.event.get("pk") for row in sink.rows.values()] == [None, {"id": 1}], "the checkpoint has passed it"


def test_a_part_of_a_search_that_is_handled_in_part_loses_nothing(store: Any, sink: Sink) -> None:
    handled: list[Any] = []

    def one_at_a_time(events: Sequence[RowChange]) -> HandledFirst | None:
        if any(event.pk["id"] == 5 for event in events):
            raise ValueError("cannot digest 5")
        handled.append(events[0].pk["id"])
        return HandledFirst(1) if len(events) > 1 else None

    trigger = poller(ListSource(8), store, batch_size=8, quarantine=sink, max_attempts=1, max_batches_per_tick=50)
    for _ in range(12):
        with suppress(HandlerError):
            run(trigger, one_at_a_time)
    assert list(dict.fromkeys(handled)) == [0, 1, 2, 3, 4, 6, 7]
    assert [row.event["pk"]["id"] for row in sink.rows.values()] == [5]
    assert position(store)["cursor"]["tiebreaker"] == {"id": 7}


def test_a_transaction_that_fails_otherwise_the_second_time_is_left_whole_for_the_next_tick() -> None:
    store, calls = MemoryStateStore(), list[int]()
    sink, source = Sink(store), Pages({0, 1, 2}, 3, size=3)

    def handler(events: Sequence[RowChange]) -> None:
        calls.append(len(events))
        if len(calls) == 1:
            raise RowsFailed({events[0].event_id: "bad"})
        raise ValueError("the bank does not answer")

    fails(poller(source, store, batch_size=1, quarantine=sink, max_attempts=1), handler)
    noted = Checkpoint.of(store.load_checkpoint("orders"))
    assert (calls, sink.rows, noted.position) == ([3, 3], {}, {})
    assert (noted.notes["failed_attempts"], noted.search(1)) == (1, None)


def test_an_outage_in_a_search_counts_as_an_attempt() -> None:
    store, handler = MemoryStateStore(), Choosy(0)
    trigger = poller(ListSource(1), store, quarantine=Sink(store), max_attempts=1)
    attempts = []
    for _ in range(3):
        fails(trigger, handler)
        attempts.append(Checkpoint.of(store.load_checkpoint("orders")).notes["failed_attempts"])
    assert attempts == sorted(set(attempts)), "each tick that gives up is one more"
