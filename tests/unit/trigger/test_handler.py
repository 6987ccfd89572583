"""What a handler is given, what it may return, and what counts as handled."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pydantic
import pytest

from azure_functions_db import ConfigurationError, HandledFirst, HandlerError, MemoryStateStore, RowsFailed
from azure_functions_db.core.bridge import must_be_awaited
from azure_functions_db.core.types import SourceDescriptor
from azure_functions_db.trigger.batch import Checkpoint
from azure_functions_db.trigger.events import RowChange
from azure_functions_db.trigger.handler import (
    Handler,
    Misfits,
    arguments_reader,
    count_before_failed,
    mapped,
    misfit_text,
    named_rows,
)
from tests.unit.trigger.poller import Collected, ListSource, poller, run


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_a_handler_got_through_is_committed_and_the_rest_comes_again(count: int) -> None:
    store, rest, source = MemoryStateStore(), Collected(), ListSource(3)
    assert run(poller(source, store), lambda _events: HandledFirst(count)) == count
    assert source.fetches == 1, "a source that tells where each row ends is not read again"
    run(poller(ListSource(3), store), rest)
    assert rest.ids == [0, 1, 2][count:]


@pytest.mark.parametrize("count", [-1, 0, 4])
def test_a_handler_cannot_have_got_through_nothing_or_more_than_it_was_given(count: int) -> None:
    store, again = MemoryStateStore(), Collected()
    with pytest.raises(HandlerError, match="for 3 event"):
        run(poller(ListSource(3), store), lambda _events: HandledFirst(count))
    run(poller(ListSource(3), store), again)
    assert again.ids == [0, 1, 2]


async def numbers() -> Any:
    yield 1


@pytest.mark.parametrize("handler", [numbers, (lambda: (yield)), "not callable"])
def test_what_would_not_run_is_refused(handler: Any) -> None:
    with pytest.raises(ConfigurationError):
        Handler(handler)


@pytest.mark.parametrize("returned", [numbers, lambda: (number for number in [1])])
def test_a_generator_that_comes_back_is_no_success(returned: Any) -> None:
    with pytest.raises(HandlerError, match="returned a generator"):
        run(poller(ListSource(1)), lambda _events: returned())


def test_a_handler_may_take_its_events_out_of_the_list() -> None:
    def take(events: list[Any]) -> HandledFirst | None:
        taken = [events.pop() for _ in range(len(events))]
        return HandledFirst(2) if len(taken) == 3 else None

    source, store = ListSource(5), MemoryStateStore()
    trigger = poller(source, store, batch_size=3)
    assert [run(trigger, take) for _ in range(3)] == [2, 2, 1]


def test_a_future_that_nobody_would_await_is_no_success() -> None:
    loop = asyncio.new_event_loop()
    with pytest.raises(HandlerError, match="only run_async"):
        run(poller(ListSource(1)), lambda _events: loop.create_future())
    loop.close()


class Writer:
    """What an async binding hands to a function."""

    @must_be_awaited
    async def insert(self) -> None: ...


def test_a_write_that_a_plain_handler_cannot_await_is_no_success() -> None:
    def forgetful(_events: Any) -> None:
        Writer().insert()  # type: ignore[unused-coroutine]  # that is what it is about

    store = MemoryStateStore()
    with pytest.raises(HandlerError, match=r"Writer.insert was called but never awaited"):
        run(poller(ListSource(1), store), forgetful)
    assert Checkpoint.of(store.load_checkpoint("orders")).position == {}


def test_a_coroutine_that_cannot_be_awaited_is_closed_before_python_warns_of_it() -> None:
    async def work() -> None: ...

    coroutine = work()
    with pytest.raises(HandlerError, match="only run_async"):
        run(poller(ListSource(1)), lambda _events: coroutine)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


def by_keyword(events: Any, *, context: Any) -> None: ...
def second(events: Any, circumstances: Any) -> None: ...
def named(events: Any, context: Any = None) -> None: ...
def alone(events: Any) -> None: ...
def with_option(events: Any, dry: bool = False) -> None: ...
def with_keyword(events: Any, *, dry: bool = False) -> None: ...
def with_many(*events: Any) -> None: ...
def with_rest(events: Any, *rest: Any) -> None: ...
def with_context_last(events: Any, dry: bool = False, context: Any = None) -> None: ...


@pytest.mark.parametrize(
    ("handler", "arguments"),
    [
        (by_keyword, (("events",), {"context": "context"})),
        (second, (("events", "context"), {})),
        (named, (("events", "context"), {})),
        (alone, (("events",), {})),
        (with_option, (("events",), {})),
        (with_keyword, (("events",), {})),
        (with_many, (("events",), {})),
        (with_rest, (("events",), {})),
        (with_context_last, (("events",), {})),
        (dict.update, (("events",), {})),
    ],
)
def test_a_handler_is_given_the_context_where_it_asks_for_it(handler: Any, arguments: Any) -> None:
    assert arguments_reader(handler)("events", "context") == arguments


def test_rows_that_a_handler_names_are_believed_when_they_are_of_the_batch() -> None:
    got = Collected()
    run(poller(ListSource(3)), got)
    events = got.batches[0]
    ids = [event.event_id for event in events]
    assert count_before_failed(RowsFailed({ids[1]: "bad"}), events) == 1
    assert count_before_failed(RowsFailed(dict.fromkeys(ids[1:] + ids[:1], "bad")), events) == 0
    assert count_before_failed(RowsFailed({ids[2]: "bad", "a stranger": "bad"}), events) == 0
    assert named_rows(RowsFailed(dict.fromkeys(ids, "bad")), events).keys() == set(ids)
    assert named_rows(RowsFailed({ids[0]: "bad", "a stranger": "bad"}), events) == {}
    assert named_rows(ValueError(), events) == {}


def test_a_misfit_of_a_users_own_kind_is_told_by_its_words() -> None:
    class OddError(ValueError):
        errors = ("a list, not a method",)

    class OdderError(Exception):
        def errors(self) -> None:
            raise AssertionError("nobody said that this can be called")

    assert misfit_text(OddError("too long")) == "OddError: too long"
    assert misfit_text(OdderError("too short")) == "OdderError: too short"


def test_a_row_that_is_gone_is_given_as_it_was_and_misfits_are_named_without_their_values() -> None:
    class Order(pydantic.BaseModel):
        id: int

    def event(number: int, **rows: Any) -> RowChange:
        return RowChange(
            f"e{number}", "delete", SourceDescriptor("orders", "list", "f"), number, {"id": number}, **rows
        )

    gone, odd = event(1, before={"id": 1}, after=None), event(2, before=None, after={"id": "hunter2"})
    fitting, misfits = mapped([gone, odd], Order)
    assert (fitting, list(misfits)) == ([Order(id=1)], ["e2"])
    assert misfit_text(misfits["e2"]).startswith("id: Input should be a valid integer")
    assert "hunter2" not in misfit_text(misfits["e2"])
    assert named_rows(Misfits(misfits), [gone, odd]) == misfits
    assert named_rows(Misfits(misfits), [odd]) == {}, "where no row fits, the model is wrong"
