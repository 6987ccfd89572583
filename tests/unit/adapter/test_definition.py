"""What can be said about a source's arguments without looking at any database."""

from __future__ import annotations

import warnings
from typing import Any
from urllib.parse import quote_plus

import pytest
from sqlalchemy import Column, Integer, MetaData, Table

from azure_functions_db import ConfigurationError, DbConfig, SourceConfigurationError, SqlAlchemySource
from azure_functions_db.sources.keyset.definition import checked_query

GOOD: dict[str, Any] = {
    "url": "postgresql+psycopg://user:secret@host/shop",
    "table": "orders",
    "cursor_column": "updated_at",
    "pk_columns": ["id"],
}


def source(**changes: Any) -> SqlAlchemySource:
    arguments = {**GOOD, **changes}
    return SqlAlchemySource(**{name: value for name, value in arguments.items() if value is not ...})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"url": ...}, "url= "),
        ({"db_config": DbConfig(connection_url="sqlite://")}, "exactly one of url="),
        ({"url": 5}, "url= "),
        ({"table": ...}, "exactly one of table="),
        ({"query": "SELECT 1"}, "exactly one of table="),
        ({"table": ..., "query": "SELECT 1", "schema": "a"}, "schema="),
        ({"horizon_abandon_seconds": 0}, "horizon_abandon_seconds="),
        ({"horizon_abandon_seconds": "an hour"}, "horizon_abandon_seconds="),
        ({"horizon_abandon_seconds": True}, "horizon_abandon_seconds="),
        ({"table": ""}, "name"),
        ({"table": 5}, "name"),
        ({"cursor_column": ""}, "cursor_column="),
        ({"pk_columns": []}, "pk_columns="),
        ({"pk_columns": "id"}, "list of names"),
        ({"pk_columns": ["id", "id"]}, "twice"),
        ({"columns": []}, "columns="),
        ({"columns": ["total", " "]}, "must hold column names"),
        ({"pk_columns": ["id", 5]}, "must hold column names"),
        ({"partition_by": []}, "partition_by="),
        ({"schema": " "}, "no name"),
        ({"deleted_column": 5}, "no name"),
        ({"table": ..., "query": "SELECT :a"}, "lacks a"),
        ({"table": ..., "query": 5}, "query= must be a text"),
        ({"table": ..., "query": "SELECT 1; SELECT 2;"}, "one statement"),
        ({"table": ..., "query": "; SELECT 1"}, "one statement"),
        ({"where": "a) OR (a"}, "parentheses"),
        ({"where": "(a) OR (b"}, "parentheses"),
        ({"where": ""}, "where= is empty"),
        ({"table": ..., "query": "SELECT (1"}, "parentheses"),
        ({"table": ..., "query": "SELECT 1;;"}, "one statement"),
        ({"created_column": ""}, "name"),
        ({"where": "a = :a"}, "lacks a"),
        ({"where": "a = :a", "parameters": {"a": 1, "b": 2}}, "has b"),
        ({"parameters": {"a": 1}}, "has a"),
        ({"where": "1=1) OR (1=1"}, "parentheses"),
        ({"where": "(a"}, "parentheses"),
        ({"where": "a = 1;"}, "semicolon"),
        ({"where": "a = 'x"}, "never ends"),
        ({"where": "a = 1 /* and"}, "never ends"),
        ({"where": " -- nothing"}, "empty"),
        ({"where": 1}, "must be a text"),
        ({"table": ..., "query": "DELETE FROM a; SELECT 1"}, "one statement"),
        ({"table": ..., "query": ";"}, "empty|statement"),
        ({"strategy": "magic"}, "strategy="),
        ({"operation_mode": "magic"}, "operation_mode="),
        ({"in_flight": "maybe"}, "in_flight="),
        ({"undecodable": "maybe"}, "undecodable="),
        ({"settle_seconds": -1}, "settle_seconds="),
        ({"settle_seconds": "5"}, "settle_seconds="),
        ({"settle_seconds": True}, "settle_seconds="),
        ({"partition": (-1, 2)}, "partition="),
        ({"partition": (2, 2)}, "partition="),
        ({"partition": (0,)}, "partition="),
    ],
)
def test_what_cannot_work_is_refused_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(SourceConfigurationError, match=reason) as refused:
        source(**changes)
    assert isinstance(refused.value, ConfigurationError)
    assert "secret" not in str(refused.value)


def test_making_a_source_reads_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOP_URL", raising=False)
    made = source(url="%SHOP_URL%")
    with pytest.raises(SourceConfigurationError, match="SHOP_URL") as unset:
        _ = made.source_descriptor
    assert unset.value.setting == "SHOP_URL"
    monkeypatch.setenv("SHOP_URL", GOOD["url"])
    assert made.source_descriptor == source().source_descriptor


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://user:other@host/shop",
        "postgresql://user@host/shop",
        "postgresql+psycopg://user:secret@host/shop?application_name=poller&connect_timeout=5",
    ],
)
def test_passwords_and_driver_options_are_not_part_of_the_fingerprint(url: str) -> None:
    assert source(url=url).source_descriptor.fingerprint == source().source_descriptor.fingerprint


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "postgresql+psycopg://user:secret@elsewhere/shop"},
        {"url": "postgresql+psycopg://user:secret@host/other"},
        {"url": "postgresql+psycopg://user:secret@/shop?host=elsewhere"},
        {"schema": "sales"},
        {"table": "customers"},
        {"table": ..., "query": "SELECT * FROM orders"},
        {"cursor_column": "version"},
        {"pk_columns": ["id", "region"]},
        {"where": "active"},
        {"where": "region = :r", "parameters": {"r": 1}},
        {"partition": (0, 2)},
        {"partition": (0, 2), "partition_by": "region"},
        {"url": "mssql+pyodbc://?odbc_connect=Server%3Done%3BDatabase%3Dshop"},
    ],
)
def test_every_part_of_the_definition_counts(changes: dict[str, Any]) -> None:
    assert source(**changes).source_descriptor.fingerprint != source().source_descriptor.fingerprint


def test_what_rows_are_alike_in_is_part_of_a_share() -> None:
    shares = [source(partition=(0, 2), partition_by=by) for by in (None, "region", ["region", "id"], "id")]
    assert len({share.source_descriptor.fingerprint for share in shares}) == 4


def test_a_place_that_only_the_odbc_driver_reads_counts_without_its_password() -> None:
    def fingerprint(text: str) -> str:
        return source(url=f"mssql+pyodbc://?odbc_connect={quote_plus(text)}").source_descriptor.fingerprint

    place = fingerprint("Server=one;Database=shop;UID=ann;PWD=secret")
    assert place == fingerprint("database=shop;SERVER=one;UID=ann;PWD=other;Encrypt=yes")
    others = [f"Server={server};Database={name};UID=ann" for server, name in (("one", "other"), ("two", "shop"))]
    assert len({place, *map(fingerprint, others)}) == 3


def test_a_source_without_a_name_has_that_of_what_it_reads() -> None:
    named = source(name="mine"), source(), source(schema="sales"), source(table=..., query="SELECT 1")
    assert [one.name for one in named] == ["mine", "orders", "sales.orders", "query"]
    assert source().place == (GOOD["url"], "orders", None)


def test_a_table_may_be_described_with_its_schema_and_columns() -> None:
    table = Table("orders", MetaData(), Column("id", Integer), Column("updated_at", Integer), schema="sales")
    described = source(table=table)
    assert (described.name, described.place[1:]) == ("sales.orders", ("orders", "sales"))
    assert described._definition.columns == ("id", "updated_at")
    assert source(table=table, columns=["id"])._definition.columns == ("id",)
    assert source()._definition.columns is None
    with pytest.raises(SourceConfigurationError, match="schema"):
        source(table=table, schema="other")


def test_every_column_that_is_needed_comes_along_once() -> None:
    marks = {"created_column": "made", "deleted_column": "gone", "partition_by": ["region", "id"]}
    needed = source(columns=["total", "id"], **marks)._definition.needed_columns
    assert needed == ("total", "id", "updated_at", "made", "gone", "region")
    assert source()._definition.needed_columns == ("updated_at", "id")
    assert source(pk_columns=["updated_at"])._definition.order_columns == ("updated_at",)


@pytest.mark.parametrize("where", ["(a = 1) AND (b = (2))", '"active"', "'a' = name -- (", "a = ')'"])
def test_a_condition_that_is_one_is_taken(where: str) -> None:
    assert source(where=where)._definition.where == where


def test_what_a_backslash_means_only_the_database_knows() -> None:
    source(where="a = 'it\\'s )'")


def test_no_limit_is_a_limit_too_and_so_is_no_distance() -> None:
    source(horizon_abandon_seconds=None, settle_seconds=0)


def test_the_types_of_an_older_release_are_taken_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="cursor_types"):
        source(cursor_types=[int])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source()


def test_a_share_knows_the_whole_it_is_of_and_a_whole_its_former_fingerprint() -> None:
    whole, share = source(name="orders").source_descriptor, source(name="orders").partitioned(0, 2).source_descriptor
    assert share.whole is not None
    assert (share.whole.name, share.whole.fingerprint) == (whole.name, whole.fingerprint)
    assert (share.former, whole.whole, len(whole.former)) == ((), None, 1)
    others = {"where": "active"}, {"schema": "sales"}, {"table": ..., "query": "SELECT 1"}
    formers = {whole.former, *(source(**other).source_descriptor.former for other in others)}
    assert len(formers) == 4


@pytest.mark.filterwarnings("ignore:.*cursor_types:DeprecationWarning")
def test_the_types_that_an_older_release_was_given_are_a_part_of_its_fingerprint() -> None:
    kinds = None, [int], [int, str]
    formers = {source(cursor_types=kind).source_descriptor.former for kind in kinds}
    assert len(formers) == 3, "or the state of that release would not be found"


def test_a_share_is_by_the_columns_it_is_told_or_by_those_of_its_source() -> None:
    by_region = source(partition_by="region")
    assert by_region.partitioned(0, 2)._definition.share_columns == ("region",)
    assert by_region.partitioned(0, 2, by="id")._definition.share_columns == ("id",)
    assert source().partitioned(0, 2)._definition.share_columns == ("id",)


def test_filters_with_other_values_are_other_filters() -> None:
    fingerprints = {source(where="region = :r", parameters={"r": r}).source_descriptor.fingerprint for r in (1, 2, "1")}
    assert len(fingerprints) == 3


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    assert (
        source().source_descriptor.fingerprint
        == "sha256:73cd9d3675c6395730a5369878531fed8fdaa6cddf367548e09bd118eec97196"
    )


def test_a_partition_is_a_source_of_its_own() -> None:
    whole = source(name="orders")
    shares = [whole.partitioned(index, 3) for index in range(3)]
    assert len({share.source_descriptor.fingerprint for share in (whole, *shares)}) == 4
    assert [share.name for share in shares] == ["orders[0/3]", "orders[1/3]", "orders[2/3]"]


def test_a_source_shows_no_password() -> None:
    assert "secret" not in repr(source())


@pytest.mark.parametrize(
    ("query", "wrapped"),
    [
        ("SELECT 1", "SELECT 1"),
        ("SELECT 1;", "SELECT 1"),
        ("SELECT 1 ; -- done", "SELECT 1  -- done"),
        ("SELECT ';' AS a", "SELECT ';' AS a"),
        ("SELECT 1 /* ; */", "SELECT 1 /* ; */"),
        ('SELECT 1 AS "a;b"', 'SELECT 1 AS "a;b"'),
        ("SELECT $x$;$x$", "SELECT $x$;$x$"),
    ],
)
def test_a_closing_semicolon_is_left_out(query: str, wrapped: str) -> None:
    assert checked_query(query) == wrapped
