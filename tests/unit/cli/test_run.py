"""`azfdb run`, in a process of its own as a user has it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from azure_functions_db import FileStateStore

AZFDB = Path(sys.prefix) / "bin" / "azfdb"

APP = """
from __future__ import annotations
import asyncio, os, pathlib, threading, time
import azure.functions as func

app = func.FunctionApp()

def note(text):
    with open("ran.txt", "a") as out:
        out.write(text + "\\n")

@app.timer_trigger(schedule="%PACE%", arg_name="timer")
def quick(timer: func.TimerRequest, context: func.Context) -> None:
    note(f"quick in {threading.current_thread().name} of {pathlib.Path(context.function_directory).name}")

@app.function_name("renamed")
@app.timer_trigger(schedule="*/1 * * * * *", arg_name="timer")
async def on_the_loop(timer: func.TimerRequest) -> None:
    asyncio.get_running_loop()
    note(f"renamed past_due={timer.past_due}")

@app.timer_trigger(schedule="0 0 0 1 1 *", arg_name="timer", run_on_startup=True)
def yearly(timer: func.TimerRequest) -> None:
    note(f"yearly past_due={timer.past_due} last={timer.schedule_status.get('Last', 'never')}")

@app.timer_trigger(schedule="0 0 0 1 * *", arg_name="timer")
def monthly(timer: func.TimerRequest) -> None:
    note(f"monthly past_due={timer.past_due} last={timer.schedule_status['Last']}")

@app.timer_trigger(schedule="0 0 0 1 * *", arg_name="timer", use_monitor=False)
def unmonitored(timer: func.TimerRequest) -> None:
    note("unmonitored")

@app.timer_trigger(schedule="0 0 0 1 1 *", arg_name="timer")
def broken(timer: func.TimerRequest) -> None:
    raise ValueError("postgresql://scott:tiger@db/shop is down")

@app.route(route="ignored")
def web(req: func.HttpRequest) -> str:
    return ""
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "function_app.py").write_text(APP)
    (folder / "local.settings.json").write_text('{"Values": {"PACE": "00:00:01"}}')
    return folder


def azfdb(*arguments: object, settings: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **(settings or {})}
    command = [str(AZFDB), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


def ran(app: Path) -> list[str]:
    path = app / "ran.txt"
    return path.read_text().splitlines() if path.exists() else []


class Running:
    """`azfdb run` until a line was logged, then a signal."""

    def __init__(self, app: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [str(AZFDB), "run", str(app), "--json", "--verbose", *options], stderr=subprocess.PIPE, text=True
        )
        self.records: list[dict[str, Any]] = []

    def until(self, message: str) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.records.append(json.loads(line))
            if message in self.records[-1]["message"]:
                return
        pytest.fail(f"it ended without saying {message!r}: {self.records}")

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        _, rest = self.process.communicate(timeout=60)
        self.records += [json.loads(line) for line in rest.splitlines()]
        return self.process.returncode


def test_timers_run_on_their_schedules_sync_in_threads_async_on_the_loop(app: Path) -> None:
    running = Running(app)
    running.until("renamed done")
    running.until("quick done")
    assert running.end() == 0
    assert any(line.startswith("quick in azfdb-timer") and line.endswith("of shop") for line in ran(app))
    assert "renamed past_due=False" in ran(app)
    assert "yearly past_due=False last=never" in ran(app)
    assert running.records[-1]["message"] == "ended"


def test_once_calls_one_function_and_ends(app: Path) -> None:
    done = azfdb("run", app, "--once", "quick")
    assert (done.returncode, len(ran(app))) == (0, 1)


def test_once_tells_of_a_failure_by_its_exit_code_and_shows_no_password(app: Path) -> None:
    failed = azfdb("run", app, "--once", "broken")
    assert failed.returncode == 1
    assert "broken failed: postgresql://scott:***@db/shop is down" in failed.stderr
    assert "tiger" not in failed.stderr


def test_an_unknown_function_is_answered_with_the_known_ones(app: Path) -> None:
    refused = azfdb("run", app, "--once", "web")
    assert refused.returncode == 3
    assert "no timer function 'web'; it has: quick, renamed, yearly, monthly, unmonitored, broken" in refused.stderr


def test_a_setting_that_is_missing_is_named(app: Path) -> None:
    (app / "local.settings.json").unlink()
    refused = azfdb("run", app)
    assert refused.returncode == 3
    assert "PACE" in refused.stderr


def test_the_environment_wins_over_local_settings(app: Path) -> None:
    refused = azfdb("run", app, settings={"PACE": "never"})
    assert refused.returncode == 3
    assert "'never' is neither an NCRONTAB expression" in refused.stderr


def test_a_tick_missed_while_nothing_ran_is_made_up_for_when_the_timer_is_monitored(app: Path) -> None:
    folder = app / ".azfdb" / "timers"
    folder.mkdir(parents=True)
    missed = {"Last": "2025-01-01T00:00:00+00:00", "Next": "2026-01-01T00:00:00+00:00", "LastUpdated": ""}
    for name in ("monthly", "unmonitored"):
        (folder / f"{name}.json").write_text(json.dumps(missed))
    running = Running(app)
    running.until("monthly done")
    running.end(signal.SIGTERM)
    assert "monthly past_due=True last=2025-01-01T00:00:00+00:00" in ran(app)
    assert "unmonitored" not in ran(app)
    assert json.loads((folder / "monthly.json").read_text())["Next"] > "2026-11"


def test_a_signal_lets_the_running_function_finish(app: Path) -> None:
    slow = APP + (
        "\n@app.timer_trigger(schedule='*/1 * * * * *', arg_name='timer')\n"
        "def slow(timer: func.TimerRequest) -> None:\n"
        "    import logging\n"
        "    logging.getLogger('azfdb').info('slow began')\n"
        "    while not os.path.exists('go'): time.sleep(0.01)\n"
        "    note('slow ended')\n"
    )
    (app / "function_app.py").write_text(slow)
    running = Running(app)
    running.until("slow began")
    running.process.send_signal(signal.SIGINT)
    running.until("waiting for")
    (app / "go").touch()
    assert running.wait() == 0
    assert "slow ended" in ran(app)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "There is no function app at"),
        ("x = 1", "defines no function app"),
        ("import nowhere_at_all", "cannot be imported: ModuleNotFoundError"),
        ("import azure.functions as func\napp = func.FunctionApp()", "no timer functions"),
    ],
)
def test_what_is_no_app_is_explained(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "function_app.py").write_text(content)
    refused = azfdb("run", tmp_path)
    assert refused.returncode == 3
    assert message in refused.stderr


def test_a_timer_with_a_binding_of_the_host_is_refused(tmp_path: Path) -> None:
    (tmp_path / "function_app.py").write_text(
        "import azure.functions as func\napp = func.FunctionApp()\n"
        "@app.timer_trigger(schedule='00:00:01', arg_name='t')\n"
        "@app.blob_input(arg_name='q', path='x', connection='c')\n"
        "def f(t: func.TimerRequest, q: str) -> None: ..."
    )
    refused = azfdb("run", tmp_path)
    assert (refused.returncode, "only the Functions host can serve: blob 'q'" in refused.stderr) == (3, True)


@pytest.mark.parametrize(
    ("output", "function"),
    [
        ("arg_name='q'", "def f(t: func.TimerRequest, q: func.Out[str]) -> None:\n    q.set('x'); print(q.get())"),
        ("arg_name='$return'", "def f(t: func.TimerRequest) -> str:\n    print('x'); return 'x'"),
    ],
)
def test_an_output_of_the_host_is_warned_of_and_written_nowhere(tmp_path: Path, output: str, function: str) -> None:
    (tmp_path / "function_app.py").write_text(
        "import azure.functions as func\napp = func.FunctionApp()\n"
        "@app.timer_trigger(schedule='00:00:01', arg_name='t')\n"
        f"@app.queue_output({output}, queue_name='x', connection='c')\n{function}\n"
    )
    ran = azfdb("run", tmp_path, "--once", "f")
    assert (ran.returncode, ran.stdout) == (0, "x\n")
    assert ran.stderr.count("which only the host writes") == 1


def test_errors_are_json_for_machines(tmp_path: Path) -> None:
    refused = azfdb("run", tmp_path, "--json")
    assert json.loads(refused.stderr)["error_type"] == "ConfigurationError"


def test_help_imports_neither_sqlalchemy_nor_azure_nor_rich() -> None:
    heavy = "import sys; from azure_functions_db.cli.main import app; app(['--help'], standalone_mode=False);"
    told = "print([m for m in ('sqlalchemy', 'azure', 'rich', 'pydantic', 'asyncio') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", heavy + told], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "[]"


POLLER = """
import logging, os, time
import azure.functions as func
from azure_functions_db import DbBindings, FileStateStore, SqlAlchemySource

app, db = func.FunctionApp(), DbBindings()
orders = SqlAlchemySource(url="sqlite:///shop.db", table="orders", cursor_column="id", pk_columns=["id"])

@app.timer_trigger(schedule="00:00:01", arg_name="timer")
@db.trigger(arg_name="events", source=orders, checkpoint_store=FileStateStore("state"))
def changed(timer: func.TimerRequest, events) -> None:
    logging.getLogger("azfdb").info("in the handler")
    while not os.path.exists("go"):
        time.sleep(0.01)
"""


@pytest.fixture
def busy(tmp_path: Path) -> Running:
    """A poll function in the middle of its handler, which ends when there is a file named ``go``."""
    (tmp_path / "function_app.py").write_text(POLLER)
    shop = sqlite3.connect(tmp_path / "shop.db")
    with shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        shop.execute("INSERT INTO orders VALUES (7)")
    shop.close()
    running = Running(tmp_path)
    running.until("in the handler")
    running.process.send_signal(signal.SIGINT)
    running.until("waiting for")
    return running


def test_a_failing_poller_tells_its_traceback_once(tmp_path: Path) -> None:
    (tmp_path / "function_app.py").write_text(POLLER.replace("while not", "raise ValueError('bad')\n    while not"))
    with sqlite3.connect(tmp_path / "shop.db") as shop:
        shop.executescript("CREATE TABLE orders (id INTEGER PRIMARY KEY); INSERT INTO orders VALUES (7);")
    shop.close()
    failed = azfdb("run", tmp_path, "--once", "changed")
    assert failed.returncode == 1
    assert failed.stderr.count("Traceback") == 1
    assert failed.stderr.count("  File ") == 1, "the app's own frame"
    assert failed.stderr.rstrip().splitlines()[-1].endswith("HandlerError  [AZFDB-504]")
    assert "changed failed: The handler failed: ValueError: bad" in failed.stderr


@pytest.mark.parametrize("partitions", [1, 2])
def test_ctrl_c_ends_a_function_that_lingers(tmp_path: Path, partitions: int) -> None:
    options = f"linger_seconds=600, partitions={partitions}, checkpoint_store="
    app = POLLER.replace("while not", "return\n    while not").replace("checkpoint_store=", options)
    (tmp_path / "function_app.py").write_text(app)
    with sqlite3.connect(tmp_path / "shop.db") as shop:
        shop.executescript("CREATE TABLE orders (id INTEGER PRIMARY KEY); INSERT INTO orders VALUES (7);")
    shop.close()
    running = Running(tmp_path)
    running.until("batch_complete")
    assert running.end() == 0
    store = FileStateStore(tmp_path / "state")
    assert {store.look(name).lease for name in store.poller_names()} == {None}


def test_ctrl_c_leaves_a_committed_checkpoint_and_a_free_lease(busy: Running, tmp_path: Path) -> None:
    assert FileStateStore(tmp_path / "state").look("changed").lease is not None
    (tmp_path / "go").touch()
    assert busy.wait() == 0
    left = FileStateStore(tmp_path / "state").look("changed")
    assert left.lease is None
    assert left.checkpoint["cursor"]["value"] == 7


def test_a_second_ctrl_c_ends_at_once_and_commits_nothing(busy: Running, tmp_path: Path) -> None:
    assert busy.end() == 130
    assert FileStateStore(tmp_path / "state").look("changed").checkpoint == {}
