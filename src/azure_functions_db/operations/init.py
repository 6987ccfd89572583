"""Starts a function app: reads a table, proposes how to follow it, and writes the files of an app that does."""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Literal

from azure_functions_db._version import __version__
from azure_functions_db.core.config import expanded
from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.core.files import make_folder, write_new
from azure_functions_db.core.types import Finding
from azure_functions_db.sources.keyset.source import SqlAlchemySource
from azure_functions_db.sources.read_errors import reading
from azure_functions_db.sql.engine import engine_getter, parsed_url
from azure_functions_db.sql.reflection import table_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Column, Table
    from sqlalchemy.types import TypeEngine

Store = Literal["azure", "files", "database"]
SETTING = "SOURCE_DB"
"""The app setting that holds the database's URL."""
_SECRETS = "local.settings.json"
FILES = (
    "function_app.py",
    "test_function_app.py",
    "host.json",
    _SECRETS,
    "requirements.txt",
    ".funcignore",
    ".gitignore",
)
_EXTRAS = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql", "mssql": "mssql"}
_SAMPLE = 200
_SETTLE_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a table offers: its columns, one that seems to grow with every change, and what tells its rows apart."""

    columns: list[str]
    cursor: str | None
    key: list[str]


@dataclass(frozen=True, slots=True)
class Choice:
    """What an app is to follow, and where it keeps its state."""

    url: str
    table: str
    cursor: str
    key: list[str]
    schema: str | None = None
    store: Store = "azure"
    settle_seconds: float | None = None
    """The distance from the clock that is kept where late commits cannot be seen otherwise."""

    @property
    def function(self) -> str:
        """The name of the function: the host takes letters, digits and underscores."""
        words = re.sub(r"[^a-z0-9]+", "_", self.table.lower()).strip("_")
        return f"changed_{words or 'rows'}"[:60].rstrip("_")

    @property
    def keeps_url_in_setting(self) -> bool:
        """Whether the URL is written out; one that names settings of the environment is left to them."""
        return expanded(self.url) == self.url

    def source(self) -> SqlAlchemySource:
        """Return the source that the app will have."""
        return SqlAlchemySource(
            url=self.url,
            table=self.table,
            schema=self.schema,
            cursor_column=self.cursor,
            pk_columns=self.key,
            settle_seconds=self.settle_seconds,
        )

    def settled(self) -> Choice:
        """Return the choice with a distance from the clock, where only that keeps rows which commit late."""
        settled = replace(self, settle_seconds=_SETTLE_SECONDS)
        if self.source().late_commit_grade() == "none" and settled.source().late_commit_grade() == "settled":
            return settled
        return self


@dataclass(frozen=True, slots=True)
class InitReport:
    """What was written, and what should be known about the table."""

    folder: str
    function: str
    table: str
    cursor: str
    key: list[str]
    store: Store
    files: list[str]
    findings: list[Finding]


def tables_at(url: str, schema: str | None = None) -> list[str]:
    """Return the tables of a database."""
    from sqlalchemy import inspect

    _require_file(url)
    with reading("the database"):
        return sorted(inspect(engine_getter(url, None, None)()).get_table_names(schema))


def propose(url: str, table: str, schema: str | None = None) -> Proposal:
    """Read a table's description and propose how to follow it."""
    described = _described(url, table, schema)
    key = _key(described)
    return Proposal([column.name for column in described.columns], _cursor(described, key), key)


def init(choice: Choice, folder: Path) -> InitReport:
    """Examine the table and write the app; nothing is written unless all of it can be, and nothing is overwritten."""
    require_free(folder)
    described = _described(choice.url, choice.table, choice.schema)
    choice.source().validate()
    choice = choice.settled()
    findings = [*choice.source().checkup(), *_questions(choice)]
    written = _files(choice, described, folder)
    _write(folder, written)
    return InitReport(
        str(folder),
        choice.function,
        choice.table,
        choice.cursor,
        choice.key,
        choice.store,
        sorted(written),
        [finding for finding in findings if finding.grade != "ok"],
    )


def _described(url: str, table: str, schema: str | None) -> Table:
    _require_file(url)
    with reading(table):
        return table_of(engine_getter(url, None, None)(), table, schema)


def _require_file(url: str) -> None:
    """Refuse a SQLite file that is not there: connecting would make it."""
    place = parsed_url(expanded(url))
    name = place.database or ""
    if place.get_backend_name() == "sqlite" and not name.startswith("file:") and not Path(name).is_file():
        raise ConfigurationError(f"There is no SQLite file {name or ':memory:'}: make the table first")


def _key(table: Table) -> list[str]:
    """Return the primary key, else the columns of a unique index that are never NULL."""
    from sqlalchemy import UniqueConstraint

    if table.primary_key.columns:
        return [column.name for column in table.primary_key.columns]
    unique = [rule for rule in [*table.constraints, *table.indexes] if isinstance(rule, UniqueConstraint)]
    unique += [index for index in table.indexes if index.unique]  # type: ignore[misc] # both have columns
    usable = [rule for rule in unique if not any(column.nullable for column in rule.columns)]
    return [column.name for column in min(usable, key=lambda rule: len(rule.columns)).columns] if usable else []


def _cursor(table: Table, key: Sequence[str]) -> str | None:
    """Return the column that looks most like one that grows with every change; the key itself sees inserts only."""
    from sqlalchemy import types

    stamps = [column for column in table.columns if _says(column, _STAMPS) and isinstance(column.type, types.DateTime)]
    counts = [column for column in table.columns if _says(column, _COUNTS) and isinstance(column.type, types.Integer)]
    keys = [column for column in table.columns if [column.name] == list(key) and isinstance(column.type, types.Integer)]
    found = [*stamps, *counts, *keys]
    return found[0].name if found else None


_STAMPS = {"updated", "modified", "changed", "touched", "update", "modification", "change"}
_COUNTS = {"version", "rowversion", "revision", "rev", "seq", "sequence"}


def _says(column: Column[Any], words: set[str]) -> bool:
    spelled = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column.name).lower()
    return not words.isdisjoint(re.split(r"[^a-z]+", spelled))


def _questions(choice: Choice) -> list[Finding]:
    """Question a version that each row counts for itself, and a key that updates do not touch."""
    if [choice.cursor] == choice.key:
        return [Finding("cursor", "note", f"{choice.cursor} is the key: inserts are seen, updates are not")]
    values = [row[choice.cursor] for row in choice.source().fetch(None, _SAMPLE)]
    if len(values) < 10 or len(set(values)) * 2 > len(values) or not isinstance(values[0], int):
        return []
    told = f"{len(values)} rows share {len(set(values))} values of {choice.cursor}: is it counted row by row?"
    return [Finding("cursor", "warning", told, "take a number that grows with every change of any row, or a timestamp")]


def require_free(folder: Path) -> None:
    """Refuse a folder that has one of the files already."""
    if there := [name for name in FILES if (folder / name).exists() or (folder / name).is_symlink()]:
        raise ConfigurationError(f"Nothing was written: {folder} has {', '.join(there)} already; name another folder")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    written: list[Path] = []
    try:
        make_folder(folder)
        for name, content in files.items():
            _write_one(folder / name, content)
            written.append(folder / name)
    except OSError as failure:
        for path in written:
            path.unlink()
        raise ConfigurationError(f"Nothing was written: {folder}: {failure.strerror}") from None


def _write_one(path: Path, content: str) -> None:
    if path.name == _SECRETS:
        write_new(path, content.encode())  # for its owner alone
        return
    with path.open("x", encoding="utf-8") as file:
        file.write(content)


def _files(choice: Choice, table: Table, folder: Path) -> dict[str, str]:
    """Return the content of every file; names of others reach code only as literals."""
    rows = _rows(table, choice)
    contents = (
        _APP.substitute(
            _STORES[choice.store], function=choice.function, source=_source_words(choice), url=_url(choice)
        ),
        _TEST.substitute(function=choice.function, rows=rows, imports="import datetime\n" * ("datetime." in rows)),
        _HOST,
        _settings(choice, folder),
        f"azure-functions\n{requirement(choice)}\n",
        _NOT_DEPLOYED,
        _NOT_KEPT,
    )
    return dict(zip(FILES, contents, strict=True))


def requirement(choice: Choice) -> str:
    """Return what an app has to install: this release or a later one, with the driver of its database."""
    extra = _EXTRAS.get(parsed_url(expanded(choice.url)).get_backend_name())
    return f"azure-functions-db{f'[{extra}]' if extra else ''}>={__version__}"


def _source_words(choice: Choice) -> str:
    arguments = {
        "table": choice.table,
        "schema": choice.schema,
        "cursor_column": choice.cursor,
        "pk_columns": choice.key,
        "settle_seconds": choice.settle_seconds,
    }
    given = {name: value for name, value in arguments.items() if value is not None}
    return "".join(f"    {name}={_literal(value)},\n" for name, value in given.items())


def _url(choice: Choice) -> str:
    return _literal(f"%{SETTING}%" if choice.keeps_url_in_setting else choice.url)


def _literal(value: Any) -> str:
    """Return a value as Python writes it; whatever is in a text, it stays one."""
    match value:
        case str() if value.isprintable() and not {'"', "\\"} & set(value):
            return f'"{value}"'
        case list():
            return f"[{', '.join(map(_literal, value))}]"
        case dict():
            return "{" + ", ".join(f"{_literal(name)}: {_literal(inner)}" for name, inner in value.items()) + "}"
        case _:
            return repr(value)


def _settings(choice: Choice, folder: Path) -> str:
    values = {"FUNCTIONS_WORKER_RUNTIME": "python", "AzureWebJobsStorage": "UseDevelopmentStorage=true"}
    if choice.keeps_url_in_setting:
        values[SETTING] = _seen_from(folder, choice.url)
    return json.dumps({"IsEncrypted": False, "Values": values}, indent=2) + "\n"


def _seen_from(folder: Path, url: str) -> str:
    """Return a URL that is right in the app's folder, where a relative path to SQLite would lead elsewhere."""
    place = parsed_url(url)
    relative = place.get_backend_name() == "sqlite" and not Path(place.database or "").is_absolute()
    if not relative or folder.resolve() == Path.cwd():
        return url
    return place.set(database=str(Path(place.database or "").resolve())).render_as_string(hide_password=False)


def _rows(table: Table, choice: Choice) -> str:
    """Return two rows such as the table could have, as Python writes them."""
    columns = [table.columns[name] for name in dict.fromkeys([*choice.key, choice.cursor])]
    rows = [{column.name: _made_up(column.type, number) for column in columns} for number in (1, 2)]
    return "".join(f"    {_literal(row)},\n" for row in rows)


def _made_up(kind: TypeEngine[Any], number: int) -> Any:
    from sqlalchemy import types

    match kind:
        case types.DateTime():
            return dt.datetime(2026, 1, number, tzinfo=dt.UTC)
        case types.Date():
            return dt.date(2026, 1, number)
        case types.String() | types.Uuid():
            return f"text {number}"
        case _:
            return number


_STORES: dict[Store, dict[str, str]] = {
    "azure": {
        "import_os": "import os\n",
        "store_imports": "BlobCheckpointStore, DbBindings, FileStateStore, RowChange, SqlAlchemySource",
        "store": "# In Azure the checkpoint is kept in the app's own storage account, here in a folder.\n"
        'state = BlobCheckpointStore() if "WEBSITE_SITE_NAME" in os.environ else FileStateStore("state")',
    },
    "files": {
        "import_os": "",
        "store_imports": "DbBindings, FileStateStore, RowChange, SqlAlchemySource",
        "store": 'state = FileStateStore("state")  # for one machine; in Azure take BlobCheckpointStore()',
    },
    "database": {
        "import_os": "",
        "store_imports": "DbBindings, RowChange, SqlAlchemySource, SqlStateStore",
        "store": "# In a table of the same database, azfdb_state, which is made when it is first needed.\n"
        "state = SqlStateStore(url=SOURCE)",
    },
}

_APP = Template('''"""Sees every change of a table; made by `azfdb init`, and yours to change."""

import json
${import_os}import sqlite3
from contextlib import closing

import azure.functions as func

from azure_functions_db import ${store_imports}

app = func.FunctionApp()
db = DbBindings()
SOURCE = ${url}
TARGET = "changes.db"

rows = SqlAlchemySource(
    url=SOURCE,
${source})
${store}


@app.timer_trigger(schedule="*/5 * * * * *", arg_name="timer", use_monitor=False)
@db.trigger(arg_name="events", source=rows, checkpoint_store=state, max_batches_per_tick=100, time_budget_seconds=60)
def ${function}(timer: func.TimerRequest, events: list[RowChange]) -> None:
    """Put in here what is to happen: a batch can come again, and doing it twice must be like doing it once."""
    changes = [(event.event_id, json.dumps(event.to_json()["after"])) for event in events]
    with closing(sqlite3.connect(TARGET)) as target, target:
        target.execute("CREATE TABLE IF NOT EXISTS changes (event_id TEXT PRIMARY KEY, row TEXT)")
        target.executemany("INSERT OR REPLACE INTO changes VALUES (?, ?)", changes)
    print(f"{len(events)} change(s), the last one {dict(events[-1].pk)}")
''')

_TEST = Template('''"""Does the function survive what can happen to it? The failure drills tell, when pytest runs."""

${imports}import sqlite3
from contextlib import closing
from pathlib import Path

import function_app

# As the table's, as far as the function looks at them.
ROWS = [
${rows}]


def effects():
    with closing(sqlite3.connect(function_app.TARGET)) as target:
        return target.execute("SELECT * FROM changes ORDER BY event_id").fetchall()


def reset():
    Path(function_app.TARGET).unlink(missing_ok=True)
    with closing(sqlite3.connect(function_app.TARGET)) as target:
        target.execute("CREATE TABLE changes (event_id TEXT PRIMARY KEY, row TEXT)")


def test_the_function_survives(failure_drills, monkeypatch, tmp_path):
    monkeypatch.setattr(function_app, "TARGET", str(tmp_path / "changes.db"))
    failure_drills(function_app.${function}, rows=ROWS, effects=effects, reset=reset, freeze_seconds=0.5)
''')

_HOST = """{
  "version": "2.0",
  "functionTimeout": "00:05:00",
  "extensionBundle": {"id": "Microsoft.Azure.Functions.ExtensionBundle", "version": "[4.*, 5.0.0)"}
}
"""

_NOT_KEPT = """local.settings.json
.azfdb/
.venv/
__pycache__/
state/
changes.db
"""

_NOT_DEPLOYED = f""".git*
.pytest_cache/
*.db
test_*.py
{_NOT_KEPT}"""
