"""Many rows of one cursor value: all of them come, once and in order, and each page looks at its own rows only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text

from azure_functions_db import DbConfig, EngineProvider, SqlAlchemySource

COUNT, PAGE, CROWD = 3_000, 7, 10_400
KEYS = [None, *range(6)]


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_engine(database_url)
    yield engine
    engine.dispose()


def source(url: str, keys: list[str], query: str | None, **options: Any) -> SqlAlchemySource:
    defaults: dict[str, Any] = {"query": query, "table": None if query else "ties", "in_flight": "ignore"}
    return SqlAlchemySource(url=url, cursor_column="version", pk_columns=keys, **(defaults | options))


def delivered(source: SqlAlchemySource, names: list[str], limit: int) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    checkpoint: dict[str, Any] = {}
    while True:
        result = source.fetch_changes(checkpoint, limit)
        rows += [tuple(record[name] for name in names) for record in result.records]
        if not result.more:
            return rows
        checkpoint = dict(result.next_checkpoint)


@pytest.mark.parametrize("query", [None, "SELECT version, a, b FROM ties"], ids=["table", "query"])
@pytest.mark.parametrize("limit", [1, 5])
def test_keys_with_nulls_come_once_and_in_the_databases_order(
    engine: Engine, database_url: str, query: str | None, limit: int
) -> None:
    rows = [{"v": version, "a": a, "b": b} for version in (1, 2, 3) for a in KEYS for b in KEYS]
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ties (version integer NOT NULL, a integer, b integer)"))
        connection.execute(text("CREATE INDEX ix_ties ON ties (version, a, b)"))
        connection.execute(text("INSERT INTO ties VALUES (:v, :a, :b)"), rows)
        wanted = connection.execute(text("SELECT version, a, b FROM ties ORDER BY version, a, b")).all()
    assert delivered(source(database_url, ["a", "b"], query), ["version", "a", "b"], limit) == [*map(tuple, wanted)]


@pytest.mark.parametrize("query", [None, "SELECT id, version FROM ties"], ids=["table", "query"])
@pytest.mark.parametrize("null", ["NULL", "NOT NULL"])
def test_a_page_within_a_tie_looks_at_no_more_rows_than_it_brings(
    engine: Engine, database_url: str, provider: EngineProvider, query: str | None, null: str
) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE ties (id integer {null}, version integer NOT NULL)"))
        connection.execute(
            text("INSERT INTO ties VALUES (:id, :version)"),
            [{"id": number, "version": 1 if number < COUNT else 2} for number in range(COUNT + 100)],
        )
        connection.execute(text("CREATE INDEX ix_ties ON ties (version, id)"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE TABLE ties" if engine.dialect.name == "mysql" else "ANALYZE ties"))
    asked: list[tuple[str, Any]] = []
    ties = source(database_url, ["id"], query, engine_provider=provider)
    own = provider.get_engine(DbConfig(connection_url=database_url))
    event.listen(own, "before_cursor_execute", lambda _c, _cursor, sql, given, *_: asked.append((sql, given)))
    checkpoint: dict[str, Any] = {"cursor": [1, COUNT // 2]}
    read: list[int] = []
    for _ in range(3):
        result = ties.fetch_changes(checkpoint, PAGE)
        read += [record["id"] for record in result.records]
        checkpoint = dict(result.next_checkpoint)
    assert all(after == before + 1 for before, after in pairwise([COUNT // 2, *read]))
    with own.connect() as connection:
        assert examined(connection, *asked[-1]) <= PAGE + 1


@pytest.mark.parametrize("database", ["postgres_database", "mariadb_database"])
def test_a_crowded_newest_value_is_counted_once(
    request: pytest.FixtureRequest, provider: EngineProvider, database: str
) -> None:
    url: str = request.getfixturevalue(database)
    own = provider.get_engine(DbConfig(connection_url=url))
    insert = text("INSERT INTO ties VALUES (:id, :version)")
    with own.begin() as connection:
        connection.execute(text("CREATE TABLE ties (id integer NOT NULL, version integer NOT NULL)"))
        connection.execute(text("CREATE INDEX ix_ties ON ties (version, id)"))
        connection.execute(insert, [{"id": number, "version": 1} for number in range(CROWD)])
    ties = source(url, ["id"], None, engine_provider=provider, in_flight="wait")
    counted: list[bool] = []
    event.listen(own, "before_cursor_execute", lambda _c, _cursor, sql, *_: counted.append("azfdb_ties" in sql))
    read: list[int] = []
    checkpoint: dict[str, Any] = {}
    while len(read) < CROWD:
        result = ties.fetch_changes(checkpoint, CROWD // 4)
        read += [record["id"] for record in result.records]
        checkpoint = dict(result.next_checkpoint)
    assert read == [*range(CROWD)]
    assert sum(counted) == 1

    with own.begin() as connection:
        connection.execute(insert, [{"id": 0, "version": 2}, {"id": 1, "version": 2}])
    assert [record["id"] for record in ties.fetch_changes(checkpoint, PAGE).records] == [0, 1]
    assert sum(counted) > 1


def examined(connection: Any, sql: str, given: Any) -> float:
    """How many rows the database has looked at for a statement."""
    match connection.dialect.name:
        case "sqlite":
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", given).all()
            assert "(version,id)>(?,?)" in plan[0][-1], plan  # it tells how it searches, not how much it finds
            return 0
        case "mysql":
            connection.exec_driver_sql("FLUSH STATUS")
            connection.exec_driver_sql(sql, given).all()
            steps = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read_next'").one()
            return float(steps[1])
        case _:
            connection.exec_driver_sql("SET enable_seqscan = off")
            connection.exec_driver_sql("SET enable_bitmapscan = off")
            [[told]] = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", given).all()
            return max(_numbers(told, "Actual Rows")) + sum(_numbers(told, "Rows Removed by Filter"))


def _numbers(told: Any, name: str) -> list[float]:
    if isinstance(told, list):
        return [number for part in told for number in _numbers(part, name)]
    if not isinstance(told, dict):
        return []
    here = [float(told[name])] if name in told else []
    return here + [number for part in told.values() for number in _numbers(part, name)]
