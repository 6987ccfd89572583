"""How log records look on a terminal and to a machine."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
import traceback
from typing import Any

from azure_functions_db.core.secrets import masked
from azure_functions_db.core.serializers import json_safe

_BUILT_IN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS = {logging.WARNING: "\033[33m", logging.ERROR: "\033[31m", logging.CRITICAL: "\033[31m"}
_SHOWN = {
    "poller_name": "{}",
    "fetched_count": "{} rows",
    "lag_seconds": "lag {:.1f} s",
    "duration_ms": "{:.0f} ms",
    "error_type": "{}",
}


class JsonLines(logging.Formatter):
    """One JSON object for each record, with all its fields."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **extra_of(record),
        }
        if record.exc_info:
            told["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return masked(json.dumps(json_safe(told), ensure_ascii=False))


class Lines(logging.Formatter):
    """A line that a person can read at a glance, and a traceback where something failed."""

    def __init__(self, *, coloured: bool) -> None:
        super().__init__()
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        moment = dt.datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        extra = extra_of(record)
        details = "".join("  " + form.format(extra[name]) for name, form in _SHOWN.items() if name in extra)
        line = f"{moment} {record.levelname.lower():<7} {record.getMessage()}{details}"
        if record.exc_info:
            line += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        return masked(self._painted(line, record.levelno))

    def _painted(self, line: str, level: int) -> str:
        colour = _COLOURS.get(level) if self._coloured else None
        return f"{colour}{line}\033[0m" if colour else line


def extra_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that were logged beside the message."""
    return {name: value for name, value in vars(record).items() if name not in _BUILT_IN and value is not None}


def is_news(record: logging.LogRecord) -> bool:
    """Tell whether a person wants to read the record: not of ticks that found nothing."""
    event, result = (getattr(record, field, None) for field in ("event", "result"))
    return event != "tick_start" and (event, result) != ("tick_complete", "empty")


def set_up_logs(*, as_json: bool, verbose: bool) -> None:
    """Send every log record to standard error, in the form that is wanted."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else Lines(coloured=sys.stderr.isatty()))
    if not verbose and not as_json:
        handler.addFilter(is_news)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("azfdb", "azure_functions_db"):
        logging.getLogger(name).setLevel(logging.DEBUG if verbose else logging.INFO)
