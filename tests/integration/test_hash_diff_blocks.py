"""How a hash diff walks through its blocks: what it asks for, and what it writes down."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Column, MetaData, types
from sqlalchemy import Table as SqlTable
from sqlalchemy.dialects import postgresql

from azure_functions_db import (
    BlobSnapshots,
    ConfigurationError,
    EngineProvider,
    FetchError,
    HashDiffSource,
    PositionLostError,
    SourceConfigurationError,
    SqlSnapshots,
)
from azure_functions_db.sources.hashdiff.relation import Relation, _text
from azure_functions_db.sources.keyset.shape import Shape
from tests.integration.hash_diffs import Poller, Table


@pytest.fixture
def lite(sqlite_database: str, provider: EngineProvider) -> Table:
    ddl = "CREATE TABLE items (id integer PRIMARY KEY, a varchar(50))"
    return Table(sqlite_database, provider, ddl, ["id"], block_rows=3)


def filled(table: Table, count: int) -> Poller:
    """Return a poller that has seen so many rows, in blocks of three."""
    table.run("INSERT INTO items (id) VALUES " + ", ".join(f"({key})" for key in range(count)))
    poller = Poller(table.source)
    poller.scan(limit=3)
    return poller


def test_rows_that_come_where_none_was_left_come_alone(lite: Table) -> None:
    poller = filled(lite, 9)
    lite.run("DELETE FROM items WHERE id < 3")
    poller.scan()
    lite.run("INSERT INTO items (id) VALUES (1)")
    assert [(change.op, change.key["id"]) for change in poller.scan()] == [("insert", 1)]
    assert poller.scan() == []


@pytest.mark.parametrize("limit", [1, 100])
def test_where_one_block_has_changed_the_others_are_compared_and_not_summed_up(lite: Table, limit: int) -> None:
    poller, sums = filled(lite, 60), list[str]()
    lite.run("UPDATE items SET a = 'new'")
    with lite.watched(lambda statement: sums.extend([statement] if "azfdb_digest" in statement else [])):
        assert len(poller.scan(limit=limit)) == 60
    assert len(sums) == 3, "of all blocks, of some, of one"


@pytest.mark.parametrize("other", ["x'00fe'", "x'00ff00'", "'00FF'", "x''", "NULL"])
def test_bytes_that_have_changed_in_sqlite_are_told_also_where_a_text_looks_like_them(lite: Table, other: str) -> None:
    poller = filled(lite, 3)
    lite.run("UPDATE items SET a = x'00ff' WHERE id = 1")
    poller.scan()
    lite.run(f"UPDATE items SET a = {other} WHERE id = 1")
    assert [(change.op, change.key["id"]) for change in poller.scan()] == [("update", 1)]


def test_a_large_block_fits_into_a_table_of_mysql() -> None:
    assert "content LONGBLOB NOT NULL" in SqlSnapshots(url="mysql+pymysql://host/shop").ddl()


def test_blobs_are_found_by_the_setting_that_names_their_account() -> None:
    with pytest.raises(ConfigurationError, match="no app setting NOT_SET_ANYWHERE"):
        BlobSnapshots(connection="NOT_SET_ANYWHERE", app_name="shop").names("items")


def test_a_row_that_is_as_it_was_when_it_is_read_is_not_told(lite: Table) -> None:
    poller = filled(lite, 9)
    before = poller.checkpoint
    lite.run("UPDATE items SET a = 'new' WHERE id = 4")

    def revert(statement: str) -> None:
        if "azfdb_hash" in statement and "IN (" in statement:
            lite.run("UPDATE items SET a = NULL WHERE id = 4")

    with lite.watched(revert):
        assert poller.scan() == []
    assert poller.checkpoint == before, "nothing was written"


def places(table: Table, checkpoint: Any, rows: int) -> list[int]:
    """Return the places at which ticks that look at so many rows leave off, to the end of a scan."""
    left: list[int] = []
    more: bool | None = True
    while more:
        page = table.source(rows_per_tick=rows).fetch_changes(checkpoint, 100)
        checkpoint, more = page.next_checkpoint, page.more
        left.append(checkpoint["cursor"]["place"])
    return left


@pytest.mark.parametrize(("rows", "expected"), [(1, [1, 2, 3, 4, 5]), (6, [2, 5]), (7, [3, 5]), (100, [5])])
def test_a_tick_sums_up_no_more_rows_than_it_should(lite: Table, rows: int, expected: list[int]) -> None:
    assert places(lite, filled(lite, 12).checkpoint, rows) == expected


def test_the_pages_of_a_tick_share_its_rows(lite: Table) -> None:
    checkpoint, reader, left = filled(lite, 12).checkpoint, lite.source(rows_per_tick=6).open(), list[int]()
    for _ in range(2):
        checkpoint = reader.fetch_changes(checkpoint, 100).next_checkpoint
        left.append(checkpoint["cursor"]["place"])
    assert left == [2, 3], "two blocks, then one at least"


def test_rows_that_come_where_none_was_left_are_among_those_of_a_tick(lite: Table) -> None:
    poller = filled(lite, 9)
    lite.run("DELETE FROM items WHERE id < 3")
    poller.scan()
    lite.run("INSERT INTO items (id) VALUES (1)")
    assert places(lite, poller.checkpoint, 1)[:2] == [1, 2]


def test_a_block_that_has_grown_is_looked_at_in_parts(lite: Table) -> None:
    poller = filled(lite, 3)
    lite.run("DELETE FROM items WHERE id > 0")
    poller.scan()
    lite.run("INSERT INTO items (id) VALUES " + ", ".join(f"({key})" for key in range(-60, 0)))
    summed_up = lite.source(rows_per_tick=1).fetch_changes(poller.checkpoint, 100)
    page = lite.source(rows_per_tick=1).fetch_changes(summed_up.next_checkpoint, 100)
    assert len(page.records) == 6, "twice as many as are in a block"


def test_new_rows_come_in_the_order_of_their_database(sqlite_database: str, provider: EngineProvider) -> None:
    table = Table(sqlite_database, provider, "CREATE TABLE items (k text COLLATE NOCASE PRIMARY KEY)", ["k"])
    table.run("INSERT INTO items VALUES ('c'), ('B'), ('a')")
    assert [change.key["k"] for change in table.source().fetch_changes({}, 3).records] == ["a", "B", "c"]


def test_a_key_of_a_type_that_nobody_knows_is_refused_where_the_database_has_told_it() -> None:
    kinds: dict[str, Any] = {"id": types.NullType()}
    table = SqlTable("items", MetaData(), Column("id", kinds["id"]))

    def relation(**place: Any) -> Relation:
        definition = HashDiffSource(url="sqlite://", pk_columns=["id"], **place)._definition
        return Relation(definition, Shape(table, kinds, table), postgresql.dialect())  # type: ignore[no-untyped-call]

    assert relation(query="SELECT id FROM items").keys == ("id",)
    with pytest.raises(SourceConfigurationError, match="'id' cannot be a cursor or key"):
        relation(table="items")


def test_a_row_that_comes_a_second_time_as_it_is_is_refused(sqlite_database: str, provider: EngineProvider) -> None:
    table = Table(sqlite_database, provider, "CREATE TABLE items (id integer, a text)", ["id"])
    table.run("INSERT INTO items VALUES (1, 'a'), (2, 'a')")
    poller = Poller(table.source)
    poller.scan()
    table.run("INSERT INTO items VALUES (2, 'a')")
    with pytest.raises(SourceConfigurationError, match=r"does not tell rows apart: two of them have \(2,\)"):
        poller.scan()


def test_rows_that_differ_in_the_last_column_of_their_key_are_in_different_blocks(
    database_url: str, provider: EngineProvider
) -> None:
    ddl = "CREATE TABLE items (k integer, n integer, m integer, v integer, PRIMARY KEY (k, n, m))"
    table = Table(database_url, provider, ddl, ["k", "n", "m"], block_rows=2)
    table.run("INSERT INTO items VALUES " + ", ".join(f"(1, {n}, {m}, 1)" for n in (1, 2) for m in range(6)))
    poller = Poller(table.source)
    poller.scan(limit=2)
    root = table.source().documents.root(poller.checkpoint["cursor"]["snapshot"])
    assert [block.rows for block in root.blocks] == [2, 2, 2, 2, 2, 2, 0]
    table.run("DELETE FROM items WHERE n = 2 AND m = 3")
    assert [tuple(change.key.values()) for change in poller.scan()] == [(1, 2, 3)]


def test_a_block_that_cannot_be_read_to_its_end_is_an_error_that_a_poller_knows(lite: Table) -> None:
    lite.run("INSERT INTO items VALUES " + ", ".join(f"({key}, '[1]')" for key in range(6)))
    poller = Poller(lambda: lite.source(table=None, query="SELECT id, json_extract(a, '$[0]') AS a FROM items"))
    poller.scan(limit=3)
    lite.run("UPDATE items SET a = '[2]' WHERE id = 0")
    begun = poller.source().fetch_changes(poller.checkpoint, 1).next_checkpoint
    lite.run("UPDATE items SET a = 'no json' WHERE id = 4")  # the first row of its block can be read
    asked: list[str] = []
    with lite.watched(asked.append), pytest.raises(FetchError, match="malformed JSON"):
        poller.source().fetch_changes(begun, 10)
    assert sum("azfdb_hash" in statement for statement in asked) == 1, "it would be no better a second time"


@pytest.mark.parametrize("given", ["0f", b"0f", bytearray(b"0f"), memoryview(b"0f")])
def test_a_hash_is_read_in_whatever_form_a_driver_gives_it(given: Any) -> None:
    assert _text(given) == "0f"


@pytest.mark.parametrize(
    ("count", "block_rows", "expected"),
    [(2, 3, [2, 0]), (3, 3, [3, 0]), (7, 3, [3, 3, 1, 0]), (4, 6, [3, 1, 0]), (5, 6, [5, 0]), (12, 6, [5, 5, 2, 0])],
)
def test_small_blocks_are_joined_with_others_of_their_size_and_empty_ones_have_no_document(
    lite: Table, count: int, block_rows: int, expected: list[int]
) -> None:
    lite.options["block_rows"] = block_rows
    poller = Poller(lite.source)
    lite.run("INSERT INTO items (id) VALUES " + ", ".join(f"({key})" for key in range(count)))
    poller.scan(limit=1)
    documents = lite.source().documents
    assert [block.rows for block in documents.root(poller.checkpoint["cursor"]["snapshot"]).blocks] == expected
    assert documents.size() == len(expected), "one for each block with rows, and the root"


@pytest.mark.parametrize(
    ("gone", "expected"), [("id % 3 > 0", [3, 0]), ("id BETWEEN 3 AND 5", [3, 3, 0]), ("id > 2", [3, 0])]
)
def test_blocks_with_few_rows_left_or_none_are_joined_with_those_before(
    lite: Table, gone: str, expected: list[int]
) -> None:
    poller = filled(lite, 9)
    lite.run(f"DELETE FROM items WHERE {gone}")
    poller.scan()
    documents = lite.source().documents
    assert [block.rows for block in documents.root(poller.checkpoint["cursor"]["snapshot"]).blocks] == expected
    assert documents.size() == len(expected)


# Blocks that have grown.


def insert(table: Table, *keys: int) -> None:
    table.run("INSERT INTO items (id) VALUES " + ", ".join(f"({key})" for key in keys))


def grown(table: Table, *keys: int) -> Poller:
    """Return a poller that knows a block of three rows, among which are many others now."""
    insert(table, *keys)
    poller = Poller(lambda: table.source(keep_rows=True))
    poller.scan()
    insert(table, *range(11, 20))
    return poller


def one_page(poller: Poller) -> None:
    """Let another process take one change."""
    page = poller.source().fetch_changes(poller.checkpoint, 1)
    poller.target.apply(page.records)
    poller.checkpoint = page.next_checkpoint


def deleted(poller: Poller) -> list[Any]:
    return [change.key["id"] for change in poller.target.told if change.op == "delete"]


def test_rows_that_are_gone_from_a_block_that_has_grown_are_told_once_and_with_what_they_were(lite: Table) -> None:
    poller = grown(lite, 5, 10, 30)
    lite.run("DELETE FROM items WHERE id IN (5, 10, 30)")
    told = poller.scan(limit=1)
    assert deleted(poller) == [5, 10, 30]
    assert [change.before for change in told if change.op == "delete"] == [
        {"id": key, "a": None} for key in (5, 10, 30)
    ]
    assert poller.target.rows == lite.rows()


@pytest.mark.parametrize("keys", [(5, 20, 30), (5, 6, 7)])
@pytest.mark.parametrize("grows", [True, False])
def test_a_row_that_comes_back_before_it_is_looked_for_is_neither_gone_nor_in_another_place(
    lite: Table, keys: tuple[int, ...], grows: bool
) -> None:
    insert(lite, *keys)
    poller = Poller(lite.source)
    poller.scan()
    if grows:
        insert(lite, *range(11, 20))
    lite.run("DELETE FROM items WHERE id = 5")

    def come_back(statement: str) -> None:
        if "CASE WHEN" in statement:  # it is looked for by its key
            lite.run("INSERT OR IGNORE INTO items (id) VALUES (5)")

    with lite.watched(come_back):
        poller.scan(limit=1)
    assert deleted(poller) == []
    assert poller.target.rows == lite.rows()
    assert poller.scan() == []


@pytest.mark.parametrize("key", [10, 30])
def test_a_row_that_comes_back_before_it_was_told_to_be_deleted_is_no_row_in_another_place(
    lite: Table, key: int
) -> None:
    poller = grown(lite, 5, 10, 30)
    lite.run("DELETE FROM items WHERE id IN (5, 10, 30)")
    one_page(poller)
    insert(lite, key)
    poller.scan(limit=1)
    assert poller.target.rows == lite.rows()
    assert deleted(poller) == [5, 40 - key]


@pytest.mark.parametrize("comes_back", [True, False])
@pytest.mark.parametrize("key", [5, 30])
def test_a_row_that_goes_when_its_turn_is_over_may_come_back_before_the_next_scan(
    lite: Table, key: int, comes_back: bool
) -> None:
    """Nobody knows on which side of a cut a row lies that is gone and was not told: it waits for the next scan."""
    poller = grown(lite, 5, 10, 30)
    one_page(poller)
    lite.run("DELETE FROM items WHERE id = :key", key=key)  # in the middle of its block, when deletes were told
    poller.scan()
    if comes_back:
        insert(lite, key)
    lite.run("UPDATE items SET a = 'new' WHERE id = 11")  # so that the block is compared key by key
    poller.scan()
    assert poller.target.rows == lite.rows()
    assert deleted(poller) == ([] if comes_back else [key])
    assert poller.scan() == []


def test_a_row_that_goes_twice_in_a_scan_goes_under_two_ids_though_its_block_has_grown(lite: Table) -> None:
    insert(lite, 10, 20, 30)
    poller = Poller(lite.source)
    poller.scan()
    lite.run("UPDATE items SET a = 'new' WHERE id = 20")
    for statement in ("DELETE FROM items WHERE id = 10", "INSERT INTO items (id) VALUES (10)"):
        lite.run(statement)
        one_page(poller)
    lite.run("DELETE FROM items WHERE id = 10")
    insert(lite, *range(21, 30))
    poller.scan()
    poller.scan()
    gone = [change.position for change in poller.target.told if change.op == "delete"]
    assert len(gone) == len(set(gone)) == 2
    assert poller.target.rows == lite.rows()


@pytest.mark.parametrize("rows", [8, 80])
def test_rows_that_another_collation_puts_elsewhere_are_an_error_and_not_told_to_be_deleted(
    sqlite_database: str, provider: EngineProvider, rows: int
) -> None:
    table = Table(sqlite_database, provider, "CREATE TABLE items (k text COLLATE BINARY, v integer)", ["k"])
    table.options["block_rows"] = 3
    keys = [f"{'aBcDeFgH'[number % 8]}{number:02}" for number in range(8)]
    table.run("INSERT INTO items VALUES " + ", ".join(f"('{key}', 1)" for key in keys))
    poller = Poller(table.source)
    poller.scan(limit=3)
    table.run("DROP TABLE items")
    table.run("CREATE TABLE items (k text COLLATE NOCASE, v integer)")
    more = [f"b{number:03}" for number in range(8, rows)]
    table.run("INSERT INTO items VALUES " + ", ".join(f"('{key}', 2)" for key in [*keys, *more]))
    with pytest.raises(PositionLostError, match="collation"):
        poller.scan()
    assert [change for change in poller.target.told if change.op == "delete"] == []


def test_a_row_of_the_last_block_that_another_collation_puts_elsewhere_is_an_error(
    sqlite_database: str, provider: EngineProvider
) -> None:
    ddl = "CREATE TABLE items (k text COLLATE BINARY, v integer)"
    table = Table(sqlite_database, provider, ddl, ["k"], block_rows=1)
    poller = Poller(table.source)
    for key in "Ba":
        table.run("INSERT INTO items VALUES (:k, 1)", k=key)
        poller.scan(limit=2 if key == "a" else 1)
    table.run("DROP TABLE items")
    table.run(ddl.replace("BINARY", "NOCASE"))
    table.run("INSERT INTO items VALUES ('B', 2), ('a', 2)")
    with pytest.raises(PositionLostError, match="collation"):
        poller.scan()
