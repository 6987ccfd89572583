"""What was delivered at a cursor value, as a checkpoint remembers it."""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import Engine, create_engine, text

from azure_functions_db import EngineProvider, SqlAlchemySource
from azure_functions_db.sources.keyset.position import MOST_ROWS, Boundary, Mark, are_tied, boundary_in, digest


def filled(count: int) -> dict[bytes, Mark]:
    return {digest([number]): Mark(digest(["content", number])) for number in range(count)}


def test_a_boundary_goes_through_json_and_back() -> None:
    boundary = Boundary(filled(3) | {digest(["changed"]): Mark(digest(["twice"]), 2)})
    written = json.loads(json.dumps(boundary.written(dt.date(2026, 1, 1))))
    assert boundary_in(written, dt.date(2026, 1, 1)) == boundary


@pytest.mark.parametrize(
    "written",
    [None, {}, {"rows": ""}, {"at": 1, "rows": ""}, Boundary().written(8), Boundary().written(7) | {"rows": "!"},
     Boundary().written(7) | {"rows": "AAAA"}, "text"],
)  # fmt: skip
def test_a_boundary_of_another_value_or_form_is_none(written: Any) -> None:
    assert boundary_in(written, 7) is None


def test_a_row_that_changes_back_and_forth_has_another_label_each_time() -> None:
    boundary, labels = Boundary(), []
    for content in (b"a" * 8, b"b" * 8, b"a" * 8, b"b" * 8):
        mark = boundary.marked(b"k" * 8, content)
        boundary = boundary.joined({b"k" * 8: mark}, complete=True) or Boundary()
        labels.append(mark.label)
    assert labels[0] is None
    assert len(set(labels)) == 4


def test_a_full_boundary_forgets_rows_that_have_gone_and_gives_up_only_then() -> None:
    full = Boundary(filled(MOST_ROWS))
    one_more = {digest(["new"]): Mark(digest(["new"]))}
    assert full.joined(one_more, complete=False) is None
    assert full.joined(one_more, complete=True) == Boundary(one_more)


def test_a_digest_tells_values_apart_and_takes_a_moment_in_any_zone_for_the_same() -> None:
    rows: list[list[Any]] = [
        [None], [""], ["1"], [1], [1.5], [Decimal("1.5")], [b"1"], ["1", None], [None, "1"], [["1"]], [{"1": 1}],
        ["11"], ["1", "1"], [dt.date(2026, 1, 1)], [dt.datetime(2026, 1, 1)], [dt.timedelta(1)],  # noqa: DTZ001 - as drivers give it
    ]  # fmt: skip
    assert len({digest(row) for row in rows}) == len(rows)
    berlin = dt.datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    assert digest([berlin]) == digest([berlin.astimezone(dt.UTC)])
    assert digest([berlin]) != digest([berlin.replace(fold=1)])


def test_an_object_that_only_has_an_address_does_not_look_like_another_row_each_time() -> None:
    assert digest([object()]) == digest([object()])


def test_texts_that_a_collation_may_take_for_the_same_are_tied() -> None:
    assert are_tied("Äpfel", "apfel ")
    assert not are_tied("apfel", "birne")


# Random histories: whatever is done to the rows between two fetches, the last state of each is delivered.


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return create_engine(f"sqlite:///{tmp_path / 'rows.db'}")


KINDS = {
    "integer": "integer",
    "date": "date",
    "text": "varchar(20) COLLATE NOCASE",
    "time": "datetime",
    "decimal": "decimal(10, 2)",
    "float": "real",
}


def value_at(kind: str, step: int) -> Any:
    day = f"2026-01-{1 + step:02}"
    texts = {"date": day, "text": "ab" * step, "time": f"{day} 10:00:00"}
    return texts.get(kind, step)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_the_last_state_of_every_row_is_delivered(
    kind: str, seed: int, engine: Engine, provider: EngineProvider
) -> None:
    chance = random.Random(f"{kind} {seed}")
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE t (id integer PRIMARY KEY, c {KINDS[kind]}, word text)"))
    partition = (0, 1) if chance.random() < 0.3 else None
    delivered: dict[int, Any] = {}
    ids: dict[str, Any] = {}
    checkpoint: dict[str, Any] = {}
    step = 0
    for turn in range(40):
        step = min(step + (chance.random() < 0.25), 25)
        with engine.begin() as connection:
            for _ in range(chance.randrange(4)):
                act(chance, connection, value_at(kind, step), f"{turn} {chance.random()}")
        checkpoint = fetched(engine, provider, partition, checkpoint, chance.choice([1, 2, 3, 10]), delivered, ids)
    for _ in range(200):
        following = fetched(engine, provider, partition, checkpoint, 5, delivered, ids)
        if following == checkpoint:
            break
        checkpoint = following
    with engine.connect() as connection:
        present = {row.id: row.word for row in connection.execute(text("SELECT id, word FROM t"))}
    assert {key: delivered.get(key) for key in present} == present
    result = new_source(engine, provider, partition).fetch_changes(checkpoint, 100)
    assert (list(result.records), result.more, result.next_checkpoint) == ([], False, checkpoint)


def act(chance: random.Random, connection: Any, value: Any, word: str) -> None:
    if isinstance(value, str) and chance.random() < 0.5:
        value = value.upper()
    key = {"id": chance.randrange(30), "c": value, "word": word}
    match chance.randrange(5):
        case 0:
            connection.execute(text("DELETE FROM t WHERE id = :id"), key)
        case _:
            upsert = "INSERT INTO t VALUES (:id, :c, :word) ON CONFLICT (id) DO UPDATE SET c = :c, word = :word"
            connection.execute(text(upsert), key)


def new_source(engine: Engine, provider: EngineProvider, partition: Any) -> SqlAlchemySource:
    url = engine.url.render_as_string(hide_password=False)
    key = ["id"] if partition is None else ["id", "c"]
    return SqlAlchemySource(
        url=url, engine_provider=provider, table="t", cursor_column="c", pk_columns=key, partition=partition
    )


def fetched(
    engine: Engine,
    provider: EngineProvider,
    partition: Any,
    checkpoint: dict[str, Any],
    limit: int,
    delivered: dict[int, Any],
    ids: dict[str, Any],
) -> dict[str, Any]:
    """Fetch once with a new source, as after a restart, and take note of what came; no id comes twice."""
    from azure_functions_db.trigger.normalizers import RecordNormalizer

    source = new_source(engine, provider, partition)
    result = source.fetch_changes(json.loads(json.dumps(checkpoint)), limit)
    assert len(result.records) <= limit
    delivered |= {record["id"]: record["word"] for record in result.records}
    normalizer = RecordNormalizer("c", ["id"])
    for event in normalizer.batch(list(result.records), source.source_descriptor, {}, result.revisions):
        assert ids.setdefault(event.event_id, event.after) == event.after
    return result.next_checkpoint
