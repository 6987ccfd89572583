"""Coming from release 0.8.3: what teams import, pass and implement works, and goes on from what that release wrote.

Release 0.8.3 runs beside, as a black box in an environment of its own, and is asked what it does.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from azure.storage.blob import ContainerClient

from azure_functions_db import (
    BlobCheckpointStore,
    ConfigurationError,
    CursorPart,
    FetchError,
    FileQuarantine,
    HandlerError,
    LeaseConflictError,
    MemoryStateStore,
    PollTrigger,
    RetryPolicy,
    RowChange,
    SourceConfigurationError,
    SourceDescriptor,
    SqlAlchemySource,
    StateStoreError,
)
from azure_functions_db.core import parse_checkpoint_cursor, resolve_env_vars, serialize_cursor_part
from azure_functions_db.observability import NoOpCollector
from azure_functions_db.trigger import default_normalizer, make_normalizer
from tests.acceptance.host import FunctionApp, http, timer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.acceptance.conftest import Sql

CHECKOUT = Path(__file__).parents[2]
APPS = Path(__file__).parent / "apps"
APP = APPS / "release_0_8"
SCHEMA = """
    CREATE TABLE orders (id int PRIMARY KEY, status text, total numeric, updated_at timestamptz NOT NULL);
    CREATE TABLE invoices (order_id int PRIMARY KEY, total numeric);
    CREATE TABLE journal (number int PRIMARY KEY, text text);
"""


@pytest.fixture(scope="session")
def release_0_8() -> str:
    """The interpreter of the environment in which release 0.8.3 is installed."""
    python = Path(f"{sys.prefix}-competitor") / "bin" / "python"
    if not python.exists():
        pytest.fail(f"{python} is missing: run `make test`", pytrace=False)
    return str(python)


def plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="session")
def ask(release_0_8: str) -> Callable[[str], Any]:
    """Ask release 0.8.3 what an expression is there; what the statements before it print is not wanted."""

    def answer(program: str) -> Any:
        *statements, expression = program.strip().splitlines()
        lines = ["import json", *statements, f"print(json.dumps({expression}))"]
        done = subprocess.run(
            [release_0_8, "-c", "\n".join(lines)],
            env=plain_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.splitlines()[-1]
        return json.loads(done.stdout.splitlines()[-1])

    return answer


@pytest.fixture
def settings(tmp_path: Path, postgres_database: str, blob_container: str, site: dict[str, str]) -> dict[str, str]:
    """The settings of the app; its folder holds what its own sources read."""
    (tmp_path / "journal.txt").write_text("".join(f"line {number}\n" for number in range(1, 8)))
    (tmp_path / "ledger.jsonl").write_text("".join(entries(range(1, 4))))
    return {**site, "SHOP_DB": postgres_database, "STATE_CONTAINER": blob_container, "APP_FOLDER": str(tmp_path)}


def entries(numbers: range) -> list[str]:
    return [json.dumps({"day": number // 2, "id": number}) + "\n" for number in numbers]


def place_orders(sql: Sql, url: str, numbers: range) -> None:
    for number in numbers:
        # Pairs of orders share their time: the position is a time and a key.
        moment = f"timestamptz '2026-01-01T00:00:00.123456+02:00' + interval '{number // 2} minutes'"
        sql(url, f"INSERT INTO orders VALUES ({number}, 'new', {number}, {moment})")


def lines(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()]


def run_in(python: str, settings: dict[str, str]) -> None:
    """Let the app's pollers run once in the environment of another release."""
    environment = plain_environment() | settings
    command = [python, str(APP / "tick.py"), str(APP)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "0.8.3"


def test_an_app_of_release_0_8_runs_unchanged_from_the_checkpoints_that_0_8_wrote(
    release_0_8: str, settings: dict[str, str], tmp_path: Path, sql: Sql
) -> None:
    shop = settings["SHOP_DB"]
    sql(shop, SCHEMA)
    place_orders(sql, shop, range(1, 6))
    run_in(release_0_8, settings)
    assert lines(tmp_path / "orders.log") == [1, 2, 3, 4, 5]
    assert lines(tmp_path / "ledger.log") == [1, 2, 3]
    before = json.loads((tmp_path / "journal.state").read_text())
    assert before["cursor"] == 7
    (tmp_path / "metrics.jsonl").unlink()

    place_orders(sql, shop, range(6, 9))
    shown = subprocess.run(
        [str(Path(sys.prefix) / "bin" / "azfdb"), "status", "orders", "--app", str(APP), "--json"],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    [status] = json.loads(shown.stdout)["pollers"]
    assert (status["key"], status["waiting_rows"], status["problems"]) == ({"1": 5}, 3, [])

    (tmp_path / "journal.txt").write_text("".join(f"line {number}\n" for number in range(1, 13)))
    (tmp_path / "ledger.jsonl").write_text("".join(entries(range(1, 6))))
    (tmp_path / "fail-once").touch()
    with FunctionApp(APP, {**settings, "PYTHONWARNINGS": "default::DeprecationWarning"}) as app:
        for _ in range(2):
            for function in ("write_invoices", "keep_journal", "keep_ledger"):
                ticked = app.invoke(function, timer=timer())
                assert ticked.ok, ticked.traceback
        assert app.invoke("get_order", req=http(route={"id": "8"})).json["status"] == "new"
        assert app.invoke("get_order", req=http(route={"id": "99"})).status == 404
        assert app.invoke("get_totals", req=http()).json == {"total": 36.0}
    assert lines(tmp_path / "orders.log") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert lines(tmp_path / "ledger.log") == [1, 2, 3, 4, 5]
    assert sql(shop, "SELECT number FROM journal ORDER BY number") == [*((n,) for n in range(1, 13)), (1000,)]
    assert sql(shop, "SELECT count(*), sum(total) FROM invoices") == [(8, 36)]
    warned = " ".join(line for line in app.log if "DeprecationWarning" in line)
    for word in ("max_attempts=3", "delay_seconds=0.01", "multiplier=2", "cursor_types"):
        assert word in warned
    counted = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert counted == [
        ["azfdb_batches_total", 1, {"poller_name": "orders", "source": "orders", "result": "success"}],
        ["azfdb_events_total", 2, {"poller_name": "orders", "source": "orders"}],
        ["azfdb_batches_total", 1, {"poller_name": "orders", "source": "orders", "result": "success"}],
        ["azfdb_events_total", 1, {"poller_name": "orders", "source": "orders"}],
    ]


class TestStatement12Arguments:
    def test_a_retry_policy_in_the_words_of_0_8_waits_as_0_8_did(self, ask: Callable[[str], Any]) -> None:
        given: dict[str, Any] = {"max_retries": 8, "base_delay_seconds": 0.5, "exponential_base": 3}
        with pytest.warns(DeprecationWarning, match="write") as told:
            policy = RetryPolicy(**given)
        program = f"""
            from azure_functions_db import RetryPolicy
            policy = RetryPolicy(**{given})
            [policy.delay_for_attempt(retry) for retry in range(8)]
        """
        assert list(policy.pauses()) == ask(re.sub(r"^ +", "", program, flags=re.MULTILINE))
        said = [str(warning.message) for warning in told]
        assert [message.split(": ")[1] for message in said] == [
            "write max_attempts=9",
            "write delay_seconds=0.5",
            "write multiplier=3",
        ]
        assert {warning.filename for warning in told} == {__file__}, "it points at the line to change"

    def test_one_thing_is_said_in_one_way(self) -> None:
        former: Any = {"max_retries": 2}
        with pytest.raises(ConfigurationError, match="max_retries= is the former name of max_attempts="):
            RetryPolicy(max_attempts=3, **former)

    def test_an_unknown_argument_of_a_retry_policy_is_answered_with_todays(self) -> None:
        unknown: Any = {"max_tries": 2}
        with pytest.raises(ConfigurationError, match="no argument 'max_tries'; it has: max_attempts, delay_seconds"):
            RetryPolicy(**unknown)

    def test_cursor_types_are_taken_and_not_needed(self) -> None:
        with pytest.warns(DeprecationWarning, match="cursor_types=….* leave it out") as told:
            SqlAlchemySource(
                url="sqlite://", table="t", cursor_column="c", pk_columns=["id"], cursor_types=[dt.datetime, int]
            )
        assert told[0].filename == __file__

    def test_an_unknown_argument_of_a_source_is_answered_with_todays(self) -> None:
        unknown: Any = {"tabel": "orders"}
        with pytest.raises(SourceConfigurationError, match="no argument 'tabel'; it has: url, db_config, table"):
            SqlAlchemySource(url="sqlite://", cursor_column="c", pk_columns=["id"], **unknown)


class Lines:
    """A small source of 0.8 form: numbered rows, few at a time."""

    source_descriptor = SourceDescriptor(name="lines", kind="list", fingerprint="lines-1")

    def __init__(self, count: int, at_once: int = 1000) -> None:
        self.count = count
        self.at_once = at_once
        self.asked: list[Any] = []

    def fetch(self, cursor: Any, batch_size: int) -> list[dict[str, Any]]:
        self.asked.append(cursor)
        start = 0 if cursor is None else cursor if isinstance(cursor, int) else cursor[0]
        return [{"n": n, "id": n * 10} for n in range(start + 1, self.count + 1)][: min(batch_size, self.at_once)]


def scalar(record: Mapping[str, Any], descriptor: SourceDescriptor) -> RowChange:
    key = {"id": record["id"]}
    return RowChange(str(record["n"]), "insert", descriptor, record["n"], key, None, record)


def pair(record: Mapping[str, Any], descriptor: SourceDescriptor) -> RowChange:
    position, key = (record["n"], record["id"]), {"id": record["id"]}
    return RowChange(str(record["n"]), "insert", descriptor, position, key, None, record)


def ticked(source: Any, store: Any = None, **options: Any) -> list[int]:
    """Run one tick; return the numbers of the rows that were handled."""
    seen: list[int] = []
    trigger = PollTrigger(name="lines", source=source, checkpoint_store=store or MemoryStateStore(), **options)
    trigger.run(timer=None, handler=lambda events: seen.extend(event.after["n"] for event in events))
    return seen


class Collector:
    """A collector as 0.8 documents it: labels by keyword only."""

    def __init__(self, broken: str | None = None) -> None:
        self.broken = broken
        self.seen: list[tuple[str, Mapping[str, str] | None]] = []

    def increment(self, name: str, value: float = 1.0, *, labels: Mapping[str, str] | None = None) -> None:
        self._see("increment", name, labels)

    def observe(self, name: str, value: float, *, labels: Mapping[str, str] | None = None) -> None:
        self._see("observe", name, labels)

    def set_gauge(self, name: str, value: float, *, labels: Mapping[str, str] | None = None) -> None:
        self._see("set_gauge", name, labels)

    def _see(self, method: str, name: str, labels: Mapping[str, str] | None) -> None:
        if method == self.broken:
            raise LookupError(f"no place for {name}")
        self.seen.append((name, labels))


METRICS_OF_0_8 = """
import logging; logging.disable(50)
from azure_functions_db import PollTrigger
from azure_functions_db.core import SourceDescriptor
class Lines:
    cursor_column, pk_columns = "n", ["id"]
    source_descriptor = SourceDescriptor(name="lines", kind="list", fingerprint="lines-1")
    def fetch(self, cursor, batch_size): return [] if cursor else [dict(n=1, id=10)]
class Store:
    def acquire_lease(self, *a): return "mine:1"
    def renew_lease(self, *a): pass
    def release_lease(self, *a): pass
    def load_checkpoint(self, *a): return {}
    def commit_checkpoint(self, *a): pass
seen = []
class Collector:
    def increment(self, name, value=1, *, labels=None): seen.append((name, labels))
    def observe(self, name, value, *, labels=None): seen.append((name, labels))
    def set_gauge(self, name, value, *, labels=None): seen.append((name, labels))
def fail(events): raise ValueError("no stock")
trigger = PollTrigger(name="lines", source=Lines(), checkpoint_store=Store(), metrics=Collector())
trigger.run(timer=None, handler=lambda events: None)
try: trigger.run(timer=None, handler=fail)
except Exception: pass
seen
"""


class TestStatement13Metrics:
    def test_a_collector_gets_every_metric_of_0_8_with_its_labels(self, ask: Callable[[str], Any]) -> None:
        def fail(_events: Sequence[RowChange]) -> None:
            raise ValueError("no stock")

        collector = Collector()
        ticked(Lines(1), normalizer=scalar, metrics=collector)
        trigger = PollTrigger(
            name="lines",
            source=Lines(1),
            checkpoint_store=MemoryStateStore(),
            normalizer=scalar,
            metrics=collector,
        )
        with pytest.raises(HandlerError):
            trigger.run(timer=None, handler=fail)
        # A failure has one label more than it had: its stage.
        ours = [
            (name, {key: text for key, text in (labels or {}).items() if key != "stage"})
            for name, labels in collector.seen
        ]
        for name, labels in ask(METRICS_OF_0_8):
            assert (name, labels) in ours

    def test_a_collector_that_raises_is_reported_with_what_it_raised_and_gets_the_rest(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        collector = Collector(broken="increment")
        assert ticked(Lines(1), normalizer=scalar, metrics=collector) == [1]
        assert [name for name, _ in collector.seen] == [
            "azfdb_batch_size",
            "azfdb_fetch_duration_ms",
            "azfdb_handler_duration_ms",
            "azfdb_commit_duration_ms",
            "azfdb_last_success_timestamp",
        ]
        [report] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert "LookupError: no place for azfdb_batches_total" in report

    def test_metrics_go_on_after_a_failure_of_the_collector(self) -> None:
        collector = Collector(broken="increment")
        trigger = PollTrigger(
            name="lines",
            source=Lines(2),
            checkpoint_store=MemoryStateStore(),
            normalizer=scalar,
            batch_size=1,
            metrics=collector,
        )
        trigger.run(timer=None, handler=lambda events: None)
        collector.broken = None
        trigger.run(timer=None, handler=lambda events: None)
        assert "azfdb_events_total" in [name for name, _ in collector.seen]


PACKAGES = ["adapter", "binding", "core", "state", "trigger"]
NAMES_OF_0_8 = """
import importlib
def names(package): return [name for name in importlib.import_module("azure_functions_db" + package).__all__]
{package: names(package) for package in ["", ".adapter", ".binding", ".core", ".decorator", ".state", ".trigger"]}
"""
CURSOR_PARTS: list[CursorPart] = [
    1,
    "a",
    1.5,
    True,
    None,
    dt.datetime(2026, 1, 1),  # noqa: DTZ001 - one without a zone
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    Decimal("1.50"),
    UUID(int=5),
]


class TestStatement14Names:
    def test_every_name_that_the_packages_of_0_8_offer_is_there(self, ask: Callable[[str], Any]) -> None:
        for package, names in ask(NAMES_OF_0_8).items():
            module = __import__(f"azure_functions_db{package}", fromlist=names)
            assert [name for name in names if not hasattr(module, name)] == []

    def test_the_packages_are_imported_lazily(self) -> None:
        program = f"""
import sys, importlib
for name in {PACKAGES}:
    importlib.import_module("azure_functions_db." + name)
print([name for name in sys.modules if name.startswith("azure_functions_db.") and name.count(".") > 1])
from azure_functions_db.trigger import RetryPolicy, make_normalizer
from azure_functions_db.core import DbConfig, resolve_env_vars
print([name for name in ("sqlalchemy", "azure", "pydantic", "opentelemetry") if name in sys.modules])
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout == "[]\n[]\n"

    def test_metric_names_and_the_collector_that_keeps_nothing_are_there(self, ask: Callable[[str], Any]) -> None:
        program = """
from azure_functions_db import observability
{name: getattr(observability, name) for name in dir(observability) if name.startswith("METRIC_")}
"""
        from azure_functions_db import observability

        for name, value in ask(program).items():
            assert getattr(observability, name) == value
        assert ticked(Lines(1), normalizer=scalar, metrics=NoOpCollector()) == [1]

    def test_the_helpers_say_what_those_of_0_8_said(
        self, ask: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = f"""
import datetime, decimal, uuid
from datetime import timezone
from decimal import Decimal
from uuid import UUID
from azure_functions_db.core import serialize_cursor_part, parse_checkpoint_cursor
parts = [serialize_cursor_part(part) for part in {CURSOR_PARTS!r}]
[parts, [parse_checkpoint_cursor(raw) for raw in (5, "a", None, [1, "x"])]]
"""
        parts, cursors = ask(program)
        assert [serialize_cursor_part(part) for part in CURSOR_PARTS] == parts
        assert [parse_checkpoint_cursor(raw) for raw in (5, "a", None)] == cursors[:3]
        assert parse_checkpoint_cursor([1, "x"]) == tuple(cursors[3])
        monkeypatch.setenv("SHOP", "sqlite:///shop.db")
        assert resolve_env_vars("%SHOP%") == "sqlite:///shop.db"
        with pytest.raises(ConfigurationError, match="NOWHERE"):
            resolve_env_vars("%NOWHERE%")

    def test_normalizers_of_0_8_make_events(self) -> None:
        descriptor = Lines.source_descriptor
        made = make_normalizer(cursor_column="n", pk_columns=["id"])({"n": 1, "id": 10}, descriptor)
        assert (made.op, made.cursor, made.pk, made.after) == ("upsert", 1, {"id": 10}, {"n": 1, "id": 10})
        bare = default_normalizer({"n": 1}, descriptor)
        assert (bare.op, bare.cursor, bare.pk, bare.after) == ("upsert", None, {}, {"n": 1})


DEFINITIONS: list[dict[str, Any]] = [
    {},
    {"url": "postgresql+psycopg://shop:secret@db.example:5432/shop?sslmode=require&application_name=x"},
    {"url": "postgresql+psycopg://shop:p%40ss@db.example/my%20shop"},
    {"url": "sqlite:///%SHOP_FILE%"},
    {"schema": "sales", "pk_columns": ["shop", "id"]},
    {"where": "a = :a OR b > :b", "parameters": {"b": [1, 2], "a": "é"}},
    {"where": "a > :a", "parameters": {"a": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}},
    {"table": None, "query": "SELECT * FROM t;"},
    {"cursor_types": [dt.datetime, UUID]},
]


class TestStatement15Positions:
    def test_a_scalar_position_of_a_custom_source_is_carried_over(self) -> None:
        store, source = MemoryStateStore(), Lines(5)
        store.commit_checkpoint("lines", {"cursor": 2, "batch_id": "x-0"}, store.acquire_lease("lines", 60))
        store.break_lease("lines")
        assert ticked(source, store, normalizer=scalar, batch_size=2) == [3, 4]
        assert ticked(source, store, normalizer=scalar) == [5]
        assert source.asked == [2, 4], "a scalar stays a scalar"

    def test_a_normalizer_counts_before_the_columns_of_its_source(self) -> None:
        class Named(Lines):
            cursor_column, pk_columns = "n", ("id",)

        store, source = MemoryStateStore(), Named(3)
        assert ticked(source, store, normalizer=scalar, batch_size=2) == [1, 2]
        assert ticked(source, store, batch_size=2, normalizer=scalar) == [3]
        assert source.asked == [None, 2]

    def test_a_source_with_short_pages_is_asked_again_until_it_returns_none(self) -> None:
        source = Lines(7, at_once=2)
        assert ticked(source, normalizer=scalar, batch_size=5, max_batches_per_tick=10) == [1, 2, 3, 4, 5, 6, 7]
        assert source.asked == [None, 2, 4, 6, 7]
        assert ticked(Lines(7, at_once=2), normalizer=scalar, batch_size=5, max_batches_per_tick=2) == [1, 2, 3, 4]

    def test_a_poison_row_of_a_source_with_short_pages_is_put_aside(self, tmp_path: Path) -> None:
        handled: list[int] = []

        def handler(events: Sequence[RowChange]) -> None:
            if any(event.cursor == 1 for event in events):
                raise ValueError("poison")
            handled.extend(int(event.event_id) for event in events)

        sink = FileQuarantine(tmp_path)
        trigger = PollTrigger(
            name="lines",
            source=Lines(3, at_once=1),
            checkpoint_store=MemoryStateStore(),
            normalizer=scalar,
            quarantine=sink,
            max_attempts=1,
            max_batches_per_tick=5,
        )
        for _ in range(3):
            with suppress(HandlerError):
                trigger.run(timer=None, handler=handler)
        assert [row.event_id for row in sink.entries("lines")] == ["1"]
        assert set(handled) == {2, 3}

    def test_a_normalizer_may_return_the_cursor_with_its_key(self) -> None:
        store, source = MemoryStateStore(), Lines(3)
        assert ticked(source, store, normalizer=pair, batch_size=2) == [1, 2]
        assert ticked(source, store, normalizer=pair, batch_size=2) == [3]
        assert source.asked == [None, (2, 20)]

    def test_a_source_that_still_expects_texts_is_told_what_it_is_given(self, caplog: pytest.LogCaptureFixture) -> None:
        class Timed(Lines):
            cursor_column, pk_columns = "at", ("id",)

            def fetch(self, cursor: Any, batch_size: int) -> list[dict[str, Any]]:
                day = 1 if cursor is None else dt.datetime.fromisoformat(cursor[0]).day
                return [{"at": dt.datetime(2026, 1, day, tzinfo=dt.UTC), "id": day, "n": day}]

        store = MemoryStateStore()
        assert ticked(Timed(1), store) == [1]
        with pytest.raises(FetchError):
            ticked(Timed(1), store)
        assert "release 0.8 gave times, Decimals and UUIDs as texts" in caplog.text

    @pytest.mark.parametrize("definition", DEFINITIONS, ids=str)
    @pytest.mark.filterwarnings("ignore:SqlAlchemySource.cursor_types:DeprecationWarning")
    def test_a_source_knows_the_fingerprint_that_0_8_gave_it(
        self, definition: dict[str, Any], ask: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SHOP_FILE", "shop.db")
        given = {"url": "sqlite:///x.db", "table": "t", "cursor_column": "c", "pk_columns": ["id"]} | definition
        written = (
            repr(given)
            .replace("<class 'datetime.datetime'>", "datetime.datetime")
            .replace("<class 'uuid.UUID'>", "uuid.UUID")
        )
        program = f"""
import datetime, uuid
from datetime import timezone
from azure_functions_db import SqlAlchemySource
SqlAlchemySource(**{written}).source_descriptor.fingerprint
"""
        assert SqlAlchemySource(**given).source_descriptor.former == (ask(program),)


OLD: dict[str, Any] = {
    "version": 1,
    "poller_name": "lines",
    "source_fingerprint": "lines-1",
    "checkpoint": {"cursor": 2, "batch_id": "x-0"},
    "lease": {
        "owner_id": "0e7435aa4cb6458e835c078b912ef2a5",
        "fencing_token": 7,
        "acquired_at": "2026-01-01T19:44:15.056375+00:00",
        "heartbeat_at": "2026-01-01T19:44:15.088924+00:00",
        "expires_at": "2026-01-01T19:44:15.133101+00:00",
    },
}


class TestStatement15OneApp:
    @pytest.fixture
    def container(self, azurite: str, blob_container: str) -> Iterator[ContainerClient]:
        with ContainerClient.from_connection_string(azurite, blob_container) as client:
            client.upload_blob("state/lines.json", json.dumps(OLD))
            yield client

    def test_the_first_app_with_its_source_goes_on_and_the_next_begins_anew(self, container: ContainerClient) -> None:
        shop, copy = (BlobCheckpointStore(container_client=container, app_name=name) for name in ("shop", "copy"))
        assert ticked(Lines(4), shop, normalizer=scalar) == [3, 4]
        assert ticked(Lines(4), copy, normalizer=scalar) == [1, 2, 3, 4]
        assert json.loads(container.download_blob("state/lines.json").readall()) == OLD, "0.8 could go on from it"
        assert ticked(Lines(5), shop, normalizer=scalar) == [5]

    def test_an_app_with_another_source_begins_anew_and_is_told(
        self, container: ContainerClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Others(Lines):
            source_descriptor = SourceDescriptor(name="others", kind="list", fingerprint="others-1")

        stranger, shop = (BlobCheckpointStore(container_client=container, app_name=name) for name in ("other", "shop"))
        assert ticked(Others(4), stranger, normalizer=scalar) == [1, 2, 3, 4]
        [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert "of another source: this app begins anew" in warning
        assert ticked(Lines(4), shop, normalizer=scalar) == [3, 4]

    def test_an_app_that_says_so_goes_on_whatever_the_fingerprint(self, container: ContainerClient) -> None:
        class Renamed(Lines):
            source_descriptor = SourceDescriptor(name="lines", kind="list", fingerprint="lines-2")

        for _ in range(2):
            store = BlobCheckpointStore(container_client=container, app_name="shop", carry_over=True)
            assert ticked(Renamed(4), store, normalizer=scalar, batch_size=1) in ([3], [4])
        other = BlobCheckpointStore(container_client=container, app_name="other", carry_over=True)
        assert ticked(Renamed(4), other, normalizer=scalar) == [1, 2, 3, 4]

    def test_an_app_may_leave_it_alone(self, container: ContainerClient) -> None:
        store = BlobCheckpointStore(container_client=container, app_name="shop", carry_over=False)
        assert ticked(Lines(4), store, normalizer=scalar) == [1, 2, 3, 4]

    def test_a_fingerprint_that_the_store_was_given_counts(self, container: ContainerClient) -> None:
        container.upload_blob("state/lines.json", json.dumps(OLD | {"source_fingerprint": "ours"}), overwrite=True)
        store = BlobCheckpointStore(container_client=container, app_name="shop", source_fingerprint="ours")
        assert ticked(Lines(4), store, normalizer=scalar) == [3, 4]
        assert store.load_checkpoint("lines")["cursor"]["value"] == 4

    def test_of_two_apps_at_the_same_moment_one_goes_on(self, container: ContainerClient) -> None:
        stores = [BlobCheckpointStore(container_client=container, app_name=name) for name in ("one", "two")]
        states = [store.look("lines", "lines-1") for store in stores]
        assert [state.checkpoint for state in states] == [OLD["checkpoint"]] * 2
        outcomes: list[str] = []
        turn = threading.Barrier(2)

        def take(number: int) -> None:
            turn.wait()
            try:
                stores[number].take(states[number], 60)
                outcomes.append("took it")
            except LeaseConflictError:
                outcomes.append("was too late")

        threads = [threading.Thread(target=take, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["took it", "was too late"]

    def test_a_crash_after_the_claim_changes_nothing(self, container: ContainerClient) -> None:
        container.get_blob_client("state/lines.json").set_blob_metadata({"carried_over_by": "shop"})
        shop, copy = (BlobCheckpointStore(container_client=container, app_name=name) for name in ("shop", "copy"))
        assert ticked(Lines(4), copy, normalizer=scalar) == [1, 2, 3, 4]
        assert ticked(Lines(4), shop, normalizer=scalar) == [3, 4]


class TestStatement16Migrate:
    @pytest.fixture
    def app(self, tmp_path: Path) -> Path:
        folder = tmp_path / "app"
        folder.mkdir()
        shutil.copy(APP / "function_app.py", folder)
        (folder / "requirements.txt").write_text("azure-functions\nazure-functions-db==0.8.3\n")
        (folder / "odd.py").write_text(
            "from azure_functions_db.core.config import gone\n"
            "from azure_functions_db.trigger import PollRunner\n"
            "raise SystemExit('whoever runs this app sees it')\n"
            "runner = PollRunner(name='x')\n"
        )
        return folder

    def azfdb(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.prefix) / "bin" / "azfdb"), "migrate", *arguments]
        environment = {**os.environ, "COLUMNS": "1000", **settings}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    def test_it_tells_line_by_line_what_an_app_would_have_to_change(self, app: Path) -> None:
        done = self.azfdb("--from-0.8", str(app), "--json")
        assert done.returncode == 1, done.stderr
        told = {
            (advice["file"], advice["line"], advice["grade"], advice["remedy"])
            for advice in json.loads(done.stdout)["advice"]
        }
        source = (app / "function_app.py").read_text().splitlines()
        retry = next(n for n, line in enumerate(source, 1) if "RetryPolicy(max" in line)
        types = next(n for n, line in enumerate(source, 1) if "cursor_types" in line)
        assert {
            ("function_app.py", retry, "warning", "max_attempts=3"),
            ("function_app.py", retry, "warning", "delay_seconds=0.01"),
            ("function_app.py", retry, "warning", "multiplier=2"),
            ("function_app.py", types, "warning", "leave it out"),
            ("odd.py", 1, "change", "see the names of azure_functions_db"),
            ("odd.py", 4, "change", "PollTrigger(…).run(timer=…, handler=…)"),
            ("requirements.txt", 2, "change", "azure-functions-db>=1"),
        } <= told
        assert not [advice for advice in told if advice[0] == "function_app.py" and advice[2] == "change"]

    def test_it_carries_the_checkpoints_of_0_8_over_after_a_dry_run(
        self, app: Path, release_0_8: str, settings: dict[str, str], sql: Sql, azurite: str, blob_container: str
    ) -> None:
        sql(settings["SHOP_DB"], SCHEMA)
        place_orders(sql, settings["SHOP_DB"], range(1, 6))
        run_in(release_0_8, settings)
        state = {"SHOP_STATE": azurite}
        command = ["--from-0.8", str(app / "function_app.py"), "--store", f"azureblob://SHOP_STATE/{blob_container}"]
        command += ["--app-name", "shop", "--backups", str(app / "backups")]
        with ContainerClient.from_connection_string(azurite, blob_container) as container:
            before = sorted(container.list_blob_names())
            assert before == ["state/keep_ledger.json", "state/orders.json"]
            dry = self.azfdb(*command, **state)
            assert dry.returncode == 0, dry.stderr
            assert "orders: ready" in dry.stdout
            assert "keep_journal: not carried over: Poller 'keep_journal' has no state of release 0.8" in dry.stdout
            assert sorted(container.list_blob_names()) == before
            unconfirmed = self.azfdb(*command, "--carry-over", **state)
            assert unconfirmed.returncode == 2
            assert sorted(container.list_blob_names()) == before
            done = self.azfdb(*command, "--carry-over", "--yes", "--json", **state)
            assert done.returncode == 0, done.stderr
            fates = {report["poller"]: report["fate"] for report in json.loads(done.stdout)["checkpoints"]}
            assert fates == {
                "orders": "carried over",
                "keep_journal": "not carried over",
                "keep_ledger": "carried over",
            }
            assert sorted(container.list_blob_names()) == [
                *before,
                "state/shop/keep_ledger.json",
                "state/shop/orders.json",
            ]
            store = BlobCheckpointStore(container_client=container, app_name="shop")
            assert store.load_checkpoint("orders")["cursor"][1] == 5
            again = self.azfdb(*command, "--carry-over", "--yes", **state)
            assert "has a state of its own" in again.stdout
            other = BlobCheckpointStore(container_client=container, app_name="other", carry_over=True)
            with pytest.raises(StateStoreError, match=r"no state of release 0\.8"):
                other.carry_over("orders")

    def test_it_finds_the_container_in_the_app_itself(self, app: Path, azurite: str, blob_container: str) -> None:
        (app / "function_app.py").write_text(
            "import os\n"
            "from azure.storage.blob import ContainerClient\n"
            "from azure_functions_db import BlobCheckpointStore, PollTrigger\n"
            f"client = ContainerClient.from_connection_string(os.environ['SHOP_STATE'], '{blob_container}')\n"
            "store = BlobCheckpointStore(container_client=client, source_fingerprint='x')\n"
            "NAME = 'lines'\n"
            "PollTrigger(name=NAME, source=None, checkpoint_store=store)\n"
        )
        with ContainerClient.from_connection_string(azurite, blob_container) as container:
            container.upload_blob("state/lines.json", json.dumps(OLD))
        command = ["--from-0.8", str(app / "function_app.py")]
        nameless = self.azfdb(*command, SHOP_STATE=azurite)
        assert (nameless.returncode, "--app-name" in nameless.stderr) == (3, True)
        done = self.azfdb(*command, "--app-name", "shop", SHOP_STATE=azurite)
        assert "lines: ready: goes on where release 0.8 stopped, from 2" in done.stdout, done.stderr

    def test_a_living_lease_of_0_8_is_waited_for(self, app: Path, azurite: str, blob_container: str) -> None:
        later = (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=60)).isoformat()
        alive = OLD | {"lease": OLD["lease"] | {"expires_at": later}}
        with ContainerClient.from_connection_string(azurite, blob_container) as container:
            container.upload_blob("state/lines.json", json.dumps(alive))
        command = ["--from-0.8", str(app), "--poller", "lines", "--app-name", "shop"]
        done = self.azfdb(*command, "--store", f"azureblob://SHOP_STATE/{blob_container}", SHOP_STATE=azurite)
        assert "lines: not carried over: The lease of poller 'lines' is held" in done.stdout


class TestStatement17Python314:
    def test_it_is_named_where_versions_are(self) -> None:
        project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
        assert "Programming Language :: Python :: 3.14" in project["classifiers"]

    def test_make_test_all_takes_it_where_it_is_found(self, tmp_path: Path) -> None:
        python = tmp_path / "python3.14"
        python.write_text("#!/bin/sh\nexit 0\n")  # whatever it is asked, it agrees
        python.chmod(0o755)
        environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
        found = subprocess.run(
            [CHECKOUT / "tools" / "find-pythons"], env=environment, capture_output=True, text=True, check=True
        )
        assert str(python) in found.stdout.splitlines()
