"""Which tables of PostgreSQL are behind a source, and whether its cursor is one of their columns.

The planner says it: it looks through views, queries, conditions and inheritance down to what is scanned. Only
the rows of plain tables appear with the commit of a transaction that the server shows; a materialized view
shows old rows when it is refreshed, a foreign table has its writers elsewhere, a function hides what it reads.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.sources.keyset.explain import explained

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from azure_functions_db.sources.keyset.plan import Plan

_Node = dict[str, Any]

_PASSES_ON = {"Gather", "Limit", "Result"}
_NAME = r'(?:"(?:[^"]|"")+"|\w+)'
_COLUMN = re.compile(rf"(?:(?P<alias>{_NAME})\.)?(?P<column>{_NAME})")
_OTHER_KINDS = {"m": "the materialized view", "f": "the foreign table"}

# Every scanned table with all that it inherits from: a row may be inserted through any of them, and gets
# its number by the default of that one.
_CATALOG = """
WITH RECURSIVE scanned AS (
    SELECT held.oid, held.relkind, wanted.name, wanted.cursor
    FROM json_to_recordset(CAST(:scanned AS json)) AS wanted (schema text, name text, cursor text)
    JOIN pg_namespace AS place ON place.nspname = wanted.schema
    JOIN pg_class AS held ON held.relnamespace = place.oid AND held.relname = wanted.name
), family AS (
    SELECT oid, cursor FROM scanned
    UNION SELECT to_regclass(CAST(:own AS text)), CAST(:cursor AS text) WHERE CAST(:own AS text) IS NOT NULL
    UNION SELECT above.inhparent, family.cursor FROM family JOIN pg_inherits AS above ON above.inhrelid = family.oid
), numbered AS (
    SELECT held.attrelid, held.attnum FROM family
    JOIN pg_attribute AS held ON held.attrelid = family.oid AND held.attname = family.cursor
), drawn AS (
    SELECT owned.objid FROM numbered
    JOIN pg_depend AS owned ON owned.refclassid = 'pg_class'::regclass AND owned.refobjid = numbered.attrelid
        AND owned.refobjsubid = numbered.attnum AND owned.classid = 'pg_class'::regclass
    UNION SELECT used.refobjid FROM numbered
    JOIN pg_attrdef AS given ON given.adrelid = numbered.attrelid AND given.adnum = numbered.attnum
    JOIN pg_depend AS used ON used.classid = 'pg_attrdef'::regclass AND used.objid = given.oid
)
SELECT (SELECT coalesce(json_agg(json_build_array(name, relkind)), '[]') FROM scanned) AS kinds,
       (SELECT coalesce(json_agg(oid::bigint), '[]') FROM family) AS tables,
       (SELECT max(seqcache) FROM pg_sequence WHERE seqrelid IN (SELECT objid FROM drawn)) AS cached
"""


@dataclass(frozen=True)
class Lineage:
    """The tables that rows of a source come from, and why it cannot be sure of them, if it cannot."""

    tables: tuple[int, ...]
    doubt: str | None


def lineage(connection: Connection, plan: Plan) -> Lineage:
    """Ask the planner and the catalog what is behind a source."""
    from sqlalchemy import text

    [[told]] = explained(connection, plan.cursors(), "EXPLAIN (VERBOSE, FORMAT JSON)")
    top = (json.loads(told) if isinstance(told, str) else told)[0]["Plan"]
    nodes, origins = list(_nodes(top)), _origins(top)
    scanned = [
        {"schema": node["Schema"], "name": node["Relation Name"], "cursor": origins.get(node["Alias"])}
        for node in nodes
        if "Relation Name" in node
    ]
    own = plan.shape.table
    named = None if own is None else connection.dialect.identifier_preparer.format_table(own)
    parameters = {"scanned": json.dumps(scanned), "own": named, "cursor": plan.definition.cursor_column}
    found = connection.execute(text(_CATALOG), parameters).one()
    return Lineage(tuple(found.tables), _doubt(nodes, origins, found, is_table=own is not None))


def _doubt(nodes: list[_Node], origins: dict[str, str], found: Any, *, is_table: bool) -> str | None:
    for name, kind in found.kinds:
        if kind in _OTHER_KINDS:
            return f"it reads {_OTHER_KINDS[kind]} {name}, whose rows appear without a transaction of this server"
    if any(node["Node Type"] in {"Function Scan", "Table Function Scan", "Custom Scan"} for node in nodes):
        return "it reads from a function, which hides the tables behind it"
    if not origins and not (is_table and not found.kinds):  # a parent without any child has nothing to scan
        return "its cursor is computed and not a column of a table"
    if found.cached is not None and found.cached > 1:
        return f"its sequence hands out {found.cached} numbers at a time to each session"
    return None


def _nodes(node: _Node) -> Iterator[_Node]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _origins(node: _Node) -> dict[str, str]:
    """Return the column that the first output is in each table it comes from, by the alias of the scan."""
    members = [
        child for child in node.get("Plans", ()) if child.get("Parent Relationship") not in {"InitPlan", "SubPlan"}
    ]
    if node["Node Type"] in {"Append", "Merge Append"}:
        found = [_origins(member) for member in members]
        return {alias: column for one in found for alias, column in one.items()} if all(found) else {}
    if node["Node Type"] in _PASSES_ON and len(members) == 1:
        return _origins(members[0])
    named = _COLUMN.fullmatch(next(iter(node.get("Output", ())), ""))
    if named is None:
        return {}
    scans = {scan["Alias"] for scan in _nodes(node) if "Relation Name" in scan}
    alias = node["Alias"] if "Relation Name" in node else _plain(named["alias"] or "")
    return {alias: _plain(named["column"])} if alias in scans else {}


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name
