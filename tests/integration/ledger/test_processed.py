"""`processed_once`: an effect happens once for each event, however often the event comes."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from sqlalchemy import create_engine, text

from azure_functions_db import DbWriter, EngineProvider, MemoryStateStore, PollTrigger, WriteError
from azure_functions_db.ledger import ProcessedLedger, processed_once
from azure_functions_db.testing.memory import MemorySource
from tests.support.waiting import wait_for

DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Change:
    event_id: str
    cursor: int = 0
    pk: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)


def changes_of(consumer: str, *ids: str) -> list[Change]:
    return [Change(event_id, metadata={"consumer": consumer}) for event_id in ids]


@pytest.fixture
def target(database_url: str) -> Iterator[str]:
    """A database with a table that counts effects: there is no key to hide a second one behind."""
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (event_id VARCHAR(80))"))
    yield database_url
    engine.dispose()


def handle(events: list[Change], url: str, provider: EngineProvider, *, fails: bool = False) -> list[str]:
    """Do what a handler does: write an effect for each event that is new."""
    with processed_once(events, url=url, engine_provider=provider) as new:
        with DbWriter(url=url, table="effects", engine_provider=provider) as writer:
            writer.insert_many(rows=[{"event_id": event.event_id} for event in new])
        if fails:
            raise RuntimeError("after the effect")
    return [event.event_id for event in new]


def effects(url: str, provider: EngineProvider) -> list[str]:
    from azure_functions_db import DbConfig

    with provider.get_engine(DbConfig(connection_url=url)).connect() as connection:
        return sorted(connection.scalars(text("SELECT event_id FROM effects")))


def test_an_event_that_comes_again_has_no_second_effect(target: str, provider: EngineProvider) -> None:
    first, second, third = Change("a"), Change("b"), Change("c")
    assert handle([first, second], target, provider) == ["a", "b"]
    assert handle([second, third, third], target, provider) == ["c"]
    assert handle([first, second, third], target, provider) == []
    assert handle([], target, provider) == []
    assert effects(target, provider) == ["a", "b", "c"]


def test_ids_that_differ_in_case_only_are_two_events(target: str, provider: EngineProvider) -> None:
    assert handle([Change("aB")], target, provider) == ["aB"]
    assert handle([Change("Ab"), Change("aB")], target, provider) == ["Ab"]


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_an_id_that_is_too_long_is_an_error_and_not_an_event_that_was_there(
    request: pytest.FixtureRequest, provider: EngineProvider, kind: str
) -> None:
    url = str(request.getfixturevalue(f"{kind}_database"))
    with pytest.raises(WriteError), processed_once([Change("x" * 201)], url=url, engine_provider=provider):
        pytest.fail("nothing is to be handled")


def test_a_handler_that_fails_has_neither_effect_nor_note(target: str, provider: EngineProvider) -> None:
    with pytest.raises(RuntimeError):
        handle([Change("a")], target, provider, fails=True)
    assert effects(target, provider) == []
    assert handle([Change("a")], target, provider) == ["a"]


def test_handlers_with_scopes_of_their_own_share_a_table(target: str, provider: EngineProvider) -> None:
    for scope in ("mail", "billing"):
        with ProcessedLedger(url=target, engine_provider=provider, scope=scope).once([Change("a")]) as new:
            assert [event.event_id for event in new] == ["a"]


def test_each_function_on_a_source_has_notes_of_its_own(target: str, provider: EngineProvider) -> None:
    source = MemorySource([{"id": 1, "v": 1}, {"id": 2, "v": 2}], cursor_column="v", pk_columns=["id"])
    for name in ("billing", "mail", "billing", "m" * 180, "m" * 181):
        poller = PollTrigger(name=name, source=source, checkpoint_store=MemoryStateStore())
        poller.run(timer=None, handler=lambda events: handle(events, target, provider))
    assert len(effects(target, provider)) == 8


def test_partitions_and_other_pollers_of_one_function_share_its_notes(target: str, provider: EngineProvider) -> None:
    source = MemorySource([{"id": 1, "v": 1}], cursor_column="v", pk_columns=["id"])
    for name in ("billing-1-of-2", "billing-2-of-3", "backfill"):
        poller = PollTrigger(name=name, consumer="billing", source=source, checkpoint_store=MemoryStateStore())
        poller.run(timer=None, handler=lambda events: handle(events, target, provider))
    assert len(effects(target, provider)) == 1


def test_what_was_noted_before_functions_had_scopes_counts_for_all(target: str, provider: EngineProvider) -> None:
    with ProcessedLedger(url=target, engine_provider=provider, scope="").once([Change("old"), Change("older")]):
        pass
    for consumer in ("billing", "mail"):
        assert handle(changes_of(consumer, "old", "new", "older"), target, provider) == ["new"]
    assert handle(changes_of("billing", "old", "new"), target, provider) == []
    assert handle([Change("old"), Change("new")], target, provider) == ["new"], "of no poller: as ever"


def test_one_inside_another_that_fails_and_is_caught_leaves_no_note(target: str, provider: EngineProvider) -> None:
    with processed_once([Change("outer")], url=target, engine_provider=provider):
        with pytest.raises(RuntimeError, match="after the effect"):
            handle([Change("a")], target, provider, fails=True)
        assert handle([Change("b")], target, provider) == ["b"]
    assert effects(target, provider) == ["b"]
    assert handle([Change("outer"), Change("a"), Change("b")], target, provider) == ["a"]


def test_a_statement_that_fails_inside_leaves_the_transaction_around_it_usable(
    target: str, provider: EngineProvider
) -> None:
    with processed_once([Change("outer")], url=target, engine_provider=provider):
        with pytest.raises(WriteError), processed_once([Change("a")], url=target, engine_provider=provider):
            DbWriter(url=target, table="effects", engine_provider=provider).insert(data={"event_id": {"no": "text"}})
        assert handle([Change("b")], target, provider) == ["b"]
    assert effects(target, provider) == ["b"]
    assert handle([Change("outer"), Change("a")], target, provider) == ["a"]


def test_old_notes_are_pruned(target: str, provider: EngineProvider) -> None:
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    old = ProcessedLedger(url=target, engine_provider=provider, clock=lambda: now)
    with old.once([Change("a"), Change("b")]):
        pass
    later = ProcessedLedger(url=target, engine_provider=provider, clock=lambda: now + 10 * DAY)
    with later.once([Change("c")]):
        pass
    assert later.prune(11 * DAY) == 0
    assert later.prune(5 * DAY) == 2
    with later.once([Change("a"), Change("c")]) as new:
        assert [event.event_id for event in new] == ["a"]


def test_many_events_at_once(target: str, provider: EngineProvider) -> None:
    many = [Change(f"event-{number}") for number in range(1201)]
    assert len(handle(many, target, provider)) == 1201
    assert handle([*many, Change("one more")], target, provider) == ["one more"]


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_two_instances_with_the_same_event_take_turns(
    kind: str, request: pytest.FixtureRequest, provider: EngineProvider
) -> None:
    url = str(request.getfixturevalue(f"{kind}_database"))
    ledger = ProcessedLedger(url=url, engine_provider=provider)
    with ledger.once([]):
        pass
    started, outcome = threading.Event(), list[list[Change]]()

    def second() -> None:
        started.set()
        with ledger.once([Change("a")]) as new:
            outcome.append(new)

    with ledger.once([Change("a")]) as new:
        rival = threading.Thread(target=second)
        rival.start()
        started.wait(10)
        rival.join(0.3)
        assert not outcome, "it waits for the first to commit or fail"
        assert len(new) == 1
    rival.join(20)
    assert outcome == [[]]


def test_two_instances_with_the_same_events_in_another_order_wait_for_each_other_in_one(
    postgres_database: str, provider: EngineProvider
) -> None:
    """The second must not hold a note that the first still wants, while it waits for the first."""
    ledger = ProcessedLedger(url=postgres_database, engine_provider=provider)
    outcome = list[list[Change]]()

    def second() -> None:
        with ledger.once([Change("b"), Change("a")]) as new:
            outcome.append(new)

    engine = create_engine(postgres_database, isolation_level="AUTOCOMMIT")
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'")
    rival = threading.Thread(target=second)
    with engine.connect() as observer, ledger.once([Change("a")]):
        rival.start()
        wait_for(lambda: observer.execute(waiting).scalar_one(), 30, "the second does not wait")
        with ledger.once([Change("b")]) as new:
            assert new == [Change("b")]
    rival.join(30)
    engine.dispose()
    assert outcome == [[]]
