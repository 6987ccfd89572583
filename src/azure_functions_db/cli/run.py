"""`azfdb run`: a function app's timers on this machine, without the Functions host, and how its log looks."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import sys
import sysconfig
import traceback
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from azure_functions_db.cli.drawing import holders, shown
from azure_functions_db.cli.options import AppPlace, Exit
from azure_functions_db.core.errors import DbError, HandlerError, PollerError, app_frames, masked_error, traceback_text
from azure_functions_db.core.secrets import masked_value
from azure_functions_db.core.serializers import json_safe
from azure_functions_db.core.types import Horizon, HorizonHolder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from azure_functions_db.operations.pollers import App
    from azure_functions_db.operations.run import Scheduler


def run(
    place: Annotated[
        str | None, typer.Argument(metavar="APP", help="Directory of the function app, or its function_app.py.")
    ] = None,
    app: AppPlace = None,
    once: Annotated[str | None, typer.Option(help="Call this function once and end.", metavar="NAME")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log one JSON object per line.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens inside, too.")] = False,
) -> None:
    """Run an app's timer functions on their schedules; Ctrl-C ends it.

    Schedules are read in UTC. Settings come from the environment, then from local.settings.json.
    Exit code 0 after Ctrl-C or a successful --once, 1 when that call failed, 3 when the app cannot run.
    """
    import asyncio

    from azure_functions_db.azure import hurried
    from azure_functions_db.cli.apps import load_app
    from azure_functions_db.operations.run import check_stores, run_once

    if place is not None and app not in {None, place, os.environ.get("AZFDB_APP")}:
        raise typer.BadParameter("give the app once: as an argument or as --app")
    set_up_logs(as_json=as_json, verbose=verbose)
    loaded = load_app(place or app or ".")
    check_stores(loaded)
    with hurried(hurry=False):  # its functions wait for the storage as they do in the host
        succeeded = asyncio.run(run_once(loaded, once) if once else _run_until_signalled(loaded))
    raise typer.Exit(Exit.OK if succeeded else Exit.FAILED)


async def _run_until_signalled(app: App) -> bool:
    from azure_functions_db.operations.run import scheduler_of

    log, scheduler = logging.getLogger("azfdb"), scheduler_of(app)
    _end_on_signals(scheduler, log)
    log.info("running %s; Ctrl-C ends it", ", ".join(scheduler.names), extra={"functions": scheduler.names})
    await scheduler.run()
    log.info("ended")
    return True


def _end_on_signals(scheduler: Scheduler, log: logging.Logger) -> None:
    """Let the first signal end it after the running ticks, the second at once."""
    import asyncio
    import signal

    asked = 0

    def end() -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            os._exit(Exit.INTERRUPTED)  # threads cannot be stopped; their leases expire
        scheduler.stop()
        if scheduler.running:
            log.info("waiting for %d running function(s); Ctrl-C again abandons them", scheduler.running)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # The loop's own way of handling signals does not exist on Windows.
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(end))


_LIBRARY = str(Path(__file__).parents[1])
_OTHERS = (_LIBRARY, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")))
_BUILT_IN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS = {logging.WARNING: "\033[33m", logging.ERROR: "\033[31m", logging.CRITICAL: "\033[31m"}
_SHOWN = {
    "poller_name": "{}",
    "fetched_count": "{} rows",
    "lag_seconds": "lag {:.1f} s",
    "duration_ms": "{:.0f} ms",
    "event_id": "{:.12}",
    "error_type": "{}",
    "error_code": "[{}]",
    "delay_seconds": "tried again in {:.1f} s",
    "paused_by": "by {}",
    "paused_why": "{}",
    "warning": "{}",
}


@dataclass(frozen=True, slots=True)
class LogLine:
    """A record of the log; its fields stand beside these, and the traceback of what failed."""

    time: str
    level: str
    logger: str
    message: str


class JsonLines(logging.Formatter):
    """One JSON object for each record, with all its fields."""

    def format(self, record: logging.LogRecord) -> str:
        moment = dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds")
        line = LogLine(moment, record.levelname.lower(), record.name, record.getMessage())
        told = {**asdict(line), **extra_of(record)}
        if record.exc_info and record.exc_info[1] is not None:
            told["traceback"] = traceback_text(record.exc_info[1])
        # Masked value by value: in the finished line a mask could swallow a quotation mark or a brace.
        safe = {name: masked_value(name, value) for name, value in json_safe(told).items()}
        return json.dumps(safe)


class Lines(logging.Formatter):
    """A line that a person can read at a glance, and where an app's own code failed, its traceback."""

    def __init__(self, *, coloured: bool, verbose: bool = False) -> None:
        super().__init__()
        self._coloured = coloured
        self._verbose = verbose
        self._told: deque[tuple[object, str]] = deque(maxlen=100)

    def format(self, record: logging.LogRecord) -> str:
        moment = dt.datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        extra = extra_of(record)
        details = "".join("  " + form.format(extra[name]) for name, form in _SHOWN.items() if name in extra)
        details += _held_back(extra)
        line = f"{moment} {record.levelname.lower():<7} {record.getMessage()}{details}"
        if record.exc_info and record.exc_info[1] is not None:
            line += self._traceback(masked_error(record.exc_info[1]), extra.get("invocation_id"))
        # Only the first line is not set in: nothing in a message can pose as a record of its own.
        return self._painted(shown(line, lines=True).replace("\n", "\n    "), record.levelno)

    def _traceback(self, error: BaseException, tick: object) -> str:
        """Return a failure's traceback; the search for a bad row meets the same one again and again."""
        told = "".join(traceback.format_exception(error)) if self._verbose else _own_traceback(error)
        if not told or (tick, told) in self._told:
            return ""
        self._told.append((tick, told))
        return "\n" + told.rstrip()

    def _painted(self, line: str, level: int) -> str:
        colour = _COLOURS.get(level) if self._coloured else None
        return f"{colour}{line}\033[0m" if colour else line


def _held_back(extra: Mapping[str, Any]) -> str:
    """Return who keeps late commits from being read."""
    if "horizon_age_seconds" not in extra:
        return ""
    who = tuple(HorizonHolder(**holder) for holder in extra.get("holders", ()))
    return f"  held back by {holders(Horizon(None, extra['horizon_age_seconds'], who))}"


def _own_traceback(error: BaseException) -> str:
    """Return the traceback of what the app's code raised; the library's own errors are clear without one."""
    match error:
        case HandlerError(__cause__=BaseException() as failure):
            return _app_traceback(failure)
        case DbError():
            return ""
        case _:
            return _app_traceback(error)


def _app_traceback(failure: BaseException) -> str:
    if isinstance(failure, DbError):
        frames = _calling_frames(failure)
        return "".join(traceback.format_exception(type(failure), failure, frames, chain=False)) if frames else ""
    origin = failure.__cause__ or (None if failure.__suppress_context__ else failure.__context__)
    # A poller's error there is only what the library was about when it called the app once more.
    before = "" if origin is None or isinstance(origin, PollerError) else f"{_app_traceback(origin)}\nwhich led to\n\n"
    frames = app_frames(failure.__traceback__)
    return before + "".join(traceback.format_exception(type(failure), failure, frames, chain=False))


def _calling_frames(failure: DbError) -> TracebackType | None:
    """Return the app's own frames that led into the library, whose errors are clear without the rest."""
    frames: list[TracebackType] = []
    inner = failure.__traceback__
    while inner is not None:
        frames += [] if inner.tb_frame.f_code.co_filename.startswith(_OTHERS) else [inner]
        inner = inner.tb_next
    chain: TracebackType | None = None
    for frame in reversed(frames):
        chain = TracebackType(chain, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return chain


def extra_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that were logged beside the message."""
    return {name: value for name, value in vars(record).items() if name not in _BUILT_IN and value is not None}


def is_news(record: logging.LogRecord) -> bool:
    """Tell whether a person wants to read the record: not of ticks that found nothing."""
    event, result = (getattr(record, field, None) for field in ("event", "result"))
    return event != "tick_start" and not (event == "tick_complete" and result in {"empty", "paused"})


def set_up_logs(*, as_json: bool, verbose: bool) -> None:
    """Send every log record to standard error, in the form that is wanted."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else Lines(coloured=sys.stderr.isatty(), verbose=verbose))
    if not verbose and not as_json:
        handler.addFilter(is_news)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("azfdb", "azure_functions_db"):
        logging.getLogger(name).setLevel(logging.DEBUG if verbose else logging.INFO)
