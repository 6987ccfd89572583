"""Who is who in the lists of a PostgreSQL server, and what its planner says of the tables behind a source."""

from __future__ import annotations

import datetime as dt
import json
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import types
from sqlalchemy.dialects import postgresql

from azure_functions_db.sources.keyset import horizon_postgres
from azure_functions_db.sources.keyset.horizon_postgres import PostgresWatch
from azure_functions_db.sources.keyset.plan import Plan
from azure_functions_db.sources.keyset.position import BEGINNING
from azure_functions_db.sources.keyset.shape import Shape
from azure_functions_db.sql.reflection import KIND
from tests.support.plans import ID, plan_of, sql, table


@pytest.fixture
def watch() -> Any:
    """A watch that has seen the value 5."""
    watch: Any = PostgresWatch("orders", types.BigInteger(), settle_seconds=None, cap_seconds=None, clock=lambda: 100.0)
    watch._know("start", 1000.0)
    watch._see(5, None)
    return watch


def session(key: str, pid: int | None = 100, *, xid: str | None = None, touches: bool = False) -> list[Any]:
    return [key, pid, xid is not None, "ann", xid, touches, 1.5]


def prepared(xid: str) -> list[Any]:
    return session(f"-1/{xid}", None, xid=xid)


def test_a_transaction_is_waited_for_until_it_is_shown_no_more(watch: Any) -> None:
    watch._note([session("3/1"), session("4/1", 101, xid="7")])
    watch._note([session("3/1")])
    assert watch.bound is None
    watch._note([session("5/1", 102)])
    assert watch.bound == 5


def test_a_transaction_that_is_prepared_meanwhile_is_waited_for_under_its_new_name(watch: Any) -> None:
    watch._note([session("3/1", xid="7")])
    watch._note([prepared("7")])
    assert watch.bound is None
    assert [holder.session for holder in watch.horizon().holders] == ["prepared 7"]
    watch._note([prepared("7")])
    assert watch.bound is None
    watch._note([])
    assert watch.bound == 5


def test_what_was_prepared_before_stands_for_nobody_else(watch: Any) -> None:
    watch._note([session("3/1", xid="8"), prepared("7")])
    watch._note([prepared("7")])
    assert [holder.session for holder in watch.horizon().holders] == ["prepared 7"]
    watch._note([prepared("9")])
    assert watch.bound == 5, "whoever was prepared and has ended is none of those that are prepared now"


def test_what_came_later_and_was_prepared_before_the_last_look_is_not_taken_for_whoever_has_ended(watch: Any) -> None:
    watch._note([session("3/1", xid="7")])
    watch._note([session("3/1", xid="7"), prepared("9")])
    assert watch.bound is None
    watch._note([prepared("9")])
    assert watch.bound == 5


def test_what_was_prepared_when_another_process_looked_is_known_as_such(watch: Any) -> None:
    assert watch._mark_of("-1/7") is True
    assert watch._mark_of("3/1") is False


def test_a_transaction_is_told_as_the_server_shows_it(watch: Any) -> None:
    told = horizon_postgres._transaction("3/1", 100, True, "ann", "7", True, 2)
    assert (told.key, told.session, told.user, told.writes, told.touches, told.mark) == (
        "3/1",
        "100",
        "ann",
        True,
        True,
        False,
    )
    assert (told.age_seconds, type(told.age_seconds)) == (2.0, float)
    told = horizon_postgres._transaction("-1/7", None, True, None, "7", False, None)
    assert (told.session, told.age_seconds, told.mark) == ("prepared 7", None, True)


def test_only_a_moment_that_says_so_has_a_zone() -> None:
    moment = dt.datetime(2026, 11, 17, tzinfo=dt.UTC)
    found = [horizon_postgres._is_aware(value) for value in (moment, moment.replace(tzinfo=None), 5, "a")]
    assert found == [True, False, False, False]


def test_a_name_is_quoted_as_a_value() -> None:
    assert horizon_postgres._quoted(None) is None
    assert horizon_postgres._quoted([None, 'or"ders%']) == '"or""ders%"'
    assert horizon_postgres._quoted(["sales", "orders"]) == '"sales"."orders"'


# What the planner says


def scan(alias: str = "orders", output: str = "orders.c", **more: Any) -> dict[str, Any]:
    return {
        "Node Type": "Seq Scan",
        "Relation Name": alias,
        "Schema": "public",
        "Alias": alias,
        "Output": [output],
        **more,
    }


@pytest.mark.parametrize(
    ("node", "origins"),
    [
        (scan(), {"orders": "c"}),
        (scan(output="c"), {"orders": "c"}),
        (scan(output='orders."C ""x"""'), {"orders": 'C "x"'}),
        (scan(output="(orders.c + 1)"), {}),
        ({"Node Type": "Result", "Output": ["1"]}, {}),
        ({"Node Type": "Gather", "Output": ["c"], "Plans": [scan()]}, {"orders": "c"}),
        (
            {
                "Node Type": "Limit",
                "Output": ["c"],
                "Plans": [scan(), scan("x", "x.a", **{"Parent Relationship": "InitPlan"})],
            },
            {"orders": "c"},
        ),
        ({"Node Type": "Append", "Plans": [scan("a", "a.c"), scan("b", "b.d")]}, {"a": "c", "b": "d"}),
        ({"Node Type": "Merge Append", "Plans": [scan("a", "a.c"), scan("b", "b.d")]}, {"a": "c", "b": "d"}),
        ({"Node Type": "Append", "Plans": [scan("a", "a.c"), scan("b", "(b.d + 1)")]}, {}),
        ({"Node Type": "Hash Join", "Output": ["a.c"], "Plans": [scan("a", "a.c"), scan("b", "b.d")]}, {"a": "c"}),
        ({"Node Type": "Hash Join", "Output": ["s.c"], "Plans": [scan("a", "a.c"), scan("b", "b.d")]}, {}),
        ({"Node Type": "Subquery Scan", "Alias": "s", "Output": ["s.c"], "Plans": [scan()]}, {}),
        ({"Node Type": "Aggregate", "Output": ["c"], "Plans": [scan()]}, {}),
        ({"Node Type": "Result", "Plans": [scan("a", "a.c"), scan("b", "b.d")]}, {}),
    ],
)
def test_a_cursor_is_followed_to_the_columns_it_comes_from(node: dict[str, Any], origins: dict[str, str]) -> None:
    assert horizon_postgres._origins(node) == origins


def test_every_part_of_a_plan_is_looked_at() -> None:
    top = {"Node Type": "Append", "Plans": [scan("a"), {"Node Type": "Limit", "Plans": [scan("b")]}]}
    assert [node.get("Alias") for node in horizon_postgres._nodes(top)] == [None, "a", None, "b"]


PLAIN: dict[str, Any] = {"kinds": [["orders", "r"]], "subscribes": False, "falls": False, "cached": 1}


@pytest.mark.parametrize(
    ("nodes", "origins", "catalog", "is_table", "doubt"),
    [
        ([scan()], {"orders": "c"}, {}, True, None),
        ([scan()], {"orders": "c"}, {"cached": None}, False, None),
        ([scan()], {"orders": "c"}, {"kinds": [["orders", "r"], ["old", "m"]]}, True, "the materialized view old"),
        ([scan()], {"orders": "c"}, {"kinds": [["far", "f"]]}, True, "the foreign table far"),
        ([scan()], {"orders": "c"}, {"subscribes": True}, True, "a subscription fills its table"),
        ([{"Node Type": "Function Scan"}], {}, {}, False, "it reads from a function"),
        ([scan(), {"Node Type": "Custom Scan"}], {"orders": "c"}, {}, False, "it reads from a function"),
        ([scan()], {}, {}, False, "its cursor is computed"),
        ([scan()], {}, {}, True, "its cursor is computed"),
        ([], {}, {"kinds": []}, True, None),
        ([], {}, {"kinds": []}, False, "its cursor is computed"),
        ([scan()], {"orders": "c"}, {"falls": True}, True, "its sequence does not only grow"),
        ([scan()], {"orders": "c"}, {"cached": 32}, True, "hands out 32 numbers at a time"),
    ],
)
def test_a_source_whose_rows_appear_otherwise_is_doubted(
    nodes: list[Any], origins: dict[str, str], catalog: dict[str, Any], is_table: bool, doubt: str | None
) -> None:
    told = horizon_postgres._doubt(nodes, origins, SimpleNamespace(**{**PLAIN, **catalog}), is_table=is_table)
    assert told is None if doubt is None else doubt in str(told)


class Catalog:
    """A server that tells what its planner and its catalog know of a source."""

    def __init__(self, *, plain: Any = None, top: Any = None, as_text: bool = False, **known: Any) -> None:
        self._plain = plain
        self._explained = [{"Plan": top or scan()}]
        self._as_text = as_text
        self._known = SimpleNamespace(**{**PLAIN, "tables": [8, 9], **known})
        self.asked: list[str] = []
        self.told: dict[str, Any] = {}

    def exec_driver_sql(self, _statement: str, named: dict[str, Any]) -> Any:
        self.asked.append("plain table")
        self.told = named
        return SimpleNamespace(one_or_none=lambda: self._plain)

    def execute(self, _statement: Any, named: dict[str, Any] | None = None) -> Any:
        if named is None:
            self.asked.append("planner")
            shown = json.dumps(self._explained) if self._as_text else self._explained
            return SimpleNamespace(all=lambda: [[shown]])
        self.asked.append("catalog")
        self.told = named
        return SimpleNamespace(one=lambda: self._known)

    def lineage(self, plan: Any) -> Any:
        connection: Any = self
        return horizon_postgres.lineage(connection, plan)


def described(kind: str = "r") -> Any:
    orders = table(ID)
    orders.info[KIND] = kind
    return orders


A_PLAIN_TABLE = SimpleNamespace(is_plain=True, kinds=[], tables=[7], cached=1, falls=False, subscribes=False)
CATALOG_ONLY, PLANNER_TOO = ["plain table"], ["planner", "catalog"]


def test_of_a_plain_table_the_catalog_knows_it_all() -> None:
    catalog = Catalog(plain=A_PLAIN_TABLE)
    assert catalog.lineage(plan_of(described())) == ((7,), None)
    assert (catalog.asked, catalog.told) == (CATALOG_ONLY, {"own": '"orders"', "cursor": "c"})
    cached = SimpleNamespace(**{**vars(A_PLAIN_TABLE), "cached": 32})
    assert "32 numbers at a time" in str(Catalog(plain=cached).lineage(plan_of(described())).doubt)


@pytest.mark.parametrize(
    ("kind", "options", "plain", "asked"),
    [
        ("v", {}, A_PLAIN_TABLE, PLANNER_TOO),
        ("r", {"where": "id IN (SELECT id FROM others)"}, A_PLAIN_TABLE, PLANNER_TOO),
        ("r", {}, None, CATALOG_ONLY + PLANNER_TOO),
        ("r", {}, SimpleNamespace(is_plain=False, tables=[7]), CATALOG_ONLY + PLANNER_TOO),
    ],
    ids=["a view", "with a condition", "gone", "with children"],
)
def test_of_whatever_may_read_other_tables_the_planner_is_asked(
    kind: str, options: dict[str, Any], plain: Any, asked: list[str]
) -> None:
    others = scan("others", "others.id")
    catalog = Catalog(plain=plain, top=scan(Plans=[others, {"Node Type": "Result"}]))
    assert catalog.lineage(plan_of(described(kind), **options)) == ((8, 9), None)
    assert catalog.asked == asked
    assert catalog.told["own"] == '"orders"'
    assert json.loads(catalog.told["scanned"]) == [
        {"schema": "public", "name": "orders", "cursor": "c"},
        {"schema": "public", "name": "others", "cursor": None},
    ]


@pytest.mark.parametrize("as_text", [False, True])
def test_the_planner_is_understood_whether_or_not_the_driver_decodes_it(as_text: bool) -> None:
    assert Catalog(as_text=as_text).lineage(plan_of(described("v"))).doubt is None


def test_a_parent_without_children_is_a_table_and_a_query_is_none() -> None:
    nothing = Catalog(top={"Node Type": "Result", "Output": ["c"]}, kinds=[])
    assert nothing.lineage(plan_of(described("p"))).doubt is None
    plan = plan_of(described())
    query = Plan(plan.definition, Shape(plan.shape.relation, plan.shape.types), plan.dialect)
    assert "its cursor is computed" in str(nothing.lineage(query).doubt)
    assert nothing.told["own"] is None


def test_whoever_writes_to_the_tables_behind_a_source_is_looked_for_among_those_who_run() -> None:
    watch, catalog = new_watch(), Catalog()
    watch.examine(catalog, plan_of(described("v")))
    assert watch._parameters() == {"azfdb_tables": "{8,9}"}


# What is made of a look

NOON = dt.datetime(2026, 11, 17, 12)  # noqa: DTZ001 - as a column without a zone holds it


def new_watch(kind: Any = ID) -> Any:
    return PostgresWatch("orders", types.to_instance(kind), settle_seconds=None, cap_seconds=None, clock=lambda: 100.0)


def look(watch: Any, *running: list[Any], **seen: Any) -> bool:
    """Let a watch see what a statement of its own would have shown."""
    usual = {"newest": 5, "replays": False, "server": "start", "seconds": 1000, "running": list(running)}
    clocks = {"clock": NOON.replace(tzinfo=dt.UTC), "naive_clock": NOON}
    watch._observed = lambda *_: SimpleNamespace(**{**usual, **clocks, **seen})
    return bool(watch._look(None, None, None))


def test_a_value_is_safe_once_all_have_ended_who_were_running_when_it_was_seen() -> None:
    watch = new_watch()
    assert look(watch, session("3/1"))
    assert watch.bound is None
    assert not look(watch, newest=None), "there is nothing behind the position"
    assert watch.bound is None
    assert look(watch)
    assert watch.bound == 5


def test_a_standby_knows_nobody_until_it_is_promoted() -> None:
    watch = new_watch()
    remembered = {"server": "start", "bound": 4, "ties": None, "waits": {"9/9": 1000.0}, "passed": {}}
    watch.resume(remembered)
    assert look(watch, session("3/1"), replays=True)
    assert (watch.is_blind, watch.grade, watch.bound) == (True, "none", 5), "nobody who reads there holds anything"
    assert watch.saved(remembered, moved=True) == remembered
    assert not look(watch, replays=True, newest=None)
    assert look(watch, session("3/1"))
    assert (watch.is_blind, watch.grade) == (False, "exact")
    assert watch.bound == 4, "what was remembered of the server is gone on from"
    look(watch)
    assert watch.bound == 5


def test_what_another_start_of_the_server_has_shown_is_forgotten() -> None:
    watch = new_watch()
    look(watch)
    assert watch.bound == 5
    assert look(watch, session("3/1"), server="another start")
    assert watch.bound is None


@pytest.mark.parametrize("zone", [None, dt.UTC])
def test_a_stamp_is_held_against_the_clock_that_tells_its_kind_of_time(zone: dt.tzinfo | None) -> None:
    watch = new_watch(postgresql.TIMESTAMP(timezone=zone is not None))
    look(watch, newest=NOON.replace(tzinfo=zone))
    assert watch.bound is None, "it has to ripen"
    old = (NOON - dt.timedelta(days=3)).replace(tzinfo=zone)
    look(watch, newest=old)
    assert watch.bound == old


@pytest.mark.parametrize(
    ("kind", "waits"),
    [
        (postgresql.TIMESTAMP(timezone=True), True),
        (postgresql.TIMESTAMP(), False),
        (postgresql.TIME(timezone=True), False),
        (ID, False),
    ],
    ids=repr,
)
def test_only_a_stamp_that_is_a_moment_has_to_be_due(kind: Any, waits: bool) -> None:
    plan = plan_of(table(kind))
    due = new_watch(kind)._due(plan.newest(BEGINNING), plan)
    assert ("statement_timestamp()" in sql(due, plan)) is waits
