"""An operator's look at a source with one reader, while that one reads."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import azure.functions as func
from typer.testing import CliRunner

from azure_functions_db import DbBindings, MemoryStateStore
from azure_functions_db.cli.main import app as azfdb
from azure_functions_db.operations.doctor import examine
from azure_functions_db.operations.pollers import Pollers, app_of
from azure_functions_db.operations.reset import to_cursor
from azure_functions_db.operations.status import status_of, tail
from azure_functions_db.testing.stream import MemoryLog, MemoryStreamReader, MemoryStreamSource

if TYPE_CHECKING:
    import pytest

    from azure_functions_db.core.types import CheckpointJson, FetchResult

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


class Watched(MemoryStreamSource):
    """Notes who opened, read or acknowledged what."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.acts: list[str] = []

    def open(self) -> WatchedReader:
        self.acts.append("open")
        return WatchedReader(self._log, self.acts)


class WatchedReader(MemoryStreamReader):
    """Notes what is read and acknowledged."""

    def __init__(self, log: MemoryLog, acts: list[str]) -> None:
        super().__init__(log, whole=False)
        self._acts = acts

    def close(self) -> None:
        self._acts.append("close")
        super().close()

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        self._acts.append("fetch")
        return super().fetch_changes(checkpoint, limit)

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        self._acts.append("acknowledge")
        super().acknowledge(checkpoint)


class Silent(Watched):
    """Cannot even count."""

    backlog = None  # type: ignore[assignment]  # as if it had none


def shop(source: Any, handler: Any) -> tuple[func.FunctionApp, Any]:
    app, db = func.FunctionApp(), DbBindings()

    @app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")
    @db.trigger(arg_name="events", name="orders", source=source, checkpoint_store=MemoryStateStore(), batch_size=2)
    def on_orders(timer: func.TimerRequest, events: Sequence[Any]) -> None:
        handler(events)

    return app, on_orders


def filled_log() -> MemoryLog:
    log = MemoryLog()
    for key in range(1, 6):
        log.commit((key, {"id": key}))
    return log


def test_looking_while_the_poller_reads_disturbs_nothing() -> None:
    log = filled_log()
    source, delivered, looks = Watched(log), list[int](), list[Any]()

    def handle(events: Sequence[Any]) -> None:
        before, reader = list(source.acts), log.reader
        [poller] = Pollers.of_app(app_of(app)).all()
        [shown] = status_of([poller], NOW).pollers
        looks.append((shown.waiting_rows, shown.waiting_unit, shown.problems, tail(poller)))
        assert "error" not in examine([poller]).grades
        assert (source.acts, log.reader) == (before, reader), "nobody but the poller has touched the source"
        delivered.extend(event.pk["id"] for event in events)

    app, on_orders = shop(source, handle)
    for _ in range(3):
        _run(app)

    assert delivered == [1, 2, 3, 4, 5]
    assert [(rows, unit, problems) for rows, unit, problems, _ in looks] == [
        (5, "changes", []),
        (3, "changes", []),
        (1, "changes", []),
    ]
    seen = looks[0][3]
    assert (seen.events, seen.more, seen.backlog.amount, seen.has_one_reader) == ([], True, 5, True)
    assert on_orders is not None


def _run(app: func.FunctionApp) -> None:
    [poller] = Pollers.of_app(app_of(app)).all()
    poller.defined.function.call(timer=None)


def test_a_lost_position_is_a_problem_that_status_names() -> None:
    log = filled_log()
    app, _ = shop(MemoryStreamSource(log), lambda _events: None)
    _run(app)
    log.forget()
    [poller] = Pollers.of_app(app_of(app)).all()
    status = status_of([poller], NOW)
    assert status.has_problems
    assert [problem for problem in status.pollers[0].problems if "The log begins at transaction" in problem]


def test_a_source_with_one_reader_that_cannot_count_is_left_alone() -> None:
    source = Silent(filled_log())
    app, _ = shop(source, lambda _events: None)
    [poller] = Pollers.of_app(app_of(app)).all()
    [shown] = status_of([poller], NOW).pollers
    assert (shown.waiting_rows, shown.problems) == (None, [])
    assert (tail(poller).backlog, tail(poller).more) == (None, True)
    assert source.acts == []


def test_a_reset_of_such_a_source_reads_nothing() -> None:
    source = Watched(filled_log())
    app, _ = shop(source, lambda _events: None)
    [poller] = Pollers.of_app(app_of(app)).all()
    to_cursor(poller, "2:1", kind="text", pk=("id=2",)).dry_run()
    assert source.acts == []


def test_the_command_line_against_a_log_that_somebody_else_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "streaming_app.py").write_text(
        "import azure.functions as func\n"
        "from azure_functions_db import DbBindings, FileStateStore\n"
        "from azure_functions_db.testing.stream import MemoryLog, MemoryStreamSource\n"
        "app, db, log = func.FunctionApp(), DbBindings(), MemoryLog()\n"
        "log.commit((1, {'id': 1}), (2, {'id': 2}))\n"
        "log.reader = object()\n"
        "@app.timer_trigger(schedule='*/10 * * * * *', arg_name='timer')\n"
        "@db.trigger(arg_name='events', name='orders', source=MemoryStreamSource(log),\n"
        "            checkpoint_store=FileStateStore('state'))\n"
        "def on_orders(timer: func.TimerRequest, events) -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    runner, place = CliRunner(), ["--app", "streaming_app.py"]

    status = runner.invoke(azfdb, ["status", "--json", *place])
    assert status.exit_code == 0, status.output
    assert json.loads(status.stdout)["pollers"][0]["waiting_rows"] == 2
    assert "2 changes" in runner.invoke(azfdb, ["status", *place]).stdout
    shown = runner.invoke(azfdb, ["tail", "orders", *place])
    assert shown.stdout == "orders: 2 changes wait; only the poller itself may read this source.\n"
    assert runner.invoke(azfdb, ["doctor", *place]).exit_code == 0


def test_the_pollers_of_this_process_are_found_without_importing_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Watched(filled_log())
    module = ModuleType("function_app")
    module.app, _ = shop(source, lambda _events: None)  # type: ignore[attr-defined]  # as an app's module has it
    monkeypatch.setitem(sys.modules, "function_app", module)
    for _ in range(2):
        assert Pollers.in_process().one("orders").store is not None
    assert len(module.app.get_functions()) == 1, "the host can still read the app"
