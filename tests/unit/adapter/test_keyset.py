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
