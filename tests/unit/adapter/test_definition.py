"""What can be said about a source's arguments without looking at any database."""

from __future__ import annotations

from typing import Any

import pytest

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
        ({"table": ""}, "name"),
        ({"table": 5}, "name"),
        ({"cursor_column": ""}, "cursor_column="),
        ({"pk_columns": []}, "pk_columns="),
        ({"pk_columns": "id"}, "list of names"),
        ({"pk_columns": ["id", "id"]}, "twice"),
        ({"columns": []}, "columns="),
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
    ],
)
def test_every_part_of_the_definition_counts(changes: dict[str, Any]) -> None:
    assert source(**changes).source_descriptor.fingerprint != source().source_descriptor.fingerprint


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
