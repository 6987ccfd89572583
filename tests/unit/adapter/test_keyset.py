from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import bindparam, column, create_engine, select, text

from azure_functions_db.sources.keyset.plan import after


def sql(dialect: str, names: int) -> str:
    columns: list[Any] = [column(name) for name in "cde"[:names]]
    values: list[Any] = [bindparam(f"v{i}") for i in range(names)]
    return " ".join(str(after(columns, values, dialect)).split())


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite", "duckdb"])
def test_rows_are_compared_where_that_is_an_index_range(dialect: str) -> None:
    assert sql(dialect, 2) == "(c, d) > (:v0, :v1)"


@pytest.mark.parametrize("dialect", ["mysql", "mariadb", "mssql", "oracle"])
def test_elsewhere_the_comparison_is_spelled_out_and_led_by_the_cursor(dialect: str) -> None:
    assert sql(dialect, 2) == "c >= :v0 AND (c > :v0 OR c = :v0 AND d > :v1)"
    assert sql(dialect, 3) == "c >= :v0 AND (c > :v0 OR c = :v0 AND (d > :v1 OR d = :v1 AND e > :v2))"


@pytest.mark.parametrize("dialect", ["postgresql", "mysql"])
def test_a_cursor_alone_needs_one_comparison(dialect: str) -> None:
    assert sql(dialect, 1) == "c > :v0"


triples = st.tuples(*[st.integers(0, 2)] * 3)
engine = create_engine("sqlite://")


@given(triples)
def test_both_forms_mean_the_order_of_tuples(position: tuple[int, int, int]) -> None:
    everything = list(itertools.product(range(3), repeat=3))
    rows = " UNION ALL ".join(f"SELECT {c} AS c, {d} AS d, {e} AS e" for c, d, e in everything)
    columns: list[Any] = [column(name) for name in "cde"]
    values: list[Any] = [bindparam(f"v{i}", value) for i, value in enumerate(position)]
    with engine.connect() as connection:
        for dialect in ("postgresql", "mysql"):
            query = select(*columns).select_from(text(f"({rows})")).where(after(columns, values, dialect))
            found = {tuple(row) for row in connection.execute(query)}
            assert found == {row for row in everything if row > position}


@pytest.mark.parametrize(("dialect", "null"), [("mysql", -1), ("mssql", -1), ("oracle", 9), ("postgresql", 9)])
def test_keys_that_are_null_come_before_all_others_or_after_them(dialect: str, null: int) -> None:
    parts = (None, 0, 1)
    everything = list(itertools.product((0, 1), parts, parts))
    shown = [", ".join("NULL" if part is None else str(part) for part in row) for row in everything]
    rows = " UNION ALL ".join(f"SELECT {row}" for row in shown)
    table = text(f"(WITH given (c, d, e) AS ({rows}) SELECT * FROM given)")
    columns: list[Any] = [column(name) for name in "cde"]

    def order(row: tuple[Any, ...]) -> tuple[int, ...]:
        return tuple(null if part is None else part for part in row)

    with engine.connect() as connection:
        for position in everything:
            values: list[Any] = [bindparam(f"v{i}", value) for i, value in enumerate(position)]
            query = select(*columns).select_from(table).where(after(columns, values, dialect, columns[1:]))
            found = {tuple(row) for row in connection.execute(query)}
            assert found == {row for row in everything if order(row) > order(position)}


def test_only_the_keys_that_may_be_null_are_asked_whether_they_are() -> None:
    columns: list[Any] = [column(name) for name in "cd"]
    values: list[Any] = [bindparam("v0"), bindparam("v1")]
    assert "NULL" not in str(after(columns, values, "mysql"))
    assert "c IS" not in str(after(columns, values, "mysql", columns[1:]))
    assert "d IS" in str(after(columns, values, "mysql", columns[1:]))
