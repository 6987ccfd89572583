"""The mistakes that everybody makes once: each is told in one line that says what to do, with a code for scripts."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from azure_functions_db.cli.options import Exit
from azure_functions_db.core.errors import Code
from tests.acceptance.host import AppRefusedError, FunctionApp
from tests.integration.cli import warm
from tests.integration.cli.shops import AZFDB
from tests.support import visitors

HEAD = """
from typing import Any
import azure.functions as func
from azure_functions_db import AsyncDbOut, BlobCheckpointStore, DbBindings, DbOut, FileStateStore, SqlAlchemySource

app = func.FunctionApp()
db = DbBindings()
store = FileStateStore("state")

def source(**changes: Any) -> SqlAlchemySource:
    usual = {"url": "%SHOP_DB%", "table": "orders", "cursor_column": "version", "pk_columns": ["id"]}
    return SqlAlchemySource(**{**usual, **changes})
"""
TIMER = '@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")\n'
TRIGGER = '@db.trigger(arg_name="events", source=source(), checkpoint_store=store)\n'
HANDLER = "def on_orders(timer: func.TimerRequest, events: Any) -> None:\n    pass\n"
OUTPUT = "@db.output('out', url='%SHOP_DB%', table='orders')\n"
WRITER = "def on_orders(timer: func.TimerRequest, out: Any) -> None:\n    out.set({'id': 9, 'version': 9})\n"
READER = "def on_orders(timer: func.TimerRequest, row: Any) -> None:\n    pass\n"
DEAD = "AccountName=devstoreaccount1;AccountKey=aHVzaA==;BlobEndpoint=http://127.0.0.1:9/devstoreaccount1"


@dataclass(frozen=True)
class Mistake:
    """An app with a mistake in it, the command that meets it, and what is said about it."""

    name: str
    app: str
    command: str
    says: str
    code: Code
    exits: Exit = Exit.MISCONFIGURED
    database: str = "sqlite_database"
    setting: str | None = None
    """The database's URL as the app has it, made of the real one."""


def polling(**changes: object) -> str:
    """Return an app whose source is not the usual one."""
    return TIMER + TRIGGER.replace("source()", f"source(**{changes!r})") + HANDLER


def options(words: str) -> str:
    """Return an app whose trigger has one more option."""
    return TIMER + TRIGGER.replace("checkpoint_store=store", f"checkpoint_store=store, {words}") + HANDLER


def reading(words: str) -> str:
    """Return an app that reads a row beforehand."""
    return TIMER + f"@db.input('row', url='%SHOP_DB%', {words})\n" + READER


def storing(words: str) -> str:
    """Return an app that keeps its state in blobs."""
    return f"store = BlobCheckpointStore({words})\n" + TIMER + TRIGGER + HANDLER


AT_IMPORT = [
    Mistake(
        "a decorator without parentheses",
        TIMER + "@db.trigger\n" + HANDLER,
        "doctor",
        r"@db\.trigger above 'on_orders' needs parentheses",
        Code.DECORATORS_WRONG,
    ),
    Mistake(
        "a binding without parentheses",
        TIMER + "@db.output\n" + WRITER,
        "doctor",
        r"@db\.output above 'on_orders' needs parentheses",
        Code.DECORATORS_WRONG,
    ),
    Mistake(
        "a database decorator above the app's",
        TRIGGER + TIMER + HANDLER,
        "doctor",
        r"Decorators of the app .* come first",
        Code.DECORATORS_WRONG,
    ),
    Mistake(
        "a parameter that is not there",
        TIMER + TRIGGER.replace('"events"', '"changes"') + HANDLER,
        "doctor",
        r"has no parameter 'changes' for arg_name=; it has: 'timer', 'events'",
        Code.DECORATORS_WRONG,
    ),
    Mistake(
        "a plain face for an async function",
        TIMER + OUTPUT + "async def on_orders(timer: func.TimerRequest, out: DbOut) -> None:\n    out.set({})\n",
        "doctor",
        r"an async function receives an AsyncDbOut: annotate it so, and await",
        Code.FACE_WRONG,
    ),
    Mistake(
        "an async face for a plain function",
        TIMER + OUTPUT + "def on_orders(timer: func.TimerRequest, out: AsyncDbOut) -> None:\n    pass\n",
        "doctor",
        r"receives a DbOut: annotate it so, or make the function async",
        Code.FACE_WRONG,
    ),
    Mistake(
        "a handler that yields",
        TIMER + TRIGGER + "def on_orders(timer: func.TimerRequest, events: Any) -> Any:\n    yield 1\n",
        "doctor",
        r"'on_orders' must return its result, not yield it",
        Code.DECORATORS_WRONG,
    ),
    Mistake(
        "a handler with *args",
        TIMER + TRIGGER + "def on_orders(timer: func.TimerRequest, events: Any, *rest: Any) -> None:\n    pass\n",
        "doctor",
        r"'\*rest: Any': the Functions worker passes each parameter by its own name, so write them out",
        Code.DECORATORS_WRONG,
    ),
    Mistake("a batch of nothing", options("batch_size=0"), "doctor", r"batch_size must be .* at least 1", Code.MISUSED),
    Mistake(
        "a mistyped option",
        options("batchsize=10"),
        "doctor",
        r"no option 'batchsize'.*mean 'batch_size'",
        Code.MISUSED,
    ),
    Mistake(
        "a table's name for a source",
        TIMER + TRIGGER.replace("source()", "'orders'") + HANDLER,
        "doctor",
        r"source= takes a source, such as SqlAlchemySource",
        Code.MISUSED,
    ),
    Mistake(
        "a folder's name for a store",
        TIMER + TRIGGER.replace("=store", "='state'") + HANDLER,
        "doctor",
        r"is no state store.*give one, such as .*FileStateStore",
        Code.MISUSED,
    ),
    Mistake(
        "an upsert without its key",
        TIMER + OUTPUT.replace(")", ", action='upsert')") + WRITER,
        "doctor",
        r"needs conflict_columns=, the list of columns that identify a row",
        Code.MISUSED,
    ),
    Mistake(
        "an input by key and by query",
        reading("table='orders', pk={'id': 1}, query='SELECT 1'"),
        "doctor",
        r"exactly one of pk= \(one row\) and query=",
        Code.MISUSED,
    ),
    Mistake(
        "an input from a parameter of another function",
        reading("table='orders', pk=lambda req: {'id': 1}"),
        "doctor",
        r"wants 'req', but may only ask for .* 'timer'",
        Code.MISUSED,
    ),
    Mistake("a file's name for a URL", polling(url="shop.db"), "doctor", r"must be a URL such as", Code.URL_UNREADABLE),
    Mistake("a key that is no list", polling(pk_columns="id"), "doctor", r"pk_columns= is a list", Code.SOURCE_UNFIT),
    Mistake("an error of grammar", "def f(:\n", "doctor", r"SyntaxError: .*line", Code.APP_NOT_LOADED),
    Mistake("a package that is not installed", "import pandaz\n", "doctor", r"named 'pandaz'", Code.APP_NOT_LOADED),
    Mistake("no function app", "del app\n", "doctor", r"such as app = func.FunctionApp\(\)", Code.APP_NOT_LOADED),
]
OF_THE_APP = [
    Mistake(
        "no trigger of the app",
        TRIGGER + HANDLER,
        "status",
        r"put one above its @db\.trigger, such as @app\.timer_trigger",
        Code.DECORATORS_WRONG,
    ),
    Mistake(
        "a blueprint that nobody registers",
        "bp = func.Blueprint()\n" + TIMER.replace("@app", "@bp") + TRIGGER + HANDLER,
        "status",
        r"No trigger of the app fires the function 'on_orders'.* register its blueprint",
        Code.DECORATORS_WRONG,
    ),
    Mistake(
        "a function name without a trigger",
        "@app.function_name('orders')\n" + TRIGGER + HANDLER,
        "status",
        r"Function orders does not have a trigger",
        Code.DECORATORS_WRONG,
    ),
    Mistake(
        "two functions of one name",
        (TIMER + TRIGGER + HANDLER) * 2,
        "status",
        r"on_orders does not have a unique function name. Please change",
        Code.DECORATORS_WRONG,
    ),
    Mistake(
        "two pollers of one name",
        options("name='orders'") + options("name='orders'").replace("on_orders", "again"),
        "status",
        r"'on_orders' and 'again' poll under one name, 'orders'.*give each trigger a name=",
        Code.NAME_TAKEN,
    ),
    Mistake(
        "a timer under another name",
        TIMER.replace('"timer"', '"clock"') + TRIGGER + HANDLER,
        "run --once on_orders",
        r"takes 'timer', but its trigger passes 'clock'",
        Code.DECORATORS_WRONG,
    ),
    Mistake(
        "a function without its timer",
        TIMER + TRIGGER + "def on_orders(events: Any) -> None:\n    pass\n",
        "run --once on_orders",
        r"'on_orders' has no parameter 'timer', which its trigger passes: add it",
        Code.DECORATORS_WRONG,
    ),
    Mistake(
        "a schedule with a field too few",
        TIMER.replace("*/10 * * * * *", "*/10 * * *") + TRIGGER + HANDLER,
        "run --once on_orders",
        r"\(second minute hour day month weekday\).*Wrong number of fields",
        Code.SCHEDULE_UNREADABLE,
    ),
    Mistake(
        "a schedule in words",
        TIMER.replace("*/10 * * * * *", "every minute") + TRIGGER + HANDLER,
        "run --once on_orders",
        r"'every minute' is neither an NCRONTAB expression \(second minute hour day month weekday\) nor a time span",
        Code.SCHEDULE_UNREADABLE,
    ),
    Mistake(
        "a mistyped poller",
        TIMER + TRIGGER + HANDLER,
        "tail on_order",
        r"there are: on_orders; did you mean 'on_orders'\?",
        Code.POLLER_UNKNOWN,
    ),
    Mistake(
        "a mistyped function",
        TIMER + TRIGGER + HANDLER,
        "run --once on_order",
        r"it has: on_orders; did you mean 'on_orders'\?",
        Code.MISUSED,
    ),
]
OF_THE_DATABASE = [
    Mistake(
        "a setting that is not set",
        polling(url="%NOWHERE_DB%"),
        "tail on_orders",
        r"The setting NOWHERE_DB is not set: .*local\.settings\.json",
        Code.SETTING_MISSING,
    ),
    Mistake(
        "half a setting", polling(url="%SHOP_DB"), "tail on_orders", r"a setting is written %NAME%", Code.URL_UNREADABLE
    ),
    Mistake(
        "postgres://",
        polling(url="postgres://me@127.0.0.1:9/x"),
        "tail on_orders",
        r'write postgresql\+psycopg:// and pip install "azure-functions-db\[postgres\]"',
        Code.PACKAGE_MISSING,
    ),
    Mistake(
        "mysql:// without its driver",
        polling(url="mysql://me@127.0.0.1:9/x"),
        "tail on_orders",
        r'write mysql\+pymysql:// and pip install "azure-functions-db\[mysql\]"',
        Code.PACKAGE_MISSING,
    ),
    Mistake(
        "an async driver",
        polling(url="postgresql+psycopg_async://me@127.0.0.1:9/x"),
        "tail on_orders",
        r"async functions work here with plain drivers, too, such as postgresql\+psycopg://",
        Code.URL_UNREADABLE,
    ),
    Mistake(
        "an async driver that is not installed",
        polling(url="postgresql+asyncpg://me@127.0.0.1:9/x"),
        "tail on_orders",
        r"write postgresql\+psycopg://",
        Code.PACKAGE_MISSING,
    ),
    Mistake(
        "SQLite with two slashes",
        polling(url="sqlite://shop.db"),
        "tail on_orders",
        r"three slashes before a relative path and four before an absolute",
        Code.URL_UNREADABLE,
    ),
    Mistake(
        "SQLite in another folder",
        polling(url="sqlite:///shop.db"),
        "tail on_orders",
        r"/shop\.db is empty, and a relative path begins in the working directory",
        Code.TABLE_MISSING,
    ),
    Mistake(
        "SQLite in a folder that is not there",
        polling(url="sqlite:///data/shop.db"),
        "tail on_orders",
        r"is its folder there\? A relative path begins in the working directory",
        Code.DATABASE_UNREACHABLE,
        Exit.UNREACHABLE,
    ),
    Mistake(
        "a server that does not run",
        polling(url="postgresql+psycopg://me@127.0.0.1:9/x"),
        "tail on_orders",
        r"the database cannot be reached: .*127\.0\.0\.1.*9",
        Code.DATABASE_UNREACHABLE,
        Exit.UNREACHABLE,
    ),
    Mistake(
        "a mistyped column",
        polling(cursor_column="verson"),
        "tail on_orders",
        r"no column 'verson'; there are .*mean 'version'",
        Code.COLUMN_MISSING,
    ),
    Mistake(
        "a key column that is not there",
        polling(pk_columns=["order_id"]),
        "tail on_orders",
        r"no column 'order_id'; there are 'id', 'version', 'note'",
        Code.COLUMN_MISSING,
    ),
]
DATABASES = ["sqlite_database", "postgres_database", "mariadb_database"]
ON_EACH = [
    Mistake(
        "a mistyped table",
        polling(table="order"),
        "tail on_orders",
        r"no table 'order' .*mean 'orders'",
        Code.TABLE_MISSING,
    )
]
ON_SERVERS = [
    Mistake(
        "a wrong password",
        polling(),
        "tail on_orders",
        r"refuses the login: check user, password and database name",
        Code.LOGIN_REFUSED,
        Exit.UNREACHABLE,
        setting="wrong password",
    ),
    Mistake(
        "a mistyped database",
        polling(),
        "tail on_orders",
        r"refuses the login: check user, password and database name",
        Code.LOGIN_REFUSED,
        Exit.UNREACHABLE,
        setting="wrong database",
    ),
    Mistake(
        "a login that may not read",
        polling(),
        "tail on_orders",
        r"this login lacks a right, GRANT it: .*denied",
        Code.RIGHT_MISSING,
        Exit.UNREACHABLE,
        setting="visitor",
    ),
    Mistake(
        "a mistyped schema",
        polling(schema="informaton_schema"),
        "tail on_orders",
        r"no schema 'informaton_schema'; did you mean 'information_schema'\?",
        Code.TABLE_MISSING,
    ),
]
OF_THE_STORE = [
    Mistake(
        "a dead Azurite",
        storing("connection='DEAD', container='state'"),
        "inspect on_orders",
        r"does not answer at 127\.0\.0\.1:9, is Azurite running\?",
        Code.STATE_UNREACHABLE,
        Exit.UNREACHABLE,
    ),
    Mistake(
        "a dead Azurite before a run",
        storing("connection='DEAD', container='state'"),
        "run --once on_orders",
        r"does not answer at 127\.0\.0\.1:9, is Azurite running\?",
        Code.STATE_UNREACHABLE,
        Exit.UNREACHABLE,
    ),
    Mistake(
        "a store whose package is not installed",
        "import sys\nfrom azure_functions_db import TableStateStore\n"
        "sys.modules['azure.data.tables'] = None\nstore = TableStateStore(connection='DEAD')\n" + polling(),
        "inspect on_orders",
        r'TableStateStore needs the package azure-data-tables: pip install "azure-functions-db\[tables\]"',
        Code.PACKAGE_MISSING,
    ),
    Mistake(
        "a state in a folder that is not there",
        "from azure_functions_db import SqlStateStore\nstore = SqlStateStore(url='sqlite:///data/state.db')\n"
        + polling(),
        "inspect on_orders",
        r"the database file cannot be opened: is its folder there\? A relative path begins in the working directory",
        Code.STATE_UNREACHABLE,
        Exit.UNREACHABLE,
    ),
    Mistake(
        "a storage setting that is not set",
        storing("connection='NO_STORAGE', container='state'"),
        "inspect on_orders",
        r"no app setting NO_STORAGE \(a connection string\), NO_STORAGE__blobServiceUri",
        Code.SETTING_MISSING,
    ),
    Mistake(
        "a connection string in place of its setting",
        storing("connection='UseDevelopmentStorage=true', container='state'"),
        "inspect on_orders",
        r"connection= is the name of an app setting, not a connection string",
        Code.MISUSED,
    ),
    Mistake(
        "a container's name that cannot be",
        storing("connection='STORAGE', container='Not_Valid'"),
        "inspect on_orders",
        r"3 to 63 small letters, digits and hyphens",
        Code.STATE_UNREACHABLE,
        Exit.UNREACHABLE,
    ),
]
REFUSED = [
    *AT_IMPORT,
    *OF_THE_APP,
    *OF_THE_DATABASE,
    *(Mistake(**{**vars(each), "database": name}) for each in ON_EACH for name in DATABASES),
    *(Mistake(**{**vars(each), "database": name}) for each in ON_SERVERS for name in DATABASES[1:]),
    *OF_THE_STORE,
]
WHILE_RUNNING = [
    Mistake(
        "a forgotten await",
        TIMER
        + TRIGGER
        + OUTPUT
        + "async def on_orders(timer: func.TimerRequest, events: Any, out: Any) -> None:\n    out.set({'id': 9})\n",
        "run --once on_orders",
        r"AsyncDbOut\.set was called but never awaited.*: await it",
        Code.NEVER_AWAITED,
    ),
    Mistake(
        "a mistyped column of an output",
        TIMER + OUTPUT + WRITER.replace("version", "verson"),
        "run --once on_orders",
        r"'orders' has no column 'verson'; did you mean 'version'\?",
        Code.COLUMN_MISSING,
    ),
    Mistake(
        "a mistyped table of an output",
        TIMER + OUTPUT.replace("orders", "order") + WRITER,
        "run --once on_orders",
        r"There is no table 'order' in the database; did you mean 'orders'\?",
        Code.TABLE_MISSING,
    ),
    Mistake(
        "an input by another key",
        reading("table='orders', pk={'order_id': 1}"),
        "run --once on_orders",
        r"The primary key of 'orders' is 'id': pk= misses 'id'",
        Code.KEY_UNFIT,
    ),
    Mistake(
        "an input from a view by its key",
        reading("table='orders_view', pk={'id': 1}"),
        "run --once on_orders",
        r"no primary key: give it one, or read it by a query",
        Code.KEY_UNFIT,
    ),
    Mistake(
        "an output into a file that may only be read",
        TIMER + OUTPUT + WRITER,
        "run --once on_orders",
        r"Writing 'orders' failed: the file is read-only here, let this user write it and its folder",
        Code.RIGHT_MISSING,
        setting="read-only",
    ),
    Mistake(
        "an output of a login that may only read",
        TIMER + OUTPUT + WRITER,
        "run --once on_orders",
        r"Writing 'orders' failed: this login lacks a right, GRANT it",
        Code.RIGHT_MISSING,
        database="postgres_database",
        setting="reader",
    ),
]
QUESTIONED = [
    ("a text for a cursor", polling(cursor_column="note"), "poll by a number or a time that grows with each change"),
    ("a key of a table without one", polling(table="visits"), "a unique index on (id)"),
    ("a key that several rows share", polling(pk_columns=["note"]), "pk_columns=['id'], or a unique index on (note)"),
]


def filled(database: str) -> None:
    """Make the table that the apps poll, and a view of it."""
    engine = create_engine(database)
    with engine.begin() as connection:
        for statement in (
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, version INTEGER, note VARCHAR(50))",
            "CREATE INDEX orders_by_version ON orders (version, id)",
            "CREATE VIEW orders_view AS SELECT * FROM orders",
            "INSERT INTO orders VALUES (1, 1, 'lamp')",
            "CREATE TABLE visits (id INTEGER, version INTEGER)",
        ):
            connection.execute(text(statement))
    engine.dispose()


@contextmanager
def url_for(mistake: Mistake, database: str) -> Iterator[str]:
    """The URL that the app has: the right one, or one with a mistake in it."""
    url = make_url(database)
    match mistake.setting:
        case "visitor":
            with visitors.visitor(database, "SELECT ON orders_view") as visitor:
                yield visitor
        case "reader":
            with visitors.visitor(database, "SELECT ON orders") as reader:
                yield reader
        case "read-only":
            yield f"sqlite:///file:{url.database}?mode=ro&uri=true"
        case "wrong password":
            yield url.set(password="wrong").render_as_string(hide_password=False)
        case "wrong database":
            yield url.set(database="shpo").render_as_string(hide_password=False)
        case _:
            yield database


Meet = Callable[[Mistake], tuple[int, str, str]]


@pytest.fixture
def meet(request: pytest.FixtureRequest, tmp_path: Path) -> Meet:
    """Make the app of a mistake, and meet it on the command line."""

    def met(mistake: Mistake) -> tuple[int, str, str]:
        database = str(request.getfixturevalue(mistake.database))
        filled(database)
        (tmp_path / "function_app.py").write_text(HEAD + mistake.app)
        with url_for(mistake, database) as url:
            settings = {"SHOP_DB": url, "DEAD": DEAD}
            if "'STORAGE'" in mistake.app:
                settings["STORAGE"] = str(request.getfixturevalue("azurite"))
            return warm.run(tuple(mistake.command.split()), tmp_path, {**os.environ, **settings}, "")

    return met


def named(mistake: Mistake) -> str:
    return f"{mistake.name}-{mistake.database.partition('_')[0]}"


@pytest.mark.parametrize("mistake", REFUSED, ids=named)
def test_a_mistake_is_refused_in_one_line_that_says_what_to_do(meet: Meet, mistake: Mistake) -> None:
    code, out, err = meet(mistake)
    [line] = err.splitlines()
    assert (code, out) == (mistake.exits, "")
    assert re.search(rf"^azfdb: .*{mistake.says}.*\[{mistake.code}\]$", line)


@pytest.mark.parametrize("app", [options("batch_size=0"), "print(nowhere)\n"], ids=["our error", "any other"])
def test_the_line_of_the_app_is_named(meet: Meet, app: str) -> None:
    line = (HEAD + app).splitlines().index(next(each for each in app.splitlines() if each.startswith(("@db", "print"))))
    _, _, err = meet(Mistake("", app, "doctor", "", Code.MISUSED))
    assert err.startswith(f"azfdb: function_app.py:{line + 1}: ")


@pytest.mark.parametrize("mistake", WHILE_RUNNING, ids=named)
def test_a_mistake_that_only_a_run_meets_fails_it_and_says_what_to_do(meet: Meet, mistake: Mistake) -> None:
    code, out, err = meet(mistake)
    assert (code, out) == (Exit.FAILED, "")
    assert re.search(rf"error +on_orders failed: .*{mistake.says}.*\[{mistake.code}\]$", err.splitlines()[-1])
    frames = re.findall(r'File "([^"]+)"', err)
    assert all(path.endswith("/function_app.py") for path in frames), err


@pytest.mark.parametrize(("app", "remedy"), [each[1:] for each in QUESTIONED], ids=[each[0] for each in QUESTIONED])
def test_what_may_be_a_mistake_is_questioned_by_the_doctor(meet: Meet, app: str, remedy: str) -> None:
    code, out, err = meet(Mistake("", app, "doctor", "", Code.MISUSED))
    assert (code, err) == (Exit.OK, "")
    assert f"→ {remedy}" in out


@pytest.mark.parametrize("changes", [{"pk_columns": ["id", "note"]}, {"table": "orders_view"}], ids=["key", "view"])
def test_a_key_that_no_two_rows_share_is_not_questioned(meet: Meet, changes: dict[str, object]) -> None:
    _, out, _ = meet(Mistake("", polling(**changes), "doctor", "", Code.MISUSED))
    assert "several rows" not in out


def test_a_poll_function_that_is_called_by_hand_is_a_remark(meet: Meet) -> None:
    by_hand = TRIGGER + HANDLER.replace("on_orders", "by_hand")
    code, out, err = meet(Mistake("", by_hand + TIMER + TRIGGER + HANDLER, "status", "", Code.MISUSED))
    assert (code, "on_orders" in out) == (Exit.OK, True)
    assert "No trigger of the app fires the function 'by_hand'" in err


def test_a_driver_that_is_not_installed_is_named_with_its_extra(tmp_path: Path) -> None:
    missing = "raise ModuleNotFoundError(\"No module named 'pymysql'\", name='pymysql')\n"
    (tmp_path / "pymysql.py").write_text(missing)
    (tmp_path / "function_app.py").write_text(HEAD + polling(url="mysql+pymysql://me@127.0.0.1:9/x"))
    done = subprocess.run(
        [AZFDB, "tail", "on_orders"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (Exit.MISCONFIGURED, "")
    assert "named 'pymysql'): pip install \"azure-functions-db[mysql]\" [AZFDB-103]\n" in done.stderr


def test_a_command_that_is_interrupted_while_it_loads_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    settings = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([AZFDB, "status"], env=settings, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (Exit.INTERRUPTED, "", "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_does_not_fit_is_a_line(unbuffered: str) -> None:
    settings = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [AZFDB, "schema", "error"],
            env=settings,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (Exit.FAILED, "azfdb: No space left on device\n")


@pytest.mark.parametrize("mistake", [AT_IMPORT[0], AT_IMPORT[2], AT_IMPORT[4]], ids=named)
def test_the_functions_worker_is_told_the_same(tmp_path: Path, mistake: Mistake) -> None:
    (tmp_path / "function_app.py").write_text(HEAD + mistake.app)
    with pytest.raises(AppRefusedError) as refused, FunctionApp(tmp_path):
        pass
    assert re.search(
        rf"azure_functions_db\.ConfigurationError: .*{mistake.says}.*\n{mistake.code}\n", str(refused.value)
    )


def test_there_are_at_least_32_of_them() -> None:
    names = {mistake.name for mistake in (*REFUSED, *WHILE_RUNNING)} | {name for name, *_ in QUESTIONED}
    assert len(names) >= 32
