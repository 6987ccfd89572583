"""What an operator should know before and while a table is scanned."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.types import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from azure_functions_db.sources.hashdiff.hashes import Relation
    from azure_functions_db.sources.hashdiff.snapshots import Documents

_SAMPLE_ROWS = 20_000
_ANSWER_BYTES = 250  # a sum of blocks, on the wire both ways
_ENTRY_BYTES = 70  # a key and a hash


def checked_up(
    relation: Relation, connection: Connection, documents: Documents, block_rows: int, rows_per_tick: int
) -> Iterator[Finding]:
    """Return the findings about a relation: its key, its index, what a scan costs, its snapshot."""
    yield _nulls(relation, connection)
    yield _uniqueness(relation)
    yield _index(relation)
    yield from _cost(relation, connection, block_rows, rows_per_tick)
    yield Finding("snapshot", "ok", f"{documents.size():,} document(s) in {type(documents.place).__name__}")


def _nulls(relation: Relation, connection: Connection) -> Finding:
    if relation.may_lack_keys and relation.lacks_keys(connection):
        return Finding("key", "error", "there are rows with NULL in their key", "leave them out with where=")
    return Finding("key", "ok", f"{', '.join(relation.keys)}, compared value by value whatever the collation")


def _uniqueness(relation: Relation) -> Finding:
    if _index_columns(relation, unique=True):
        return Finding("unique key", "ok", "the database lets a key appear once")
    return Finding(
        "unique key", "note", "nothing in the database keeps two rows from having one key; a scan that meets them stops"
    )


def _index(relation: Relation) -> Finding:
    table, keys = relation.shape.table, list(relation.keys)
    if table is None:
        return Finding("index", "note", "a query: make sure that its key can be read in order from an index")
    if _index_columns(relation):
        return Finding("index", "ok", "blocks are ranges of an index")
    quote = relation.dialect.identifier_preparer.quote
    columns = ", ".join(map(quote, keys))
    name = relation.dialect.identifier_preparer.format_table(table)
    return Finding(
        "index",
        "warning",
        "no index begins with the key: each block reads and sorts the whole table",
        f"CREATE INDEX {quote(f'{table.name}_by_key')} ON {name} ({columns})",
    )


def _index_columns(relation: Relation, *, unique: bool = False) -> bool:
    """Tell whether an index begins with the key, or is on nothing else and unique."""
    from sqlalchemy import PrimaryKeyConstraint, UniqueConstraint

    table, keys = relation.shape.table, list(relation.keys)
    if table is None:
        return False
    rules = [rule for rule in table.constraints if isinstance(rule, PrimaryKeyConstraint | UniqueConstraint)]
    indexes: list[Any] = [*rules, *(index for index in table.indexes if index.unique or not unique)]
    columns = [[column.name for column in index.columns] for index in indexes]
    if unique:
        return any(names and set(names) <= set(keys) for names in columns)
    return any(names[: len(keys)] == keys for names in columns)


def _cost(relation: Relation, connection: Connection, block_rows: int, rows_per_tick: int) -> Iterator[Finding]:
    """Sum up a sample and say what the whole would cost."""
    rows = relation.count(connection, None, None)
    end = relation.boundary(connection, None, None, _SAMPLE_ROWS)
    began = time.perf_counter()
    sample, _ = relation.digest(connection, None, end)
    seconds = (time.perf_counter() - began) * rows / max(1, sample)
    ticks = -(-rows // rows_per_tick) if rows else 1
    blocks = -(-rows // block_rows)
    yield Finding(
        "cost",
        "ok",
        f"a scan reads {rows:,} row(s) inside the database, about {seconds:.1f} s by a sample of {sample:,}, in "
        f"{ticks:,} tick(s); on the wire about {_bytes(blocks * _ANSWER_BYTES)} where nothing has changed, "
        f"{_bytes(rows * _ENTRY_BYTES)} and the changed rows where every block has a change. A change is seen after "
        "the interval of the schedule and a scan, at the latest",
    )


def _bytes(amount: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:,.0f} {unit}"
        amount = round(amount / 1000)
    return f"{amount:,} GB"
