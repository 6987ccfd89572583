"""A stand-in for SQL Server: SQLite behind TDS, with triggers that track changes as the documentation says.

It is no proof of how a server behaves: it is there to send every statement through real drivers, and to be unkind in
ways that the documentation allows. What functions say about versions is of now, while the rows of a snapshot are of
the first statement that has touched any; cleanups, errors and lost lines come between any two statements (`before`).
"""

from __future__ import annotations

import datetime as dt
import functools
import re
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlglot
from sqlalchemy import create_engine
from sqlglot import exp

from tests.support.tds import Column, Result, ServerError, TdsServer, serving

SCHEMAS = ("dbo", "sys", "INFORMATION_SCHEMA")
CATALOGUE = """
    CREATE TABLE sys.schemas (schema_id, name);
    CREATE TABLE sys.objects (object_id INTEGER PRIMARY KEY AUTOINCREMENT, schema_id, name, type, modify_date);
    CREATE TABLE sys.columns (object_id, column_id, name, user_type_id, is_nullable, max_length, precision, scale,
        default_object_id, collation_name);
    CREATE TABLE sys.types (user_type_id INTEGER PRIMARY KEY, system_type_id, name);
    CREATE TABLE sys.default_constraints (object_id, parent_column_id, definition);
    CREATE TABLE sys.computed_columns (object_id, column_id, definition, is_persisted);
    CREATE TABLE sys.identity_columns (object_id, column_id, is_identity, seed_value, increment_value);
    CREATE TABLE sys.extended_properties (class, name, major_id, minor_id, value);
    CREATE TABLE sys.key_constraints (name, parent_object_id, unique_index_id, type);
    CREATE TABLE sys.indexes (object_id, index_id, name, type, is_unique, is_primary_key, filter_definition);
    CREATE TABLE sys.index_columns (object_id, index_id, column_id, key_ordinal, is_included_column);
    CREATE TABLE sys.databases (database_id, snapshot_isolation_state);
    CREATE TABLE sys.change_tracking_databases (
        database_id, retention_period, retention_period_units, is_auto_cleanup_on);
    CREATE TABLE sys.change_tracking_tables (object_id, is_track_columns_updated_on, oldest);
    CREATE TABLE sys.system_views (name);
    CREATE TABLE sys.dm_exec_sessions (session_id, transaction_isolation_level);
    CREATE TABLE INFORMATION_SCHEMA.TABLES (TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE);
    INSERT INTO sys.schemas VALUES (1, 'dbo');
    INSERT INTO sys.databases VALUES (1, 0);
    CREATE TABLE dbo._version (current INTEGER, stamp INTEGER);
    INSERT INTO dbo._version VALUES (0, 2000);
"""
# What a type is called in the catalogue, and over the wire.
TYPES = {
    "INT": ("int", "int"),
    "BIGINT": ("bigint", "bigint"),
    "SMALLINT": ("smallint", "int"),
    "BIT": ("bit", "bit"),
    "BOOLEAN": ("bit", "bit"),
    "DECIMAL": ("decimal", "decimal"),
    "FLOAT": ("float", "float"),
    "DOUBLE": ("float", "float"),
    "NVARCHAR": ("nvarchar", "nvarchar"),
    "VARCHAR": ("varchar", "nvarchar"),
    "NCHAR": ("nchar", "nvarchar"),
    "CHAR": ("char", "nvarchar"),
    "TEXT": ("nvarchar", "nvarchar"),
    "UUID": ("uniqueidentifier", "uniqueidentifier"),
    "DATE": ("date", "date"),
    "TIME": ("time", "time"),
    "DATETIME": ("datetime", "datetime"),
    "DATETIME2": ("datetime2", "datetime2"),
    "TIMESTAMP": ("datetime2", "datetime2"),
    "TIMESTAMPTZ": ("datetimeoffset", "datetimeoffset"),
    "VARBINARY": ("varbinary", "varbinary"),
    "BINARY": ("binary", "varbinary"),
    "ROWVERSION": ("timestamp", "binary"),
}
CHANGES = re.compile(
    r"CHANGETABLE\s*\(CHANGES\s+(?:\[\w+\]\.)?\[(?P<table>[^\]]+)\],\s*(?P<since>[^)]+)\)", re.IGNORECASE
)
TRACK_TABLE = re.compile(
    r"ALTER TABLE \[dbo\]\.\[(?P<table>[^\]]+)\] (?P<action>ENABLE|DISABLE) CHANGE_TRACKING(?P<with>.*)"
)
MERGE_HINT = re.compile(r" WITH \(HOLDLOCK\) (\w+) USING")
SET_LEVEL = re.compile(r"SET TRANSACTION ISOLATION LEVEL (?P<level>[A-Z ]+)", re.IGNORECASE)
LEVELS = {"READ UNCOMMITTED": 1, "READ COMMITTED": 2, "REPEATABLE READ": 3, "SERIALIZABLE": 4, "SNAPSHOT": 5}
LONGEST_NAME = 128
IDENTITY = (exp.GeneratedAsIdentityColumnConstraint, exp.AutoIncrementColumnConstraint)
DRIVERS = {"pyodbc": "driver=FreeTDS&TDS_Version=7.4", "pymssql": "tds_version=7.4", "mssqlpython": "Encrypt=no"}
WRITES = (exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Create, exp.Drop)


class Declared(NamedTuple):
    """A column as a CREATE TABLE has it."""

    name: str
    kind: str
    length: int
    scale: int
    is_nullable: bool

    @property
    def wire(self) -> Column:
        return Column(self.name, TYPES[self.kind][1], self.scale)


class Model:
    """The database that all sessions share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self.columns: dict[str, list[Declared]] = {}
        self.keys: dict[str, list[str]] = {}
        self.heard: list[str] = []
        self.before: Callable[[str], None] = lambda _: None
        self.server: TdsServer
        self.others: dict[str, Model] = {}
        with closing(self.connect()) as connection:
            for name in SCHEMAS:
                connection.execute(f"PRAGMA {name}.journal_mode = WAL").fetchone()
            connection.executescript(CATALOGUE)
            connection.executemany("INSERT INTO sys.types VALUES (?, ?, ?)", types())
        self.live = self.connect()

    def database(self, name: str) -> Model:
        """Return the database of a name: this one, or another that was made beside it."""
        return self.others.get(name, self)

    def close(self) -> None:
        for model in (*self.others.values(), self):
            model.live.close()

    def connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, timeout=10)
        for name in SCHEMAS:
            connection.execute(f"ATTACH '{self.folder / name}.db' AS {name}")
            connection.execute(f"PRAGMA {name}.synchronous = OFF")
        for name, count, function in self.functions():
            connection.create_function(name, count, function)
        return connection

    def functions(self) -> Iterator[tuple[str, int, Callable[..., Any]]]:
        yield "OBJECT_ID", 1, lambda name: self.ask("SELECT object_id FROM sys.objects WHERE name = ?", bare(name))
        yield "CHANGE_TRACKING_CURRENT_VERSION", 0, self.current
        yield (
            "CHANGE_TRACKING_MIN_VALID_VERSION",
            1,
            lambda table: self.ask("SELECT oldest FROM sys.change_tracking_tables WHERE object_id = ?", table),
        )
        yield "CHANGE_TRACKING_IS_COLUMN_IN_MASK", 2, lambda column, mask: int(f"|{column}|" in mask)
        yield (
            "COLUMNPROPERTY",
            3,
            lambda table, name, _: self.ask(
                "SELECT column_id FROM sys.columns WHERE object_id = ? AND name = ?", table, name
            ),
        )
        yield "MIN_ACTIVE_ROWVERSION", 0, lambda: self.ask("SELECT stamp FROM dbo._version") + 1
        yield "BINARY8", 1, lambda number: int(number).to_bytes(8, "big")
        yield "DB_ID", 0, lambda: 1
        yield "SCHEMA_NAME", 0, lambda: "dbo"
        yield "NOW", 0, lambda: str(dt.datetime.now(dt.UTC).replace(tzinfo=None))
        yield "NEW_ID", 0, lambda: str(uuid.uuid4())

    def ask(self, query: str, *parameters: Any) -> Any:
        """Return what is true now, whatever a session sees."""
        with self.lock:
            row = self.live.execute(query, parameters).fetchone()
        return None if row is None else row[0]

    def current(self) -> int:
        return int(self.ask("SELECT current FROM dbo._version"))

    def run(self, *statements: str) -> None:
        """Run T-SQL in one transaction, as a user of the database does."""
        session = ModelSession(self, is_user=True)
        session.begin()
        for statement in statements:
            session.execute(statement, {})
        session.commit()
        session.close()

    def track(self, table: str, *, columns: bool = True) -> None:
        """Turn everything on that change tracking of a table needs."""
        self.run(*tracking(table, columns=columns))

    def url(self, driver: str | None = None) -> str:
        """Return the URL by which SQLAlchemy reaches this stand-in."""
        driver = driver or "pyodbc"
        return f"mssql+{driver}://azfdb:azfdb@127.0.0.1:{self.server.port}/shop?{DRIVERS[driver]}"

    def lose(self, table: str) -> None:
        """Let go of all changes."""
        self.clean_up(table)

    def clean_up(self, table: str, version: int | None = None) -> None:
        """Forget the changes up to a version, all of them where none is given."""
        version = self.current() if version is None else version
        with closing(self.connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            number = self.ask("SELECT object_id FROM sys.objects WHERE name = ?", table)
            connection.execute(
                "UPDATE sys.change_tracking_tables SET oldest = ? WHERE object_id = ?", [version, number]
            )
            connection.execute(f'DELETE FROM dbo."_changes_{table}" WHERE version <= ?', [version])
            connection.execute("COMMIT")


class ModelSession:
    """One connection to the model."""

    def __init__(self, model: Model, *, is_user: bool = False) -> None:
        self.model = model
        self.sqlite = model.connect()
        self.is_user = is_user
        self.level = "READ COMMITTED"
        self.in_transaction = False

    # The port of the TDS server.

    def begin(self) -> None:
        self.in_transaction = True

    def commit(self) -> None:
        if self.sqlite.in_transaction:
            for table in self.tracked():
                self.sqlite.execute(
                    f"UPDATE dbo._version SET current = current + 1 "
                    f'WHERE EXISTS (SELECT 1 FROM dbo."_changes_{table}" WHERE version > current)'
                )
            self.sqlite.execute("COMMIT")
        self.in_transaction = False

    def rollback(self) -> None:
        if self.sqlite.in_transaction:
            self.sqlite.execute("ROLLBACK")
        self.in_transaction = False

    def close(self) -> None:
        self.rollback()
        self.sqlite.close()

    def execute(self, sql: str, parameters: dict[str, Any]) -> Sequence[Result]:
        sql = sql.strip().rstrip(";")
        if not self.is_user:
            self.model.heard.append(sql)
            self.model.before(sql)
        if (answer := self.spoken(sql)) is not None:
            return answer
        try:
            return [self.run(sql, {name.lstrip("@"): stored(value) for name, value in parameters.items()})]
        except sqlite3.Error as error:
            self.ended(error)
            raise failed(error) from error
        except sqlglot.ParseError as error:
            raise ServerError(102, f"Incorrect syntax: {error}") from error

    # What is not a query.

    def spoken(self, sql: str) -> Sequence[Result] | None:
        """Answer what drivers and operators say besides queries."""
        first = sql.upper()
        if found := SET_LEVEL.match(sql):
            self.level = found["level"].strip().upper()
        elif first.startswith("BEGIN TRAN"):
            self.begin()
        elif first.startswith(("COMMIT", "IF @@TRANCOUNT > 0 COMMIT")):
            self.commit()
        elif first.startswith(("ROLLBACK", "IF @@TRANCOUNT > 0 ROLLBACK")):
            self.rollback()
        elif first.startswith("ALTER"):
            self.altered(sql)
        elif first.startswith("TRUNCATE TABLE"):
            self.truncate(bare(sql.split()[2]))
        elif first.startswith("CREATE DATABASE"):
            folder = self.model.folder / sql.split()[2]
            folder.mkdir()
            self.model.others[folder.name] = Model(folder)
        elif first.startswith(("CREATE INDEX", "CREATE UNIQUE INDEX")):
            return [Result()]
        elif first.startswith("SP_DATATYPE_INFO"):
            return [datatype_info(sql)]
        elif not first.startswith(("SET ", "USE ")):
            return self.known(first)
        return [Result()]

    def known(self, first: str) -> Sequence[Result] | None:
        if "@@VERSION" in first:
            return one("Microsoft SQL Server 2022 (RTM) - 16.0.1000.6 (X64)")
        if "SERVERPROPERTY" in first:
            return one("16.0.1000.6")
        if "CASE TRANSACTION_ISOLATION_LEVEL" in first:
            return one(self.level)
        if "SYS.SYSTEM_VIEWS" in first:
            return one("dm_exec_sessions")
        if "FN_LISTEXTENDEDPROPERTY" in first or "TEST MAX SUPPORT" in first:
            return one("1")
        return [Result([Column("constraint_name")])] if "FK_INFO" in first else None

    def altered(self, sql: str) -> None:
        self.writing()
        if found := TRACK_TABLE.match(sql):
            (self.enable if found["action"] == "ENABLE" else self.disable)(found["table"], "ON" in found["with"])
        elif "ALLOW_SNAPSHOT_ISOLATION" in sql:
            self.sqlite.execute("UPDATE sys.databases SET snapshot_isolation_state = 1")
        elif "CHANGE_TRACKING = ON" in sql:
            days = re.search(r"(\d+) DAYS", sql)
            self.sqlite.execute("DELETE FROM sys.change_tracking_databases")
            self.sqlite.execute(
                "INSERT INTO sys.change_tracking_databases VALUES (1, ?, 3, 1)", [int(days[1]) if days else 2]
            )
        elif added := re.match(r"ALTER TABLE \[dbo\]\.\[(\w+)\] ADD \[(\w+)\] (\w+)", sql):
            self.add_column(*added.groups())
        self.settled()

    def enable(self, table: str, with_columns: bool) -> None:
        number = self.number_of(table)
        keys = self.model.keys[table]
        listed = ", ".join(f'"{name}"' for name in keys)
        self.sqlite.executescript(f'CREATE TABLE IF NOT EXISTS dbo."_changes_{table}" ({listed}, version, op, mask)')
        for op, event, row in (("I", "INSERT", "new"), ("D", "DELETE", "old"), ("U", "UPDATE", "new")):
            mask = self.mask(table) if op == "U" and with_columns else "NULL"
            values = ", ".join(f'{row}."{name}"' for name in keys)
            self.sqlite.execute(
                f'CREATE TRIGGER dbo."_{op}_{table}" AFTER {event} ON "{table}" BEGIN '
                f"INSERT INTO \"_changes_{table}\" SELECT {values}, current + 1, '{op}', {mask} FROM _version; END"
            )
        self.sqlite.execute(
            "INSERT INTO sys.change_tracking_tables VALUES (?, ?, ?)", [number, int(with_columns), self.model.current()]
        )

    def disable(self, table: str, _: bool) -> None:
        self.sqlite.execute("DELETE FROM sys.change_tracking_tables WHERE object_id = ?", [self.number_of(table)])
        for op in "IUD":
            self.sqlite.execute(f'DROP TRIGGER IF EXISTS dbo."_{op}_{table}"')
        self.sqlite.execute(f'DROP TABLE IF EXISTS dbo."_changes_{table}"')

    def truncate(self, table: str) -> None:
        """Empty a table without a word about its rows: what was tracked of them is gone."""
        self.writing()
        self.sqlite.execute(f'DELETE FROM dbo."{table}"')
        self.sqlite.execute(f'DELETE FROM dbo."_changes_{table}"')
        oldest = [self.model.current(), self.number_of(table)]
        self.sqlite.execute("UPDATE sys.change_tracking_tables SET oldest = ? WHERE object_id = ?", oldest)
        self.settled()

    def mask(self, table: str) -> str:
        """Return an expression for the numbers of the columns that an update has changed."""
        parts = [
            f"CASE WHEN old.\"{each.name}\" IS NOT new.\"{each.name}\" THEN '|{place}|' ELSE '' END"
            for place, each in enumerate(self.model.columns[table], start=1)
        ]
        return " || ".join(parts)

    def tracked(self) -> list[str]:
        names = self.sqlite.execute("SELECT name FROM dbo.sqlite_master WHERE name LIKE '\\_changes\\_%' ESCAPE '\\'")
        return [name.removeprefix("_changes_") for (name,) in names]

    def number_of(self, table: str) -> int:
        row = self.sqlite.execute("SELECT object_id FROM sys.objects WHERE name = ?", [table]).fetchone()
        if row is None:
            raise ServerError(4902, f"Cannot find the object {table!r} because it does not exist")
        return int(row[0])

    # Queries.

    def run(self, sql: str, parameters: dict[str, Any]) -> Result:
        sql = MERGE_HINT.sub(r" AS \1 USING", self.with_changes(sql))
        tree = parsed(sql)
        if isinstance(tree, WRITES):
            self.writing()
        elif self.level == "SNAPSHOT" and self.in_transaction and touches_rows(tree) and not self.sqlite.in_transaction:
            self.sqlite.execute("BEGIN")
        if isinstance(tree, exp.Create) and tree.kind == "TABLE":
            self.create(tree)
            return self.settled(Result())
        if isinstance(tree, exp.Drop):
            self.forget(next(tree.find_all(exp.Table)).name)
        told = merged(tree, self.model.keys) if isinstance(tree, exp.Merge) else as_sqlite(sql)
        cursor = self.sqlite.execute(told, parameters)
        if cursor.description is None:
            return self.settled(Result(changed=cursor.rowcount))
        return self.settled(self.result(tree, cursor))

    def with_changes(self, sql: str) -> str:
        return CHANGES.sub(lambda found: self.changes_of(found["table"], found["since"]), sql)

    def changes_of(self, table: str, since: str) -> str:
        keys = ", ".join(f"[{name}]" for name in self.model.keys[table])
        return (
            f"(SELECT {keys}, MAX(version) AS SYS_CHANGE_VERSION,"
            " MAX(CASE WHEN op = 'I' THEN version END) AS SYS_CHANGE_CREATION_VERSION,"
            " CASE WHEN MAX(last_op) = 'D' THEN 'D'"
            " WHEN MAX(CASE WHEN op = 'I' THEN 1 ELSE 0 END) = 1 THEN 'I' ELSE 'U' END AS SYS_CHANGE_OPERATION,"
            " CASE WHEN MAX(CASE WHEN mask IS NULL THEN 1 ELSE 0 END) = 1 THEN NULL ELSE GROUP_CONCAT(mask) END"
            " AS SYS_CHANGE_COLUMNS"
            f" FROM (SELECT *, rowid, LAST_VALUE(op) OVER (PARTITION BY {keys} ORDER BY rowid"
            " ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS last_op"
            f" FROM [dbo].[_changes_{table}] WHERE version > {since}) AS changed GROUP BY {keys})"
        )

    def writing(self) -> None:
        if not self.sqlite.in_transaction:
            self.sqlite.execute("BEGIN IMMEDIATE")

    def settled(self, result: Result = Result()) -> Result:  # noqa: B008 - it never changes
        """Commit what stands alone."""
        if self.sqlite.in_transaction and not self.in_transaction:
            self.commit()
        return result

    def ended(self, error: sqlite3.Error) -> None:
        if not self.in_transaction or "locked" in str(error):
            self.rollback()

    def create(self, tree: exp.Create) -> None:
        table, columns, key = tree.this.this.name, list(declared(tree)), primary_key(tree)
        listed = ", ".join(f'"{each.name}" {affinity(each)}{default_of(tree, each.name)}' for each in columns)
        ending = f", PRIMARY KEY ({', '.join(map(quoted, key))})" if key else ""
        self.sqlite.execute(f'CREATE TABLE dbo."{table}" ({listed}{ending})')
        for each in (each for each in columns if each.kind == "ROWVERSION"):
            for event in (
                "INSERT",
                f"UPDATE OF {', '.join(quoted(c.name) for c in columns if c.kind != 'ROWVERSION')}",
            ):
                self.sqlite.execute(
                    f'CREATE TRIGGER dbo."_stamp_{event.split()[0]}_{table}" AFTER {event} ON "{table}" BEGIN '
                    f'UPDATE _version SET stamp = stamp + 1; UPDATE "{table}" '
                    f'SET "{each.name}" = (SELECT BINARY8(stamp) FROM _version) WHERE rowid = new.rowid; END'
                )
        self.model.columns[table], self.model.keys[table] = columns, key
        self.describe(table, columns, key)
        for place, each in enumerate(tree.this.find_all(exp.ColumnDef), start=1):
            if any(isinstance(it.kind, IDENTITY) for it in each.constraints):
                numbered = [self.number_of(table), place]
                self.sqlite.execute("INSERT INTO sys.identity_columns VALUES (?, ?, 1, 1, 1)", numbered)

    def describe(self, table: str, columns: Sequence[Declared], key: Sequence[str]) -> None:
        self.sqlite.execute("INSERT INTO sys.objects VALUES (NULL, 1, ?, 'U', ?)", [table, f"{uuid.uuid4()}"])
        number = self.number_of(table)
        names = [each.name for each in columns]
        for place, each in enumerate(columns, start=1):
            self.sqlite.execute(
                "INSERT INTO sys.columns VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)",
                [number, place, each.name, type_number(each), int(each.is_nullable), each.length, 38, each.scale],
            )
        self.sqlite.execute("INSERT INTO sys.key_constraints VALUES (?, ?, 1, 'PK')", [f"PK_{table}", number])
        self.sqlite.execute("INSERT INTO sys.indexes VALUES (?, 1, ?, 1, 1, 1, NULL)", [number, f"PK_{table}"])
        for ordinal, name in enumerate(key, start=1):
            place = names.index(name) + 1
            self.sqlite.execute("INSERT INTO sys.index_columns VALUES (?, 1, ?, ?, 0)", [number, place, ordinal])

    def add_column(self, table: str, name: str, kind: str) -> None:
        new = Declared(name, kind.upper(), -1, 0, is_nullable=True)
        self.sqlite.execute(f'ALTER TABLE dbo."{table}" ADD COLUMN "{name}" {affinity(new)}')
        number = self.number_of(table)
        self.model.columns[table] = [*self.model.columns[table], new]
        self.sqlite.execute(
            "INSERT INTO sys.columns VALUES (?, ?, ?, ?, 1, -1, 38, 0, NULL, NULL)",
            [number, len(self.model.columns[table]), name, type_number(new)],
        )
        self.sqlite.execute("UPDATE sys.objects SET modify_date = ? WHERE object_id = ?", [f"{uuid.uuid4()}", number])

    def forget(self, table: str) -> None:
        row = self.sqlite.execute("SELECT object_id FROM sys.objects WHERE name = ?", [table]).fetchone()
        if row is None:
            return
        self.disable(table, False)
        for view in ("objects", "columns", "indexes", "index_columns"):
            self.sqlite.execute(f"DELETE FROM sys.{view} WHERE object_id = ?", [row[0]])

    def result(self, tree: exp.Expression, cursor: sqlite3.Cursor) -> Result:
        rows = cursor.fetchall()
        tables = {table.name for table in tree.find_all(exp.Table)}
        known = {each.name.lower(): each for table in tables for each in self.model.columns.get(table, ())}
        columns = []
        for place, (name, *_) in enumerate(cursor.description):
            each = known.get(name.lower())
            label = name if len(name) <= LONGEST_NAME else ""  # an expression has no name, where SQLite takes its text
            columns.append(guessed(label, [row[place] for row in rows]) if each is None else each.wire)
        return Result(
            columns, [[loaded(column, value) for column, value in zip(columns, row, strict=True)] for row in rows]
        )


# Translation.


@functools.lru_cache(maxsize=1000)
def parsed(sql: str) -> exp.Expression:
    tree = sqlglot.parse_one(sql, read="tsql")
    if not isinstance(tree, exp.Expression):
        raise ServerError(102, "Incorrect syntax")
    return tree


@functools.lru_cache(maxsize=1000)
def as_sqlite(sql: str) -> str:
    return str(parsed(sql).transform(translated).sql("sqlite"))


def translated(node: exp.Expression) -> exp.Expression:
    """Replace what SQLite does not know."""
    if isinstance(node, exp.Cast):
        kind = node.to.this
        value = node.this.transform(translated)
        return exp.Anonymous(this="BINARY8", expressions=[value]) if kind == exp.DataType.Type.BINARY else value
    if isinstance(node, exp.National):
        return exp.Literal.string(node.name)
    if isinstance(node, exp.CurrentSchema):
        return exp.Anonymous(this="SCHEMA_NAME")
    if isinstance(node, exp.ObjectId):
        return exp.Anonymous(this="OBJECT_ID", expressions=[node.this.transform(translated)])
    name = node.name.upper() if isinstance(node, exp.Anonymous) else type(node).__name__.upper()
    if name in {
        "SYSUTCDATETIME",
        "SYSDATETIME",
        "SYSDATETIMEOFFSET",
        "CURRENTTIMESTAMP",
        "CURRENTTIMESTAMPLTZ",
        "UTCTIMESTAMP",
    }:
        return exp.Anonymous(this="NOW")
    if isinstance(node, exp.Column) and node.table in {"inserted", "deleted"}:
        return exp.column(node.this)
    return node


def merged(tree: exp.Merge, keys: dict[str, list[str]]) -> str:
    """Return the INSERT … ON CONFLICT that does what a MERGE of a few rows does."""
    table = tree.this.name
    inserted = next(when.args["then"] for when in tree.args["whens"].expressions if not when.args.get("matched"))
    updated = next((when.args["then"] for when in tree.args["whens"].expressions if when.args.get("matched")), None)
    names = [quoted(each.name) for each in inserted.this.expressions]
    using = tree.args["using"].transform(translated).sql("sqlite")
    conflict = (
        sorted({column.name for column in tree.args["on"].find_all(exp.Column)} & set(keys[table])) or keys[table]
    )
    sets = (
        ""
        if updated is None
        else ", ".join(f"{quoted(e.this.name)} = excluded.{quoted(e.this.name)}" for e in updated.expressions)
    )
    action = f"DO UPDATE SET {sets}" if sets else "DO NOTHING"
    return (
        f'INSERT INTO dbo."{table}" ({", ".join(names)}) SELECT {", ".join(names)} FROM {using} WHERE TRUE '
        f"ON CONFLICT ({', '.join(map(quoted, conflict))}) {action}"
    )


def touches_rows(tree: exp.Expression) -> bool:
    return any(table.db != "sys" for table in tree.find_all(exp.Table))


def declared(tree: exp.Create) -> Iterator[Declared]:
    for each in tree.this.find_all(exp.ColumnDef):
        kind = each.args["kind"]
        sizes = [size.this.name for size in kind.expressions]
        constraints = [constraint.kind for constraint in each.constraints]
        is_nullable = not any(
            isinstance(it, exp.NotNullColumnConstraint) and not it.args.get("allow_null") for it in constraints
        )
        name = kind.this.name if isinstance(kind.this, exp.DataType.Type) else str(kind.this)
        name = name if name in TYPES else "NVARCHAR"
        length = int(sizes[0]) * 2 if sizes and sizes[0].isdigit() else -1
        scale = int(sizes[-1]) if name in {"DECIMAL", "TIME", "DATETIME2", "TIMESTAMPTZ"} and sizes else 0
        if name in {"TIME", "DATETIME2", "TIMESTAMPTZ", "TIMESTAMP"} and not sizes:
            scale = 7
        yield Declared(each.name, name, length, scale, is_nullable)


def primary_key(tree: exp.Create) -> list[str]:
    for each in tree.this.find_all(exp.PrimaryKey):
        return [part.name for part in each.expressions]
    return [
        each.name
        for each in tree.this.find_all(exp.ColumnDef)
        if any(isinstance(it.kind, exp.PrimaryKeyColumnConstraint) for it in each.constraints)
    ]


def default_of(tree: exp.Create, name: str) -> str:
    column = next(each for each in tree.this.find_all(exp.ColumnDef) if each.name == name)
    default = next((it.kind for it in column.constraints if isinstance(it.kind, exp.DefaultColumnConstraint)), None)
    if default is None:
        return ""
    text = default.this.transform(translated).sql("sqlite")
    return f" DEFAULT ({text})"


def affinity(each: Declared) -> str:
    if each.kind in {"INT", "BIGINT", "SMALLINT", "BIT", "BOOLEAN"}:
        return "INTEGER"
    if each.kind in {"DECIMAL", "FLOAT", "DOUBLE"}:
        return "NUMERIC"
    return "BLOB" if each.kind in {"VARBINARY", "BINARY", "ROWVERSION"} else "TEXT"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def types() -> list[tuple[int, int, str]]:
    names = sorted({name for name, _ in TYPES.values()})
    return [(number, number, name) for number, name in enumerate(names, start=1)]


def type_number(each: Declared) -> int:
    return next(number for number, _, name in types() if name == TYPES[each.kind][0])


# Values.


def stored(value: Any) -> Any:
    match value:
        case Decimal():
            return str(value)
        case dt.datetime() if value.tzinfo is not None:
            return str(value.astimezone(dt.UTC).replace(tzinfo=None))
        case dt.datetime() | dt.date() | dt.time() | uuid.UUID():
            return str(value)
        case _:
            return value


def loaded(column: Column, value: Any) -> Any:
    if value is None:
        return None
    match column.type:
        case "decimal":
            return Decimal(str(value))
        case "datetime" | "datetime2":
            return dt.datetime.fromisoformat(value)
        case "datetimeoffset":
            return dt.datetime.fromisoformat(value).replace(tzinfo=dt.UTC)
        case "date":
            return dt.date.fromisoformat(value)
        case "time":
            return dt.time.fromisoformat(value)
        case _:
            return value


def guessed(name: str, values: Sequence[Any]) -> Column:
    sample = next((value for value in values if value is not None), None)
    match sample:
        case int():
            return Column(name, "bigint")
        case float():
            return Column(name, "float")
        case bytes():
            return Column(name, "varbinary")
        case None if name.upper().startswith("SYS_CHANGE_") and name.upper().endswith("VERSION"):
            return Column(name, "bigint")
        case _:
            return Column(name, "nvarchar")


def bare(name: str) -> str:
    return name.rpartition(".")[2].strip("[]")


def one(value: str) -> Sequence[Result]:
    return [Result([Column("answer")], [(value,)])]


def datatype_info(sql: str) -> Result:
    columns = [Column("TYPE_NAME"), Column("DATA_TYPE", "int"), Column("PRECISION", "int")]
    sizes = {"93": 27, "12": 8000, "-9": 4000, "-3": 8000}
    number = sql.split()[1].partition(",")[0]
    return Result(columns, [("any", int(number), sizes.get(number, 10))])


def failed(error: sqlite3.Error) -> ServerError:
    text = str(error)
    if "UNIQUE" in text or "PRIMARY KEY" in text:
        return ServerError(2627, f"Violation of UNIQUE KEY constraint 'PK'. Cannot insert duplicate key. ({text})", 14)
    if "NOT NULL" in text:
        return ServerError(515, f"Cannot insert the value NULL into a column ({text})")
    if "no such table" in text:
        return ServerError(208, f"Invalid object name ({text}).")
    if "no such column" in text or "has no column" in text:
        return ServerError(207, f"Invalid column name ({text}).")
    if "locked" in text:
        return ServerError(1205, f"Transaction was deadlocked and has been chosen as the deadlock victim ({text}).", 13)
    return ServerError(50000, text)


@contextmanager
def running(folder: Path) -> Iterator[Model]:
    """Run a stand-in with its data in a folder."""
    model = Model(folder)
    with serving(lambda database: ModelSession(model.database(database))) as model.server:
        yield model
    model.close()


class RealServer:
    """A database of a real server, for whoever has one (`AZFDB_TEST_SQLSERVER_URL`), with the face of the stand-in."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine = create_engine(url)

    def url(self, driver: str | None = None) -> str:
        if driver not in {None, self._engine.dialect.driver}:
            pytest.skip(f"the server is reached by {self._engine.dialect.driver}")
        return self._url

    def run(self, *statements: str) -> None:
        alters = any(statement.startswith("ALTER DATABASE") for statement in statements)
        engine = self._engine.execution_options(isolation_level="AUTOCOMMIT") if alters else self._engine
        with engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def track(self, table: str, *, columns: bool = True) -> None:
        self.run(*tracking(table, columns=columns))

    def current(self) -> int:
        with self._engine.connect() as connection:
            return int(connection.exec_driver_sql("SELECT CHANGE_TRACKING_CURRENT_VERSION()").scalar_one())

    def lose(self, table: str) -> None:
        """Let go of the changes, as a TRUNCATE does at once and a cleanup in its own time."""
        self.run(f"TRUNCATE TABLE [dbo].[{table}]")

    def close(self) -> None:
        self._engine.dispose()


def tracking(table: str, *, columns: bool = True) -> list[str]:
    """Return the statements that turn on what change tracking of a table needs."""
    with_columns = " WITH (TRACK_COLUMNS_UPDATED = ON)" if columns else ""
    return [
        "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON",
        "ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = 3 DAYS, AUTO_CLEANUP = ON)",
        f"ALTER TABLE [dbo].[{table}] ENABLE CHANGE_TRACKING{with_columns}",
    ]
