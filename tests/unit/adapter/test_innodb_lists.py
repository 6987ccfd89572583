"""Who is who in the lists of a MySQL or MariaDB server."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any, cast

import pymysql
import pytest
from sqlalchemy import types
from sqlalchemy.exc import DBAPIError

from azure_functions_db.sources.keyset import horizon_mysql
from azure_functions_db.sources.keyset.horizon import Transaction
from azure_functions_db.sources.keyset.horizon_mysql import (
    Listing,
    Listings,
    MysqlWatch,
    _InnodbTransaction,
    _key,
    _mark,
    _recognised,
    _shown,
    _Statement,
)
from tests.support.plans import plan_of, table

STATUS = """
LIST OF TRANSACTIONS FOR EACH SESSION:
---TRANSACTION (0x7f2d9511c780), not started
mysql tables in use 1, locked 1
0 lock struct(s), heap size 1128, 0 row lock(s)
---TRANSACTION 19, ACTIVE 7 sec inserting
mysql tables in use 1, locked 1
1 lock struct(s), heap size 1128, 0 row lock(s), undo log entries 1
MariaDB thread id 7, OS thread handle 131037517653696, query id 12 127.0.0.1 azfdb User sleep
INSERT INTO changes VALUES ('
---TRANSACTION 99, not started
MySQL thread id 8, OS thread handle 1, query id 1 x
')
---TRANSACTION 20, ACTIVE (PREPARED) 30 sec
1 lock struct(s), heap size 1128, 0 row lock(s), undo log entries 1
---TRANSACTION 21, COMMITTED IN MEMORY
MySQL thread id 9, OS thread handle 131037517653696, query id 13 127.0.0.1 azfdb
---TRANSACTION 421789012345678, ACTIVE 0 sec
MySQL thread id 10, OS thread handle 131037517653696, query id 14 127.0.0.1 azfdb nonce
--------
FILE I/O
--------
"""


def test_a_status_shows_who_has_begun() -> None:
    assert list(_shown(STATUS, 1000, 1, "nonce")) == [
        (_InnodbTransaction(7, 19, 993, 1), False),
        (_InnodbTransaction(0, 20, 970, 1), False),
        (_InnodbTransaction(9, 21, None, 1), False),
        (_InnodbTransaction(10, None, 1000, 1), True),
    ]


@pytest.mark.parametrize("mark", [_InnodbTransaction(7, None, 993), _InnodbTransaction(7, 19, None, 2), _Statement(7)])
def test_a_key_means_the_same_to_every_process(mark: _InnodbTransaction | _Statement) -> None:
    assert _mark(json.loads(json.dumps(_key(mark)))) == mark


SEEN = _InnodbTransaction(7, None, 993)


@pytest.mark.parametrize(
    ("earlier", "later", "same"),
    [
        (SEEN, SEEN, True),
        (SEEN, _InnodbTransaction(7, 19, 993), True),  # it has begun to write
        (SEEN, _InnodbTransaction(0, 19, 993), True),  # it was prepared, and its session has gone
        (SEEN, _InnodbTransaction(8, None, 993), False),
        (SEEN, _InnodbTransaction(7, None, 994), False),
        (SEEN, _InnodbTransaction(7, None, 994, 1), True),  # as a text tells it
        (_InnodbTransaction(7, 19, 993), _InnodbTransaction(0, 19, 2000), True),  # prepared before a restart
        (_InnodbTransaction(7, 19, 993), _InnodbTransaction(7, 19, 2000, 1), False),  # a text that does not grow older
        (_InnodbTransaction(7, 19, 993), _InnodbTransaction(7, 20, 993), False),
        (_InnodbTransaction(7, 19, 993), _InnodbTransaction(7, 19, 994, 1), True),  # a text of the same age
        (_InnodbTransaction(7, 19, 993), _InnodbTransaction(7, None, 993), True),  # its number is not shown
        (SEEN, _InnodbTransaction(7, 19, None, 1), True),  # about to end
        (_InnodbTransaction(7, 19, None, 1), _InnodbTransaction(7, 19, None, 1), False),
        (SEEN, _Statement(7), False),
        (_Statement(7), _Statement(7), True),
        (_Statement(7), _Statement(8), False),
        (_Statement(7), SEEN, False),
    ],
)
def test_whoever_is_still_there_is_recognised(
    earlier: _InnodbTransaction | _Statement, later: _InnodbTransaction | _Statement, same: bool
) -> None:
    assert earlier.may_be(later) is same


def listed(mark: _InnodbTransaction | _Statement) -> Transaction:
    return Transaction(_key(mark), str(mark.thread), None, writes=False, mark=mark)


def test_whoever_is_still_there_keeps_his_key_and_no_two_share_one() -> None:
    earlier = [listed(SEEN)]
    prepared, anew = listed(_InnodbTransaction(0, 19, 993)), listed(SEEN)

    (kept,) = _recognised([listed(_InnodbTransaction(7, 19, 993))], earlier)
    assert kept.key == earlier[0].key
    assert [holder.key for holder in _recognised([prepared, anew], earlier)] == [prepared.key, anew.key]
    assert {holder.key for holder in _recognised([prepared, prepared], earlier)} >= {earlier[0].key, prepared.key}


def test_a_number_that_the_server_has_made_up_is_none() -> None:
    assert [horizon_mysql._number(shown) for shown in ("19", 0, 1 << 48, (1 << 48) - 1)] == [
        19,
        None,
        None,
        (1 << 48) - 1,
    ]


def shown(**changes: Any) -> Any:
    """A line of the process list."""
    usual = {"thread": 7, "user": "ann", "command": "Query", "has_statement": 1, "is_in_cluster": 0, "is_read_only": 0}
    return SimpleNamespace(**{**usual, **changes})


@pytest.mark.parametrize(
    ("rows", "trouble"),
    [
        ([shown()], None),
        ([shown(is_in_cluster="OFF", is_read_only="OFF")], None),
        ([shown(is_in_cluster="ON")], horizon_mysql._CLUSTER),
        ([shown(is_read_only=1)], horizon_mysql._READ_ONLY),
        ([shown(), shown(command="Slave_SQL")], horizon_mysql._REPLICA),
        ([shown(), shown(user="system user", command="Connect")], horizon_mysql._REPLICA),
        ([shown(user="system user", command="Daemon")], None),
        ([shown(command="Slave_IO", is_read_only=1)], horizon_mysql._REPLICA),
    ],
)
def test_a_server_that_does_not_know_all_writers_is_in_trouble(rows: list[Any], trouble: str | None) -> None:
    assert horizon_mysql._trouble(rows) == trouble


@pytest.mark.parametrize(
    ("command", "has_statement", "is_executing"),
    [("Query", 0, True), ("Execute", 1, True), ("Sleep", 0, False), ("Daemon", 0, False), ("Connect", 0, False)],
)
def test_whoever_does_not_rest_is_executing_something(command: str, has_statement: int, is_executing: bool) -> None:
    assert horizon_mysql._is_executing(shown(command=command, has_statement=has_statement)) is is_executing
    assert horizon_mysql._is_executing(shown(command="Connect", has_statement=1)), "an event"


def test_a_holder_is_told_with_its_age_and_whether_it_has_written() -> None:
    sessions = horizon_mysql._Sessions("start", 0.0, 1000, 1, {7: "ann"}, {7: 990, 8: 1005}, None)

    def told(mark: Any) -> tuple[Any, ...]:
        holder = horizon_mysql._holder(mark, sessions)
        return holder.session, holder.user, holder.writes, holder.age_seconds

    assert told(_Statement(7)) == ("7", "ann", False, 10.0)
    assert told(_Statement(8)) == ("8", None, False, 0.0), "clocks of two lists may differ a little"
    assert told(_InnodbTransaction(7, 19, 980)) == ("7", "ann", True, 20.0)
    assert told(_InnodbTransaction(7, None, None)) == ("7", "ann", False, None)


class Server:
    """Answers with the lists that it was given, and has a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = 100.0
        self.asked = 0
        self.answer: Any = ("start", [])
        monkeypatch.setattr(horizon_mysql, "_listed", self._listed)

    def clock(self) -> float:
        return self.at

    def _listed(self, connection: Any, clock: Any) -> Any:
        self.asked += 1
        return self.answer

    def newest(self, listings: Listings, since: int = 0) -> Listing:
        connection: Any = None
        return listings.newest(since, connection, self.clock)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


def test_watches_share_a_list_and_do_not_ask_too_often(server: Server) -> None:
    listings = Listings()
    first = server.newest(listings)
    assert (first.number, first.taken_at, first.server, first.trouble) == (1, 100.0, "start", None)
    assert server.newest(listings) is first, "it is young enough for whoever has seen nothing since"
    assert server.newest(listings, since=1) is first, "it is too early to ask again"
    server.at += 0.2
    assert server.newest(listings) is first
    assert server.newest(listings, since=1).number == 2
    assert (server.asked, listings.begun) == (2, 2)


def test_a_server_that_hides_its_list_is_believed_to_after_a_while(server: Server) -> None:
    listings = Listings()
    first = server.newest(listings)
    server.answer = None
    for _ in range(2):
        server.at += 9
        assert server.newest(listings, since=9) is first
        server.at += 0.2
        server.answer = ("start", [])
        first = server.newest(listings, since=9)
        server.answer = None
    server.at += 1
    assert server.newest(listings, since=9) is first
    server.at += 10
    assert server.newest(listings, since=9).trouble == horizon_mysql._CROWDED
    server.answer = "no privilege"
    server.at += 1
    assert server.newest(listings, since=99).trouble == "no privilege"


def test_whoever_was_in_the_last_list_has_the_same_key_in_the_next(server: Server) -> None:
    listings = Listings()
    server.answer = ("start", [listed(SEEN)])
    server.newest(listings)
    server.at += 1
    server.answer = ("start", [listed(_InnodbTransaction(7, 19, 993))])
    [kept] = server.newest(listings, since=1).running
    assert kept.key == _key(SEEN)


@pytest.fixture
def watch() -> Any:
    """A watch that has seen the value 5."""
    watch: Any = MysqlWatch("orders", types.BigInteger(), settle_seconds=None, cap_seconds=None, clock=lambda: 100.0)
    watch._know("start", 1000.0)
    watch._see(5, None)
    return watch


def note(watch: Any, *marks: Any) -> list[str]:
    """Show these to a watch; return whom it waits for."""
    watch._note(Listing(1, 100.0, [listed(mark) for mark in marks], None, "start"))
    horizon = watch.horizon()
    return [] if horizon is None else [holder.session for holder in horizon.holders]


def test_a_statement_is_waited_for_until_its_session_rests(watch: Any) -> None:
    assert note(watch, _Statement(7)) == ["7"]
    assert note(watch, _Statement(7), _Statement(8)) == ["7"]
    assert note(watch, _Statement(8)) == []
    assert watch.bound == 5


def test_a_transaction_stands_for_the_statement_that_has_begun_it(watch: Any) -> None:
    assert note(watch, _Statement(7)) == ["7"]
    assert note(watch, _InnodbTransaction(7, None, 993), _Statement(7)) == ["7"]
    assert note(watch, _InnodbTransaction(7, 19, 993)) == ["7"]
    assert note(watch, _Statement(7), _InnodbTransaction(7, 20, 999)) == [], "the next one is another"
    assert watch.bound == 5


def test_a_transaction_that_a_text_shows_does_not_stand_for_a_statement_alone(watch: Any) -> None:
    assert note(watch, _Statement(7)) == ["7"]
    assert note(watch, _InnodbTransaction(7, 19, 993, 1), _Statement(7)) == ["7", "7"]
    assert note(watch, _Statement(7)) == ["7"], "what somebody has made up is gone, and the statement is not"
    assert note(watch) == []


@pytest.mark.parametrize("key", ["x", "5", "[]", "[true, 7, 8]", '[false, "7", null, 993, 0]', '{"thread": 7}'])
def test_a_remembered_key_that_cannot_be_read_is_forgotten(key: str) -> None:
    watch: Any = MysqlWatch("orders", types.BigInteger(), settle_seconds=None, cap_seconds=None, clock=lambda: 100.0)
    watch.resume({"server": "start", "bound": 4, "ties": None, "waits": {key: 10.0}, "passed": {}})
    watch._know("start", 1000.0)
    watch._see(5, None)
    assert note(watch, _Statement(7)) == ["7"], "whoever it was, he is waited for once more if he is still there"
    assert note(watch) == []


def look(watch: Any, listings: list[Listing], *marks: Any) -> list[str]:
    """Show these to a watch as the next list of one server; return whom it waits for."""
    earlier = listings[-1].running if listings else ()
    running = list(_recognised([listed(mark) for mark in marks], earlier))
    listings.append(Listing(len(listings) + 1, 100.0, running, None, "start"))
    watch._note(listings[-1])
    horizon = watch.horizon()
    return [] if horizon is None else [holder.session for holder in horizon.holders]


@pytest.mark.parametrize(
    ("first", "second", "later"),
    [
        # Its number is not known yet, that of the first one was.
        (_InnodbTransaction(7, 19, 993), _InnodbTransaction(7, None, 993), _InnodbTransaction(7, 20, 993)),
        (_InnodbTransaction(7, 19, 993, 2), _InnodbTransaction(7, None, 994, 2), _InnodbTransaction(7, 20, 994, 2)),
        # A text has told its age less exactly than the list before and after it.
        (_InnodbTransaction(7, None, 993), _InnodbTransaction(7, None, 994, 2), _InnodbTransaction(7, None, 995)),
        (_InnodbTransaction(7, None, 993), _InnodbTransaction(7, None, 995, 2), _InnodbTransaction(7, 20, 996, 2)),
    ],
)
def test_a_transaction_that_looks_like_the_one_before_it_is_waited_for_as_itself(
    watch: Any, first: Any, second: Any, later: Any
) -> None:
    listings: list[Listing] = []
    assert look(watch, listings, first) == ["7"]
    watch._see(6, None)
    assert look(watch, listings, second) == ["7"]
    watch._see(7, None)
    assert look(watch, listings, later) == ["7"]
    assert watch.bound == 5, "whoever was running at 6 still is"
    look(watch, listings)
    assert watch.bound == 7


def test_a_statement_that_begins_a_transaction_is_not_taken_for_the_one_before_it(watch: Any) -> None:
    listings: list[Listing] = []
    assert look(watch, listings, _InnodbTransaction(7, 19, 993), _Statement(7)) == ["7", "7"]
    assert set(look(watch, listings, _InnodbTransaction(7, None, 993))) == {"7"}
    assert look(watch, listings, _InnodbTransaction(7, 20, 993)) == ["7"]
    assert look(watch, listings) == []


def test_a_text_that_does_not_grow_older_is_followed_for_a_moment_only(watch: Any) -> None:
    listings: list[Listing] = []
    made_up = [_InnodbTransaction(7, 19, 993 + second, 2) for second in range(7)]
    waited = [bool(look(watch, listings, mark)) for mark in made_up]
    assert waited == [True] * 5 + [False] * 2
    assert watch.bound == 5


@pytest.mark.parametrize(
    ("first", "second", "third", "same"),
    [
        # A number that it got, and an age that was told exactly, are known from then on.
        (SEEN, _InnodbTransaction(7, 19, 993), _InnodbTransaction(7, 20, 993), False),
        (_InnodbTransaction(7, None, 994, 2), SEEN, _InnodbTransaction(7, None, 995), False),
        # Whoever is about to end tells no age, which takes nothing back.
        (
            _InnodbTransaction(7, 19, 993, 3),
            _InnodbTransaction(7, 19, None, 1),
            _InnodbTransaction(7, 19, 993, 3),
            True,
        ),
    ],
)
def test_what_is_known_of_a_transaction_does_not_become_less(
    watch: Any, first: Any, second: Any, third: Any, same: bool
) -> None:
    listings: list[Listing] = []
    assert look(watch, listings, first) == ["7"]
    assert look(watch, listings, second) == ["7"]
    assert bool(look(watch, listings, third)) is same


def test_how_long_a_transaction_has_been_waited_for_is_known_by_every_look(watch: Any) -> None:
    listings: list[Listing] = []
    for mark in (SEEN, _InnodbTransaction(7, None, 994, 1), _InnodbTransaction(7, 19, 992, 1)):
        look(watch, listings, mark)
        assert list(watch._pending.since) == [_key(SEEN)]


def test_a_prepared_transaction_may_be_that_of_a_statement_whose_session_has_gone(watch: Any) -> None:
    assert note(watch, _Statement(7)) == ["7"]
    assert note(watch, _InnodbTransaction(0, 19, 993)) == ["0"]
    assert note(watch) == []


NOTE = "select `shop`.`orders`.`c` AS `c` from `shop`.`orders`"


@pytest.mark.parametrize(
    ("note", "engines", "doubt"),
    [
        (NOTE, {"orders": "InnoDB"}, None),
        (f"/* select#1 */ {NOTE}", {"orders": "InnoDB"}, None),
        (f"{NOTE} join `shop`.`it``s`", {"orders": "InnoDB", "it`s": "InnoDB"}, None),
        (f"{NOTE} join `shop`.`old`", {"orders": "InnoDB", "old": "MyISAM"}, "it reads old, a table of MyISAM"),
        (f"{NOTE} join (`shop`.`seen`)", {"orders": "InnoDB"}, "seen cannot be seen through"),
        ("select `shop`.`orders`.`c` + 1 AS `c` from `shop`.`orders`", {"orders": "InnoDB"}, "its cursor is computed"),
        ("", {}, "its cursor is computed"),
    ],
)
def test_a_source_whose_rows_appear_without_a_transaction_is_doubted(
    monkeypatch: pytest.MonkeyPatch, note: str, engines: dict[str, str], doubt: str | None
) -> None:
    nothing: Any = None
    monkeypatch.setattr(horizon_mysql, "_rewritten", lambda *_: note)
    monkeypatch.setattr(horizon_mysql, "_engine", lambda _, place, name: engines.get(name) if place == "shop" else None)
    told = horizon_mysql.doubt(nothing, nothing)
    assert told is None if doubt is None else doubt in str(told)


class Optimiser:
    """A server that says in a note how it runs a statement, and knows the engines of its tables."""

    def __init__(self, *notes: str, is_mariadb: bool = True, **engines: str) -> None:
        self.dialect = SimpleNamespace(is_mariadb=is_mariadb)
        self._notes = notes
        self._engines = engines
        self.how: list[str] = []

    def execute(self, statement: Any, named: dict[str, str] | None = None) -> Any:
        if named is None:
            self.how.append(statement.prefix)
            return Answer([])
        return SimpleNamespace(scalar=lambda: self._engines.get(named["name"]) if named["place"] == "shop" else None)

    def exec_driver_sql(self, statement: str) -> Answer:
        assert (statement, len(self.how)) == ("SHOW WARNINGS", 1), "notes are those of the last statement"
        return Answer([("Note", 1003, note) for note in self._notes])

    def doubt(self) -> str | None:
        connection: Any = self
        return horizon_mysql.doubt(connection, plan_of(table(types.BigInteger()), "mysql"))


@pytest.mark.parametrize(("is_mariadb", "how"), [(True, "EXPLAIN EXTENDED"), (False, "EXPLAIN FORMAT=TRADITIONAL")])
def test_a_server_is_asked_for_its_note_in_the_form_that_brings_one(is_mariadb: bool, how: str) -> None:
    server = Optimiser("a hint", NOTE, is_mariadb=is_mariadb, orders="InnoDB")
    assert (server.doubt(), server.how) == (None, [how])


def test_a_server_that_says_nothing_or_does_not_show_a_table_is_doubted() -> None:
    assert "its cursor is computed" in str(Optimiser().doubt())
    assert "orders cannot be seen through" in str(Optimiser(NOTE).doubt())
    assert "a table of Aria" in str(Optimiser(NOTE, orders="Aria").doubt())


def test_whoever_is_known_by_his_own_key_gets_nobody_elses() -> None:
    stranger = listed(_InnodbTransaction(8, None, 900))
    assert [holder.key for holder in _recognised([stranger], [listed(SEEN)])] == [stranger.key]
    known = listed(_InnodbTransaction(7, 19, 993))
    assert [holder.key for holder in _recognised([known], [listed(SEEN), known])] == [known.key]


def test_a_transaction_without_a_number_is_shown_too() -> None:
    status = "\n---TRANSACTION (0x7f2d9511c780), ACTIVE 3 sec\nMySQL thread id 7, OS thread handle 1\n"
    assert list(_shown(status, 1000, 1, "nonce")) == [(_InnodbTransaction(7, None, 997, 1), False)]


def test_a_transaction_of_another_session_does_not_stand_for_a_statement(watch: Any) -> None:
    assert note(watch, _Statement(7)) == ["7"]
    assert note(watch, _InnodbTransaction(8, 19, 993)) == []
    assert watch.bound == 5


def test_as_long_as_one_of_several_is_known_from_a_text_the_statement_is_waited_for_as_well(watch: Any) -> None:
    assert note(watch, _Statement(7)) == ["7"]
    shown = _InnodbTransaction(7, 19, 993), _InnodbTransaction(7, 20, 994, 1), _Statement(7)
    assert note(watch, *shown) == ["7", "7", "7"]


class Answer:
    """The rows that a statement brings."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def all(self) -> list[Any]:
        return self._rows

    def one(self) -> Any:
        [row] = self._rows
        return row


def session(thread: int, **changes: Any) -> Any:
    usual = {"began": 990, "now": 1000, "is_own": thread == 1, "server": "start", "thread": thread}
    return shown(**{**usual, **changes})


class Session:
    """The first session of a server that answers by what it was told."""

    dialect = SimpleNamespace(is_mariadb=True)

    def __init__(self, *sessions: Any, transactions: Any = (), status: Any = "") -> None:
        self.sessions = sessions or (session(1),)
        self.transactions = transactions
        self.status = status
        self.said: list[str] = []

    def exec_driver_sql(self, statement: str) -> Answer:
        self.said.append(statement.split(" WITH", maxsplit=1)[0].split(" /*", maxsplit=1)[0])
        if "processlist" in statement:
            return Answer(list(self.sessions))
        if "innodb_trx" in statement:
            return Answer(self._told(self.transactions))
        if statement.startswith("SHOW ENGINE"):
            [nonce] = re.findall(r"/\* (\w+) \*/", statement)
            told = self._told(self.status)
            own = nonce.encode() if isinstance(told, bytes) else nonce
            return Answer([("InnoDB", "", told.replace(b"nonce" if isinstance(told, bytes) else "nonce", own))])
        return Answer([])

    def _told(self, what: Any) -> Any:
        if isinstance(what, Exception):
            raise what
        return what

    def listed(self) -> Any:
        connection: Any = self
        found = horizon_mysql._listed(connection, lambda: 5.0)
        return (found[0], [holder.mark for holder in found[1]]) if isinstance(found, tuple) else found


OWN = (1, "0", 1000, 1)


def test_whoever_executes_a_statement_or_has_begun_is_running_but_for_ourselves() -> None:
    server = Session(session(7), session(1), session(8, command="Sleep"), transactions=[OWN, (8, "19", 993, 0)])
    assert server.listed() == ("start", [_InnodbTransaction(8, 19, 993), _Statement(7)])
    assert server.said[1] == "START TRANSACTION", "or we would not be in the list ourselves"
    assert server.said[-1] == "ROLLBACK"


def test_a_list_of_another_server_counts_for_nothing() -> None:
    assert Session(session(7)).listed() is None, "a proxy has asked another one"
    assert Session(transactions=[(2, "0", 1000, 1)]).listed() is None, "and so it may have here"


def test_a_server_in_trouble_is_not_asked_any_further() -> None:
    server = Session(session(1, is_read_only=1))
    assert server.listed() == horizon_mysql._READ_ONLY
    assert len(server.said) == 1


@pytest.mark.parametrize("form", [str, str.encode])
def test_a_list_that_does_not_show_the_question_is_old_and_a_text_is_read_in_its_place(form: Any) -> None:
    server = Session(session(10, is_own=True), transactions=[(7, "19", 993, 0)], status=form(STATUS))
    _, marks = server.listed()
    assert [(mark.thread, mark.slack) for mark in marks] == [(7, 1), (0, 1), (9, 1)]
    assert server.said[-2:] == ["SET character_set_results = @azfdb_results", "ROLLBACK"]
    assert server.said[-4].endswith("character_set_results = binary"), "others' statements need not be any text"


@pytest.mark.parametrize(("is_mariadb", "status"), [(True, "information_schema"), (False, "performance_schema")])
def test_mysql_and_mariadb_are_asked_for_what_they_have(is_mariadb: bool, status: str) -> None:
    server = Session(transactions=[OWN])
    server.dialect = SimpleNamespace(is_mariadb=is_mariadb)
    server.listed()
    assert f"{status}.global_status" in server.said[0]
    assert ("wsrep_on" in server.said[0]) is is_mariadb


def test_a_text_from_which_the_server_has_left_something_out_is_not_believed() -> None:
    cut = STATUS.ljust(horizon_mysql._LONGEST_STATUS - 27)  # what stands for the question is longer by that much
    assert Session(session(10, is_own=True), status=cut).listed() is None
    assert Session(session(10, is_own=True), status=STATUS.replace("nonce", "")).listed() is None


def test_a_user_who_may_not_see_the_list_is_told_so_and_leaves_no_transaction_behind() -> None:
    server = Session(transactions=refused(1227))
    assert server.listed() == horizon_mysql._NO_PRIVILEGE
    assert server.said[-1] == "ROLLBACK"
    server = Session(status=refused(2013))
    with pytest.raises(DBAPIError):
        server.listed()
    assert server.said[-2:] == ["SET character_set_results = @azfdb_results", "ROLLBACK"]


def refused(number: int) -> DBAPIError:
    return DBAPIError("a statement", None, pymysql.err.OperationalError(number, "no"))


class Place:
    """A server whose newest value and whose lists are told by hand, as its watches see it."""

    dialect = SimpleNamespace(is_mariadb=True)

    def __init__(self, server: Server) -> None:
        self.server = server
        self.newest: int | None = 5
        self.rollbacks = 0

    @property
    def engine(self) -> Place:
        """Itself: whoever shares it shares its lists."""
        return self

    def watch(self) -> Any:
        clock = self.server.clock
        watch: Any = MysqlWatch("orders", types.BigInteger(), settle_seconds=None, cap_seconds=None, clock=clock)
        watch._observed = lambda *_: SimpleNamespace(newest=self.newest, clock=None)
        return watch

    def look(self, watch: Any, *running: Any, after: float = 0.2) -> Any:
        self.server.at += after
        self.server.answer = ("start", [listed(mark) for mark in running])
        return watch._look(self, None, None)

    def rollback(self) -> None:
        self.rollbacks += 1

    def exec_driver_sql(self, _statement: str) -> Answer:
        return Answer([("start", 1000.0)])


@pytest.fixture
def place(server: Server) -> Place:
    return Place(server)


def test_a_value_is_safe_once_all_have_ended_who_were_running_after_it_was_seen(place: Place) -> None:
    watch = place.watch()
    assert place.look(watch, SEEN)
    assert watch.bound is None
    assert place.look(watch, SEEN)
    assert watch.bound is None
    assert place.rollbacks == 2, "what was seen is of an earlier moment than the list"
    place.newest, asked = None, place.server.asked
    assert not place.look(watch)
    assert place.server.asked == asked, "nor is anybody looked for where nothing is left"
    place.newest = 5
    place.look(watch)
    assert watch.bound == 5
    assert watch.is_settled
    asked = place.server.asked
    assert place.look(watch)
    assert place.server.asked == asked, "nobody has to be looked for where nothing is new"


def test_a_list_that_another_watch_took_before_a_value_was_seen_does_not_count(place: Place) -> None:
    earlier, later = place.watch(), place.watch()
    place.look(earlier)
    assert place.look(later, SEEN, after=0.0)
    assert later.bound is None, "it was too early to ask again"
    place.look(later, SEEN)
    assert later.bound is None
    place.look(later)
    assert later.bound == 5


def test_of_a_table_without_news_it_is_found_out_once_whether_writers_can_be_seen(place: Place) -> None:
    watch, place.newest = place.watch(), None
    assert not place.look(watch)
    assert not place.look(watch)
    assert place.server.asked == 1


def test_a_server_that_hides_its_writers_is_asked_until_it_shows_them(place: Place) -> None:
    watch = place.watch()
    place.look(watch)
    assert not watch.is_blind
    place.newest, place.server.at = 6, place.server.at + 1
    place.server.answer = horizon_mysql._REPLICA
    connection: Any = place
    assert watch._look(connection, None, None)
    assert (watch.is_blind, watch.grade, watch.reason) == (True, "none", horizon_mysql._REPLICA)
    assert place.look(watch, after=0.0)
    assert watch.is_blind, "an old list tells nothing new"
    place.look(watch)
    assert (watch.is_blind, watch.grade) == (False, "exact")


def test_a_replica_is_read_as_far_as_it_was_seen_while_it_was_one(place: Place) -> None:
    watch, connection = place.watch(), cast(Any, place)
    place.server.answer = horizon_mysql._REPLICA
    watch._look(connection, None, None)
    assert (watch.bound, watch.includes_bound, watch.is_settled) == (5, True, True), "nobody can be waited for"

    place.newest = 6
    watch._look(connection, None, None)
    assert (watch.bound, watch.is_settled) == (5, False), "by now it may have been promoted"
    place.look(watch, SEEN)
    assert not watch.is_blind
    assert watch.bound is None, "whoever is running may be below what was seen"
    place.look(watch, SEEN)
    assert watch.bound is None
    place.look(watch)
    assert watch.bound == 6


def test_what_was_seen_of_another_server_is_seen_anew(place: Place) -> None:
    watch = place.watch()
    place.look(watch)
    assert watch.bound == 5
    place.newest, place.server.at = 6, place.server.at + 1
    place.server.answer = ("another start", [])
    connection: Any = place
    watch._look(connection, None, None)
    assert watch.bound is None
    place.server.at += 1
    watch._look(connection, None, None)
    assert watch.bound == 6
