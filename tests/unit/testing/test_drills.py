"""Which handlers survive the failure drills, and how the others are found out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from pydantic import BaseModel

from azure_functions_db import (
    AsyncDbWriter,
    ConfigurationError,
    DbBindings,
    DbConfig,
    DbOut,
    DbReader,
    DbWriter,
    HandlerError,
    PollContext,
    RowChange,
    SqlAlchemySource,
    SqlStateStore,
)
from azure_functions_db.sql.engine import default_provider
from azure_functions_db.testing.drills import Drill, Report, Verdict, run_drills

ROWS = [{"id": number, "version": number, "amount": number * 10} for number in range(1, 5)]


class World:
    """A target in memory."""

    def __init__(self) -> None:
        self.written: dict[Any, Any] = {}
        self.sent: list[Any] = []

    def reset(self) -> None:
        self.written.clear()
        self.sent.clear()

    def effects(self) -> Any:
        return {"written": self.written, "sent": self.sent}

    def drilled(self, handler: Callable[..., Any], **options: Any) -> Report:
        return run_drills(
            handler,
            **{
                "rows": ROWS,
                "cursor_column": "version",
                "pk_columns": ["id"],
                "effects": self.effects,
                "reset": self.reset,
                **options,
            },
        )


@pytest.fixture
def world() -> World:
    return World()


def verdicts(report: Report) -> dict[str, str]:
    return {finding.drill.value: finding.verdict.value for finding in report.findings}


def detail(report: Report, drill: Drill) -> str:
    return next(finding.detail for finding in report.findings if finding.drill is drill)


def test_an_idempotent_handler_survives_everything(world: World) -> None:
    def upsert(events: list[RowChange]) -> None:
        for event in events:
            world.written[event.pk["id"]] = event.after["amount"] if event.after else None

    report = world.drilled(upsert)
    assert set(verdicts(report).values()) == {"survived"}
    assert not report.failures
    assert "upsert survives" in str(report)


def test_appending_is_found_out_by_every_redelivery(world: World) -> None:
    def append(events: list[RowChange]) -> None:
        for event in events:
            world.sent.append((event.after or {})["amount"])

    report = world.drilled(append)
    assert set(verdicts(report).values()) == {"does not survive"}
    assert "each batch was delivered twice" in detail(report, Drill.DUPLICATES)
    assert "test_drills.py:" in detail(report, Drill.CRASH_AND_REDELIVER)
    assert "+ {'written': {}, 'sent': [10, 20, 10, 20" in detail(report, Drill.DUPLICATES)


def test_a_handler_that_cannot_meet_its_own_effects_again_is_found_out(world: World) -> None:
    def insert(events: list[RowChange]) -> None:
        for event in events:
            if event.pk["id"] in world.written:
                raise KeyError("duplicate key")
            world.written[event.pk["id"]] = event.after

    report = world.drilled(insert)
    assert verdicts(report)[Drill.DUPLICATES] == "does not survive"
    assert "and it failed: KeyError: 'duplicate key'" in detail(report, Drill.DUPLICATES)


def test_a_mark_set_before_its_effect_loses_the_effect_in_a_crash(world: World) -> None:
    def mark_first(events: list[RowChange]) -> None:
        for event in events:
            if event.event_id in world.written:
                continue
            world.written[event.event_id] = True
            world.sent.append((event.after or {})["amount"])

    report = world.drilled(mark_first, drills=[Drill.DUPLICATES, Drill.CRASH_AND_REDELIVER])
    assert verdicts(report) == {"duplicates": "survived", "crash-and-redeliver": "does not survive"}


def test_a_crash_cannot_be_swallowed(world: World) -> None:
    def stubborn(events: list[RowChange]) -> None:
        for event in events:
            with suppress(BaseException):
                world.sent.append((event.after or {})["amount"])

    report = world.drilled(stubborn, drills=["crash-and-redeliver"])
    assert report.failures


def test_a_handler_that_hides_bad_rows_is_found_out(world: World) -> None:
    def shrug(events: list[RowChange]) -> None:
        for event in events:
            try:
                world.written[event.pk["id"]] = (event.after or {})["amount"]
            except ValueError:
                continue

    report = world.drilled(shrug)
    assert verdicts(report) == {
        "duplicates": "survived",
        "crash-and-redeliver": "survived",
        "poison-rows": "does not survive",
        "lost-leases": "survived",
    }
    assert "hides the failure" in detail(report, Drill.POISON_ROWS)


def test_rows_that_are_never_read_cannot_be_poison(world: World) -> None:
    def keys_only(events: list[RowChange]) -> None:
        world.written.update({event.pk["id"]: True for event in events})

    report = world.drilled(keys_only, drills=["poison-rows"])
    assert verdicts(report) == {"poison-rows": "untested"}
    assert not report.failures


def test_poison_of_ones_own(world: World) -> None:
    def positive(events: list[RowChange]) -> None:
        for event in events:
            if event.after and event.after["amount"] < 0:
                raise ValueError("negative")
            world.written[event.pk["id"]] = True

    bad = [{"id": 9, "version": 9, "amount": -1}]
    assert verdicts(world.drilled(positive, poison=bad, drills=["poison-rows"])) == {"poison-rows": "survived"}
    harmless = [{"id": 9, "version": 9, "amount": 1}]
    report = world.drilled(positive, poison=harmless, drills=["poison-rows"])
    assert "0 came into the quarantine" in detail(report, Drill.POISON_ROWS)


LATER = [{"id": 1, "version": 9, "amount": 999}]


def test_a_blind_upsert_overwrites_new_with_old_after_a_lost_lease(world: World) -> None:
    def upsert(events: list[RowChange]) -> None:
        for event in events:
            world.written[event.pk["id"]] = (event.after or {})["amount"]

    report = world.drilled(upsert, later=LATER, drills=["lost-leases"])
    assert verdicts(report) == {"lost-leases": "does not survive"}
    assert "999" in detail(report, Drill.LOST_LEASES)


def test_comparing_versions_in_one_step_survives_a_lost_lease_and_in_two_it_does_not(world: World) -> None:
    def in_one_step(events: list[RowChange]) -> None:
        for event in events:
            key, state = event.pk["id"], (event.cursor, (event.after or {})["amount"])
            world.written[key] = max(world.written.get(key, (0, 0)), state)

    def in_two_steps(events: list[RowChange]) -> None:
        for event in events:
            known = world.written.get(event.pk["id"], (0, 0))
            world.written[event.pk["id"]] = max(known, (event.cursor, (event.after or {})["amount"]))

    options: dict[str, Any] = {"later": LATER, "drills": ["lost-leases"]}
    assert verdicts(world.drilled(in_one_step, **options)) == {"lost-leases": "survived"}
    assert verdicts(world.drilled(in_two_steps, **options)) == {"lost-leases": "does not survive"}


def test_the_context_tells_of_the_lost_lease(world: World) -> None:
    lost: list[bool] = []

    def watchful(events: list[RowChange], context: PollContext) -> None:
        for event in events:
            lost.append(context.lease_lost.is_set())
            world.written[event.pk["id"]] = (event.after or {})["amount"]

    report = world.drilled(watchful, drills=["lost-leases"])
    assert not report.failures
    assert set(lost) == {True, False}


async def async_upsert(events: list[RowChange]) -> None:
    for event in events:
        WORLD.written[event.pk["id"]] = (event.after or {})["amount"]


async def async_append(events: list[RowChange]) -> None:
    for event in events:
        WORLD.sent.append((event.after or {})["amount"])


WORLD = World()


def test_async_handlers_are_drilled_alike() -> None:
    assert set(verdicts(WORLD.drilled(async_upsert)).values()) == {"survived"}
    assert set(verdicts(WORLD.drilled(async_append)).values()) == {"does not survive"}


async def test_a_test_may_be_async_itself() -> None:
    assert not WORLD.drilled(async_upsert, drills=["duplicates", "lost-leases"]).failures


class Order(BaseModel):
    id: int
    amount: int


def test_models_are_drilled_with_poison_that_does_not_fit(world: World) -> None:
    def book(orders: list[Order]) -> None:
        world.written.update({order.id: order.amount for order in orders})

    assert verdicts(world.drilled(book, model=Order))[Drill.POISON_ROWS] == "untested"
    misfit = [{"id": 9, "version": 9, "amount": "a lot"}]
    assert set(verdicts(world.drilled(book, model=Order, poison=misfit)).values()) == {"survived"}


def test_effects_that_are_never_the_same_are_refused(world: World) -> None:
    numbers = iter(range(1000))

    def random_effect(events: list[RowChange]) -> None:
        world.sent.append(next(numbers))

    with pytest.raises(ConfigurationError, match="Two calm runs had different effects"):
        world.drilled(random_effect)


def test_a_handler_that_fails_on_a_calm_day_is_not_drilled(world: World) -> None:
    def broken(events: list[RowChange]) -> None:
        raise RuntimeError("always")

    with pytest.raises(HandlerError) as caught:
        world.drilled(broken)
    assert "calm run" in "".join(caught.value.__notes__)


def test_failures_made_on_purpose_stay_out_of_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def append(events: list[RowChange]) -> None:
        world.sent.extend((event.after or {})["amount"] for event in events)

    assert world.drilled(append).failures
    assert not caplog.records


@pytest.mark.parametrize("rows", [[], ROWS[:1]])
def test_too_few_rows_are_refused(world: World, rows: list[Any]) -> None:
    with pytest.raises(ConfigurationError, match="at least two rows"):
        world.drilled(lambda events: None, rows=rows)


def test_columns_must_be_known(world: World) -> None:
    with pytest.raises(ConfigurationError, match="cursor_column"):
        world.drilled(lambda events: None, cursor_column=None)


db = DbBindings()


@pytest.fixture
def shop(sqlite_database: str) -> str:
    from sqlalchemy import create_engine, text

    engine = create_engine(sqlite_database)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE target (id INTEGER PRIMARY KEY, amount INTEGER)"))
        connection.execute(text("CREATE TABLE ledger (id INTEGER, amount INTEGER)"))
    engine.dispose()
    return sqlite_database


def drilled_on(url: str, function: Any, table: str, **options: Any) -> Report:
    engine = default_provider().get_engine(DbConfig(connection_url=url))

    def empty() -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"DELETE FROM {table}")

    def effects() -> list[dict[str, Any]]:
        with DbReader(url=url) as reader:
            return reader.query(f"SELECT id, amount FROM {table} ORDER BY id, amount", params={})

    return run_drills(function, rows=ROWS, effects=effects, reset=empty, **options)


def source_at(url: str) -> SqlAlchemySource:
    return SqlAlchemySource(url=url, table="orders", cursor_column="version", pk_columns=["id"])


def test_a_function_of_an_app_is_drilled_with_all_that_is_injected(shop: str) -> None:
    @db.trigger(arg_name="events", source=source_at(shop), checkpoint_store=SqlStateStore(url=shop))
    @db.output("target", url=shop, table="target", action="upsert", conflict_columns=["id"])
    def mirror(timer: Any, events: list[RowChange], target: DbOut) -> None:
        target.set([{"id": event.pk["id"], "amount": (event.after or {})["amount"]} for event in events])

    report = drilled_on(shop, mirror, "target")
    assert report.handler == "mirror"
    assert set(verdicts(report).values()) == {"survived"}


def book(events: list[RowChange], ledger: DbWriter) -> None:
    for event in events:
        ledger.insert(data={"id": event.pk["id"], "amount": (event.after or {})["amount"]})


def test_the_transactional_mode_makes_a_plain_insert_survive(shop: str) -> None:
    def booking(*, transactional: bool) -> Any:
        store = SqlStateStore(url=shop)

        @db.trigger(arg_name="events", source=source_at(shop), checkpoint_store=store, transactional=transactional)
        @db.inject_writer("ledger", url=shop, table="ledger")
        def book_sales(timer: Any, events: list[RowChange], ledger: DbWriter) -> None:
            book(events, ledger)

        return book_sales

    drills = ["duplicates", "crash-and-redeliver"]
    careless = drilled_on(shop, booking(transactional=False), "ledger", drills=drills)
    assert set(verdicts(careless).values()) == {Verdict.FAILED}

    def new_store(**options: Any) -> SqlStateStore:
        return SqlStateStore(url=shop, **options)

    safe = drilled_on(shop, booking(transactional=True), "ledger", new_store=new_store, drills=drills)
    assert set(verdicts(safe).values()) == {Verdict.SURVIVED}
    with pytest.raises(ConfigurationError, match="new_store"):
        drilled_on(shop, booking(transactional=True), "ledger")


def test_a_handler_without_any_effect_is_refused(world: World) -> None:
    def looks_only(events: list[RowChange]) -> None:
        assert events

    with pytest.raises(ConfigurationError, match="had no effect"):
        world.drilled(looks_only)


def test_a_handler_that_forgets_an_await_is_refused(sqlite_database: str, world: World) -> None:
    async def forgetful(events: list[RowChange]) -> None:
        async with AsyncDbWriter(url=sqlite_database, table="items") as writer:
            writer.insert(data={"id": events[0].pk["id"]})  # type: ignore[unused-coroutine]

    with pytest.raises(HandlerError, match="never awaited"):
        world.drilled(forgetful)
