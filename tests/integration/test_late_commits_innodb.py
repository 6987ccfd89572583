"""Rows that are stamped early and committed late on MariaDB: what its lists show, hide and pretend."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from azure_functions_db import DbConfig, EngineProvider, SqlAlchemySource
from azure_functions_db.sources.keyset import horizon_mysql
from tests.conftest import temporary_database
from tests.integration.test_late_commits import Poll, Processes, insert, until
from tests.integration.traffic import create_table
from tests.support.followers import started
from tests.support.visitors import visitor
from tools.services.mariadb import MariaDb

Session = Callable[[], Connection]
NewSource = Callable[..., SqlAlchemySource]
PATIENT = {"horizon_wait_seconds": 20}


@pytest.fixture
def url(mariadb_database: str) -> str:
    create_table(mariadb_database)
    return mariadb_database


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = create_engine(url, connect_args={"local_infile": True})
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with ExitStack() as sessions:
        yield lambda: sessions.enter_context(engine.connect())


@pytest.fixture
def new_source(url: str, provider: EngineProvider) -> NewSource:
    def new_source(cursor: str = "stamp", **options: Any) -> SqlAlchemySource:
        named = {} if "db_config" in options else {"url": url}
        return SqlAlchemySource(
            table="changes",
            cursor_column=cursor,
            pk_columns=["id"],
            **{"engine_provider": provider, "horizon_wait_seconds": 0.5, **named, **options},
        )

    return new_source


def number_of(connection: Connection) -> int:
    return int(connection.execute(text("SELECT connection_id()")).scalar_one())


class Gate:
    """A user lock that statements wait for until it is opened."""

    def __init__(self, keeper: Connection) -> None:
        self.name = f"gate_{make_url(str(keeper.engine.url)).database}_{number_of(keeper)}"
        self._keeper = keeper
        keeper.execute(text("SELECT get_lock(:name, 0)"), {"name": self.name})
        keeper.rollback()

    @property
    def wait(self) -> str:
        """An expression that has a value once the gate is open."""
        return f"get_lock('{self.name}', 60)"

    def open(self) -> None:
        self._keeper.execute(text("SELECT release_lock(:name)"), {"name": self.name})
        self._keeper.rollback()


@contextmanager
def executing(engine: Engine, connection: Connection, statement: str) -> Iterator[threading.Thread]:
    """Execute a statement in the background, and go on once it waits for something."""
    number = number_of(connection)
    thread = threading.Thread(target=connection.exec_driver_sql, args=(statement,))
    thread.start()
    try:
        until_waiting(engine, number)
        yield thread
    finally:
        thread.join(60)


def until_waiting(engine: Engine, number: int | None = None, doing: str = "") -> None:
    shown = "SELECT count(*) FROM information_schema.processlist WHERE (id = :id OR info LIKE :doing) AND state <> ''"
    until = shown + " AND (state LIKE '%lock%' OR state LIKE '%sleep%' OR state LIKE '%Reading from net%')"
    for _ in range(3000):
        with engine.connect() as connection:
            if connection.execute(text(until), {"id": number, "doing": doing}).scalar_one():
                return
        time.sleep(0.01)
    raise AssertionError("The statement is not waiting")


# Statements that have taken their stamp and not yet touched a row


def wait_in_a_select(gate: Gate, connection: Connection) -> str:
    return f"INSERT INTO changes (version, stamp) SELECT {gate.wait}, now(6)"


def wait_in_a_trigger(gate: Gate, connection: Connection) -> str:
    body = f"IF NEW.version = 7 THEN DO {gate.wait}; END IF"
    connection.execute(text(f"CREATE TRIGGER slow BEFORE INSERT ON changes FOR EACH ROW BEGIN {body}; END"))
    return "INSERT INTO changes (version, stamp) VALUES (7, now(6))"


def wait_in_a_function(gate: Gate, connection: Connection) -> str:
    connection.execute(text(f"CREATE FUNCTION slow() RETURNS int NO SQL RETURN {gate.wait}"))
    return "INSERT INTO changes (version, stamp) VALUES (slow(), now(6))"


def wait_in_a_procedure(gate: Gate, connection: Connection) -> str:
    body = f"DECLARE at datetime(6) DEFAULT now(6); DO {gate.wait}; INSERT INTO changes (version, stamp) VALUES (1, at)"
    connection.execute(text(f"CREATE PROCEDURE slow() BEGIN {body}; END"))
    return "CALL slow()"


def wait_with_a_number(gate: Gate, connection: Connection) -> str:
    connection.execute(text("CREATE SEQUENCE numbers START WITH 1"))
    return f"INSERT INTO changes (id, version, stamp) SELECT NEXT VALUE FOR numbers, {gate.wait}, now(6)"


WAITS = [
    (wait_in_a_select, "stamp"),
    (wait_in_a_trigger, "stamp"),
    (wait_in_a_function, "stamp"),
    (wait_in_a_procedure, "stamp"),
    (wait_with_a_number, "id"),
]
Wait = Callable[[Gate, Connection], str]


def rows_of(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT id FROM changes ORDER BY id")).scalars())


@pytest.mark.parametrize(("wait", "cursor"), WAITS)
@pytest.mark.parametrize("how", ["at once", "in a transaction"])
def test_a_statement_that_has_its_stamp_and_no_row_yet_is_waited_for(
    engine: Engine, session: Session, new_source: NewSource, wait: Wait, cursor: str, how: str
) -> None:
    early, late, gate = session(), session(), Gate(session())
    statement = wait(gate, late)
    early = early.execution_options(isolation_level="AUTOCOMMIT") if how == "at once" else early
    with executing(engine, early, statement):
        insert(late, number=1000)
        late.commit()
        poll = Poll(new_source(cursor))
        assert poll() == []  # the row is there, but an earlier one may follow
        assert poll.horizon is not None
        assert str(number_of_holder(poll)) == str(poll.horizon.holders[0].session)
        gate.open()
    if how == "in a transaction":
        assert poll() == []  # the statement is over, its transaction is not
        early.commit()
    poll.source = new_source(cursor, **PATIENT)
    assert poll() == rows_of(engine)
    assert len(rows_of(engine)) == 2


def number_of_holder(poll: Poll) -> int:
    assert poll.horizon is not None
    (holder,) = poll.horizon.holders
    return int(holder.session)


@pytest.mark.parametrize(("wait", "cursor"), WAITS)
def test_plain_polling_loses_that_row(
    engine: Engine, session: Session, new_source: NewSource, wait: Wait, cursor: str
) -> None:
    early, late, gate = session().execution_options(isolation_level="AUTOCOMMIT"), session(), Gate(session())
    statement = wait(gate, late)
    with executing(engine, early, statement):
        insert(late, number=1000)
        late.commit()
        poll = Poll(new_source(cursor, in_flight="ignore"))
        assert poll() == [1000]
        gate.open()
    assert poll() == []


def call_a_trigger(first: Gate, second: Gate, connection: Connection) -> str:
    body = f"IF NEW.version = 7 THEN DO {first.wait}; DO {second.wait}; END IF"
    connection.execute(text(f"CREATE TRIGGER slow BEFORE INSERT ON changes FOR EACH ROW BEGIN {body}; END"))
    return "INSERT INTO changes (version, stamp) VALUES (7, now(6))"


def call_a_procedure(first: Gate, second: Gate, connection: Connection) -> str:
    body = f"DECLARE at datetime(6) DEFAULT now(6); DO {first.wait}; DO {second.wait}"
    connection.execute(
        text(f"CREATE PROCEDURE slow() BEGIN {body}; INSERT INTO changes (version, stamp) VALUES (1, at); END")
    )
    return "CALL slow()"


@pytest.mark.parametrize("call", [call_a_trigger, call_a_procedure])
def test_a_statement_that_goes_from_one_to_the_next_inside_is_still_the_same(
    engine: Engine, session: Session, new_source: NewSource, call: Callable[[Gate, Gate, Connection], str]
) -> None:
    early, late, first, second = session(), session(), Gate(session()), Gate(session())
    statement = call(first, second, late)
    early = early.execution_options(isolation_level="AUTOCOMMIT")
    with executing(engine, early, statement):
        insert(late, number=1000)
        late.commit()
        poll = Poll(new_source(horizon_wait_seconds=1.5))  # longer than the clock shows the second of its beginning
        assert poll() == []
        first.open()
        until_waiting(engine, doing=f"DO get_lock('{second.name}%")
        assert poll() == []
        second.open()
    poll.source = new_source(**PATIENT)
    assert poll() == rows_of(engine)
    assert len(rows_of(engine)) == 2


def test_a_statement_that_waits_for_another_table_is_waited_for(
    engine: Engine, session: Session, new_source: NewSource
) -> None:
    early, late, keeper = session().execution_options(isolation_level="AUTOCOMMIT"), session(), session()
    keeper.execute(text("CREATE TABLE other (id int)"))
    keeper.execute(text("INSERT INTO other VALUES (1)"))
    keeper.commit()
    keeper.execute(text("LOCK TABLES other WRITE"))
    with executing(engine, early, "INSERT INTO changes (version, stamp) SELECT id, now(6) FROM other"):
        insert(late, number=1000)
        late.commit()
        poll = Poll(new_source())
        assert poll() == []
        keeper.execute(text("UNLOCK TABLES"))
    poll.source = new_source(**PATIENT)
    assert poll() == rows_of(engine)
    assert len(rows_of(engine)) == 2


def test_a_load_whose_first_line_has_not_come_is_waited_for(
    engine: Engine, session: Session, new_source: NewSource, tmp_path: Path
) -> None:
    early, late = session().execution_options(isolation_level="AUTOCOMMIT"), session()
    lines = tmp_path / "lines"
    os.mkfifo(lines)
    load = f"LOAD DATA LOCAL INFILE '{lines}' INTO TABLE changes (version) SET stamp = now(6)"
    with executing(engine, early, load):
        insert(late, number=1000)
        late.commit()
        poll = Poll(new_source())
        assert poll() == []
        lines.write_text("7\n")
    poll.source = new_source(**PATIENT)
    assert poll() == rows_of(engine)
    assert len(rows_of(engine)) == 2


def test_an_event_of_the_server_is_waited_for(engine: Engine, session: Session, new_source: NewSource) -> None:
    late, gate = session(), Gate(session())
    late.execute(text("SET GLOBAL event_scheduler = ON"))
    body = f"INSERT INTO changes (version, stamp) SELECT {gate.wait}, now(6)"
    late.execute(text(f"CREATE EVENT slow ON SCHEDULE AT now() DO {body}"))
    until_waiting(engine, doing=f"INSERT INTO changes (version, stamp) SELECT get_lock('{gate.name}%")
    insert(late, number=1000)
    late.commit()
    poll = Poll(new_source())
    assert poll() == []
    gate.open()
    poll.source = new_source(**PATIENT)
    assert poll() == rows_of(engine)
    assert len(rows_of(engine)) == 2
    late.execute(text("SET GLOBAL event_scheduler = OFF"))


def test_somebody_who_only_knocks_at_the_door_is_not_waited_for(
    session: Session, new_source: NewSource, url: str
) -> None:
    import socket

    writer = session()
    row = insert(writer)
    writer.commit()
    server = make_url(url)
    with socket.create_connection((str(server.host), int(server.port or 3306))):
        assert Poll(new_source())() == [row]


# What others read and write


@contextmanager
def monitor(engine: Engine) -> Iterator[None]:
    """Somebody who reads InnoDB's list so often that the server never renews it."""
    over, reading = threading.Event(), threading.Event()

    def read() -> None:
        with engine.connect() as connection:
            while not over.is_set():
                connection.execute(text("SELECT count(*) FROM information_schema.innodb_trx")).scalar_one()
                reading.set()
                over.wait(0.02)

    thread = threading.Thread(target=read)
    thread.start()
    reading.wait(60)
    try:
        yield
    finally:
        over.set()
        thread.join(60)


@pytest.mark.parametrize("cursor", ["stamp", "id"])
def test_a_monitor_that_reads_the_list_all_the_time_neither_starves_nor_blinds(
    engine: Engine, session: Session, new_source: NewSource, cursor: str
) -> None:
    early, late, reader = session(), session(), session()
    with monitor(engine):
        reader.execute(text("SELECT id FROM changes")).all()
        first = insert(early)
        second = insert(late)
        late.commit()
        poll = Poll(new_source(cursor))
        assert poll() == []
        assert poll.horizon is not None
        assert {holder.session for holder in poll.horizon.holders} >= {str(number_of(early)), str(number_of(reader))}
        early.commit()
        reader.rollback()
        poll.source = new_source(cursor, **PATIENT)
        assert poll() == [first, second]


def test_the_next_transaction_of_a_session_is_not_taken_for_the_last_one(
    engine: Engine, session: Session, new_source: NewSource
) -> None:
    writer, other = session(), session()
    poll = Poll(new_source())
    with monitor(engine):
        rows = [insert(writer), insert(other)]
        other.commit()
        found = poll()
        writer.commit()
        writer.execute(
            text("SELECT id FROM changes")
        ).all()  # the next one has written nothing so far, the last one had
        stamp = writer.execute(text("SELECT now(6)")).scalar_one()
        rows.append(insert(other))
        other.commit()
        found += poll()
        rows.append(insert(writer, stamp))
        found += poll()
        writer.commit()
        assert sorted(found + until(poll, rows[-2:])) == rows


def test_a_transaction_is_the_same_one_in_either_list(engine: Engine, session: Session, new_source: NewSource) -> None:
    early, idle, late = session(), session(), session()
    idle.execute(text("SELECT id FROM changes")).all()
    stamp = idle.execute(text("SELECT now(6)")).scalar_one()
    first = insert(early)
    second = insert(late)
    late.commit()
    poll = Poll(new_source())
    for _ in range(2):
        assert poll() == []
        with monitor(engine):
            assert poll() == []
    third = insert(idle, stamp)
    early.commit()
    with monitor(engine):
        assert poll() == []
        idle.commit()
        poll.source = new_source(**PATIENT)
        assert poll() == sorted([first, second, third])


def test_a_prepared_transaction_is_waited_for_after_its_session_has_gone(
    engine: Engine, session: Session, new_source: NewSource
) -> None:
    early, late = session(), session().execution_options(isolation_level="AUTOCOMMIT")
    name = f"'{engine.url.database}'"
    early.execute(text(f"XA START {name}"))
    first = insert(early)
    for statement in ("XA END", "XA PREPARE"):
        early.execute(text(f"{statement} {name}"))
    second = insert(late)
    poll = Poll(new_source())
    assert poll() == []
    early.invalidate()
    try:
        assert poll() == []
        poll.source = new_source()
        assert poll() == []
    finally:
        late.execute(text(f"XA COMMIT {name}"))
    poll.source = new_source(**PATIENT)
    assert poll() == [first, second]


FORGED = "---TRANSACTION {number}, ACTIVE {age} sec\nMariaDB thread id {thread}, OS thread handle 1, query id 1 x\n"


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        "/* azfdb */",
        "/* azfdb */ /* 2999-01-01T00:00:00 */",
        "/* azfdb */ /* never */",
        "/* \n---TRANSACTION x */",
        "/* \nLIST OF TRANSACTIONS FOR EACH SESSION:\n... truncated...\n */",
        f"/* \n{FORGED.format(number='9' * 400, age='9' * 400, thread='9' * 200)} */",
        "/* \xff\xfe\x80 \x01 */",
        f"/* {'x' * 100_000} */",
    ],
)
def test_what_others_write_is_never_believed(
    engine: Engine, session: Session, new_source: NewSource, words: str, watched: bool
) -> None:
    early, late, gate = session(), session(), Gate(session())
    first = insert(early)
    second = insert(late)
    late.commit()
    with ExitStack() as stack:
        if watched:
            stack.enter_context(monitor(engine))
        with executing(engine, early, f"SELECT {words} {gate.wait}"):
            poll = Poll(new_source())
            assert poll() == []
            gate.open()
        assert poll() == []
        early.commit()
        poll.source = new_source(**PATIENT)
        assert poll() == [first, second]


def test_a_transaction_that_somebody_makes_up_does_not_stand_for_a_statement(
    engine: Engine, session: Session, new_source: NewSource
) -> None:
    early, late, forger, gate, other_gate = session(), session(), session(), Gate(session()), Gate(session())
    early = early.execution_options(isolation_level="AUTOCOMMIT")
    made_up = FORGED.format(number="", age=0, thread=number_of(early))
    with monitor(engine), executing(engine, early, wait_in_a_select(gate, early)):
        insert(late, number=1000)
        late.commit()
        poll = Poll(new_source())
        assert poll() == []
        forger.execute(text("SELECT id FROM changes")).all()
        with executing(engine, forger, f"SELECT /*\n{made_up}*/ {other_gate.wait}"):
            assert poll() == []
            other_gate.open()
        forger.rollback()
        assert poll() == []  # what stood in the status has gone, the statement has not
        gate.open()
    poll.source = new_source(**PATIENT)
    assert poll() == rows_of(engine)
    assert len(rows_of(engine)) == 2


def test_bytes_in_no_character_set_do_not_break_a_poller_that_asks_for_another(
    engine: Engine, session: Session, new_source: NewSource, url: str
) -> None:
    narrow = create_engine(url, connect_args={"charset": "latin1"})
    narrow_url = f"{url}?charset=utf8"  # the three bytes of old, which the server does not convert
    with narrow.connect() as early, monitor(engine):
        late, gate = session(), Gate(session())
        first = insert(early)
        second = insert(late)
        late.commit()
        with executing(engine, early, f"SELECT '\xff\xfe\xe9', {gate.wait}"):
            poll = Poll(new_source(db_config=DbConfig(connection_url=narrow_url)))
            assert poll() == []
            gate.open()
        early.commit()
        poll.source = new_source(db_config=DbConfig(connection_url=narrow_url), **PATIENT)
        assert poll() == [first, second]
    narrow.dispose()


def deadlock(one: Connection, other: Connection, words: str) -> None:
    """Let two sessions wait for each other until the server ends it, and keeps their statements in its status."""
    one.execute(text("UPDATE changes SET version = 5 WHERE id = 1"))
    other.execute(text("UPDATE changes SET version = 5 WHERE id = 2"))

    def meet(connection: Connection, number: int) -> None:
        try:
            connection.exec_driver_sql(f"UPDATE /* {words} */ changes SET version = 6 WHERE id = {number}")
        except OperationalError:
            connection.rollback()

    threads = [threading.Thread(target=meet, args=met) for met in ((one, 2), (other, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    one.commit()
    other.commit()


def test_what_stays_in_the_status_for_ever_does_not_hold_the_poller(
    engine: Engine, session: Session, new_source: NewSource
) -> None:
    """The status keeps the statements of the last deadlock, whatever is written in them."""
    one, other, idle = session(), session(), session()
    for number in (1, 2):
        insert(one, number=number)
    one.commit()
    deadlock(one, other, "\n" + FORGED.format(number=999_999_999, age=3, thread=number_of(idle)))
    status = one.execute(text("SHOW ENGINE INNODB STATUS")).one()[2]
    assert "\n---TRANSACTION 999999999, ACTIVE 3 sec\n" in status
    one.rollback()
    with monitor(engine):
        assert Poll(new_source(**PATIENT))() == [1, 2]
    deadlock(one, other, "so that no other test has to do with this one")


@contextmanager
def endless_status(session: Session) -> Iterator[None]:
    """A status of InnoDB so long that the server leaves transactions out: those of the youngest sessions."""
    writer = session()
    writer.execute(text("CREATE TABLE big (id int PRIMARY KEY, word char(30))"))
    writer.execute(text("INSERT INTO big SELECT seq, 'x' FROM seq_1_to_20000"))
    writer.commit()
    writer.execute(text("SET GLOBAL innodb_status_output_locks = ON"))
    readers = [session() for _ in range(4)]
    for reader in readers:
        reader.execute(text("SELECT id FROM big LOCK IN SHARE MODE")).all()
    yield
    for reader in readers:
        reader.rollback()
    writer.execute(text("SET GLOBAL innodb_status_output_locks = OFF"))


@pytest.mark.parametrize(("settle_seconds", "grade"), [(None, "none"), (0.001, "settled")])
def test_a_list_that_is_not_whole_is_no_list(
    engine: Engine,
    session: Session,
    new_source: NewSource,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    settle_seconds: float | None,
    grade: str,
) -> None:
    writer = session()
    row = insert(writer)
    writer.commit()
    with endless_status(session), monitor(engine):
        poll = Poll(new_source(settle_seconds=settle_seconds))
        assert poll() == []
        monkeypatch.setattr(horizon_mysql, "_BLIND_AFTER_SECONDS", 0)
        poll.source = new_source(settle_seconds=settle_seconds, **PATIENT)
        assert poll() == [row]
        assert poll.source.late_commit_grade() == grade
    assert "SHOW ENGINE INNODB STATUS is not complete" in caplog.text


def test_a_list_that_shows_the_poller_and_not_everybody_else_is_no_list(
    engine: Engine, session: Session, new_source: NewSource
) -> None:
    poll = Poll(new_source())
    assert poll() == []  # its session is older than those that are left out
    with monitor(engine):
        with endless_status(session):
            early, late = session(), session()
            first, second = insert(early), insert(late)
            late.commit()
            assert poll() == []
        assert poll() == []  # those who made the status long have gone, the early one has not
        early.commit()
    poll.source = new_source(**PATIENT)
    assert poll() == [first, second]


def test_pollers_that_always_overlap_do_not_hold_each_other(session: Session, url: str) -> None:
    rows, pollers = 40, 5
    seen: list[list[int]] = [[] for _ in range(pollers)]
    providers = [EngineProvider() for _ in range(pollers)]

    def follow(found: list[int], provider: EngineProvider) -> None:
        options: dict[str, Any] = {"table": "changes", "cursor_column": "stamp", "pk_columns": ["id"]}
        poll = Poll(SqlAlchemySource(url=url, engine_provider=provider, **options))
        while len(found) < rows:
            found += poll()

    threads = [threading.Thread(target=follow, args=met, daemon=True) for met in zip(seen, providers, strict=True)]
    for thread in threads:
        thread.start()
    writer = session()
    for _ in range(rows):
        insert(writer)
        writer.commit()
    for thread in threads:
        thread.join(60)
    assert seen == [list(range(1, rows + 1))] * pollers
    for provider in providers:
        provider.dispose_all()


def test_a_busy_session_does_not_hold_the_poller(session: Session, engine: Engine, new_source: NewSource) -> None:
    over, begun = threading.Event(), threading.Event()

    def work() -> None:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for _ in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
                connection.execute(text("SELECT benchmark(20000, md5('x'))"))
                begun.set()
                time.sleep(0.005)  # as long as a client thinks about its next statement

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait(60)
    try:
        writer = session()
        row = insert(writer)
        writer.commit()
        assert Poll(new_source(**PATIENT))() == [row]
    finally:
        over.set()
        thread.join(60)


# Zones


@pytest.mark.parametrize("zone", ["-11:00", "+13:00"])
def test_the_zone_of_the_session_changes_nothing(session: Session, new_source: NewSource, url: str, zone: str) -> None:
    there = DbConfig(connection_url=url, connect_args={"init_command": f"SET time_zone = '{zone}'"})
    early, late = session(), session()
    first = insert(early)
    second = insert(late)
    late.commit()
    poll = Poll(new_source(db_config=there))
    assert poll() == []
    assert poll.horizon is not None
    (holder,) = poll.horizon.holders
    assert holder.age_seconds is not None
    assert 0 <= holder.age_seconds < 600
    early.commit()
    poll.source = new_source(db_config=there, **PATIENT)
    assert poll() == [first, second]


class WesternMariaDb(MariaDb):
    """MariaDB on a machine whose clock is set to a zone west of all others."""

    name = "western-mariadb"

    def environment(self) -> dict[str, str]:
        return {"TZ": "WEST+11"}


def test_the_zone_of_the_servers_machine_changes_nothing(provider: EngineProvider) -> None:
    with (
        started(WesternMariaDb) as server,
        temporary_database(server.settings()["AZFDB_TEST_MARIADB_URL"], "DROP DATABASE {name}") as url,
    ):
        create_table(url)
        engine = create_engine(url)
        with engine.connect() as early, engine.connect() as late:
            first, second = insert(early), insert(late)
            late.commit()
            source = SqlAlchemySource(
                url=url, table="changes", cursor_column="stamp", pk_columns=["id"], engine_provider=provider
            )
            poll = Poll(source)
            assert poll() == []
            assert poll.horizon is not None
            (holder,) = poll.horizon.holders
            assert holder.age_seconds is not None
            assert 0 <= holder.age_seconds < 600
            with monitor(engine):
                assert poll() == []  # the other list shows the same one
            early.commit()
            assert poll() == [first, second]
        engine.dispose()
        provider.dispose_all()


# Where the server does not show who is running


@pytest.fixture
def reader(engine: Engine, url: str) -> Iterator[str]:
    """The URL of somebody who may read the tables and nothing else."""
    with visitor(url, f"SELECT ON {make_url(url).database}.*") as reader:
        yield reader


def test_without_the_privilege_the_distance_is_kept(
    session: Session, new_source: NewSource, reader: str, caplog: pytest.LogCaptureFixture
) -> None:
    early, late = session(), session()
    first = insert(early)
    second = insert(late, "now(6) - INTERVAL 10 SECOND")
    insert(late)
    late.commit()
    poll = Poll(new_source(db_config=DbConfig(connection_url=reader), settle_seconds=5))
    assert poll() == [second]
    assert poll.source.late_commit_grade() == "settled"
    assert caplog.text.count("PROCESS") == 1
    early.execute(text("UPDATE changes SET stamp = now(6) - INTERVAL 6 SECOND WHERE id = :id"), {"id": first})
    early.commit()
    assert poll() == [first]


def test_an_empty_table_is_graded_truly(new_source: NewSource, reader: str) -> None:
    assert new_source(db_config=DbConfig(connection_url=reader)).late_commit_grade() == "none"
    assert new_source().late_commit_grade() == "exact"


def until_graded(source: SqlAlchemySource, grade: str) -> None:
    for _ in range(3000):
        if source.late_commit_grade() == grade:
            return
        time.sleep(0.01)
    raise AssertionError(f"The source is still graded {source.late_commit_grade()}, not {grade}")


def test_the_privilege_may_come_and_go(
    engine: Engine, session: Session, new_source: NewSource, reader: str, provider: EngineProvider
) -> None:
    config = DbConfig(connection_url=reader)
    poll = Poll(new_source(db_config=config))
    early, late = session(), session()

    def change_mind(statement: str) -> int:
        with engine.begin() as connection:
            connection.execute(text(f"{statement} {make_url(reader).username}"))
        provider.get_engine(config).dispose()  # privileges belong to connections
        insert(early)
        row = insert(late)
        late.commit()
        return row

    row = insert(late)
    late.commit()
    assert poll() == [row]
    row = change_mind("GRANT PROCESS ON *.* TO")
    until_graded(poll.source, "exact")
    assert poll() == []  # it waits
    early.rollback()
    poll.source = new_source(db_config=config, **PATIENT)
    assert poll() == [row]
    row = change_mind("REVOKE PROCESS ON *.* FROM")
    assert poll() == [row]  # it cannot
    assert poll.source.late_commit_grade() == "none"


def test_the_cap_counts_from_the_first_process_on(session: Session, new_source: NewSource) -> None:
    idle, writer = session(), session()
    idle.execute(text("SELECT * FROM changes"))
    row = insert(writer)
    writer.commit()
    poll = Processes(new_source, horizon_cap_seconds=2)  # longer than any of these processes waits
    assert poll() == []
    waits = poll.checkpoint["horizon"]["waits"]
    assert until(poll, [row]) == [row]
    assert poll.checkpoint["horizon"]["passed"].keys() == waits.keys()


def test_the_cap_counts_by_the_servers_clock_also_for_a_process_that_found_nothing_at_first(
    session: Session, new_source: NewSource
) -> None:
    """Otherwise the next process takes whoever is waited for as one of long ago, and passes him by at once."""
    idle, writer = session(), session()
    poll = Poll(new_source(horizon_cap_seconds=300))
    assert poll() == []
    idle.execute(text("SELECT * FROM changes"))
    row = insert(writer)
    writer.commit()
    assert poll() == []
    [since] = poll.checkpoint["horizon"]["waits"].values()
    assert abs(since - time.time()) < 60
    poll.source = new_source(horizon_cap_seconds=300)
    assert poll() == []
    idle.rollback()
    assert until(poll, [row]) == [row]


def test_overlapping_transactions_do_not_starve_a_process_for_each_tick(
    session: Session, new_source: NewSource
) -> None:
    """Each process sees somebody new; those of the first bound are gone nevertheless."""
    early, late = session(), session()
    insert(early)
    first = insert(late)
    late.commit()
    poll = Processes(new_source)
    assert poll() == []
    other = session()
    insert(other)
    early.commit()
    assert first in until(poll, [first])
