"""Log records as people and machines get them."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest

from azure_functions_db.cli.run import JsonLines, Lines
from azure_functions_db.core.errors import FetchError, HandlerError
from azure_functions_db.core.types import NullCursors


def record(message: str = "told", raising: BaseException | None = None, **extra: Any) -> logging.LogRecord:
    made = logging.makeLogRecord({"msg": message, "levelno": logging.ERROR, "levelname": "ERROR", **extra})
    made.exc_info = None if raising is None else (type(raising), raising, raising.__traceback__)
    return made


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except type(error) as caught:
        return caught


@pytest.mark.parametrize(
    "extra",
    [
        {"error": 'password="hush'},
        {"error": "token=hush"},
        {"settings": {"password": "hush", "host": "db"}},
        {"password": "hush"},
        {"urls": ["postgresql://me:hush@db/shop", "plain"]},
    ],
)
def test_a_masked_record_is_still_json(extra: dict[str, Any]) -> None:
    line = JsonLines().format(record("with AccountKey=hush", **extra, after="kept"))
    told = json.loads(line)
    assert "hush" not in line
    assert told["after"] == "kept"


def test_what_the_app_raised_is_shown_without_the_library_around_it() -> None:
    failure = raised(ValueError("cannot digest 2"))
    told = Lines(coloured=False).format(record("handler_failed", raised(HandlerError("The handler failed"), failure)))
    assert told.count("Traceback") == 1
    assert told.endswith("ValueError: cannot digest 2")


def test_what_led_to_it_in_the_app_is_shown_and_what_the_library_was_about_is_not() -> None:
    earlier = raised(KeyError("postcode"), raised(HandlerError("an attempt before"), None))
    failure = raised(ValueError("cannot digest 2"), earlier)
    told = Lines(coloured=False).format(record(raising=raised(HandlerError("again"), failure)))
    assert told.index("KeyError: 'postcode'") < told.index("which led to") < told.index("ValueError: cannot digest 2")
    assert "an attempt before" not in told


STEERING = "\x1b[2J\x07\x9b31m\u202etxt.exe\u2066\r\x7f"


def test_no_record_can_steer_a_terminal_or_pose_as_another() -> None:
    forged = f"cannot digest {STEERING}\n12:00:00 info    all is well"
    error = raised(HandlerError("The handler failed"), raised(ValueError(forged)))
    for line in (
        Lines(coloured=False).format(record(forged, error, poller_name=forged)),
        Lines(coloured=False, verbose=True).format(record(forged, error)),
    ):
        first, *others = line.split("\n")
        assert all(part.isprintable() for part in (first, *others))
        assert "\\x1b[2J\\x07\\x9b31m\\u202etxt.exe\\u2066\\r\\x7f" in first
        assert others
        assert all(part.startswith("    ") for part in others)
    line = JsonLines().format(record(forged, error, poller_name=forged))
    assert line.isprintable()
    assert line.isascii()
    assert json.loads(line)["poller_name"] == forged


def test_no_traceback_shows_a_secret_of_what_led_to_it() -> None:
    cause = raised(ConnectionError("mysql://ann:" + "hush@host"))
    error = raised(HandlerError("The handler failed"), raised(ValueError("cannot digest 2"), cause))
    for form in (JsonLines(), Lines(coloured=False), Lines(coloured=False, verbose=True)):
        line = form.format(record("handler_failed", error))
        assert "mysql://ann:***@host" in line
        assert "hush" not in line


def test_a_line_with_a_secret_is_named_but_not_shown() -> None:
    failure = raised(ValueError("no order"))
    try:
        raise ValueError("password=hush")  # noqa: TRY301 - the line is what matters
    except ValueError as caught:
        failure = caught
    told = Lines(coloured=False).format(record(raising=raised(HandlerError("The handler failed"), failure)))
    assert "hush" not in told
    assert re.search(r'ValueError: password=\*\*\*\n +File ".*test_logs.py", line \d+: a secret is written into', told)


def test_what_a_source_warns_of_is_told() -> None:
    told = Lines(coloured=False).format(record("null_cursor_rows", **NullCursors(2).log_fields()))
    assert told.endswith("null_cursor_rows  2 row(s) are never delivered, because their cursor is NULL: fill it in")


def test_a_line_tells_that_a_step_is_tried_again() -> None:
    told = Lines(coloured=False).format(record("fetch_failed", error_type="OperationalError", delay_seconds=0.2134))
    assert told.endswith("fetch_failed  OperationalError  tried again in 0.2 s")


def test_the_library_s_own_errors_are_a_line() -> None:
    error = raised(FetchError("The database cannot be reached"), raised(OSError("a long story")))
    assert "\n" not in Lines(coloured=False).format(record("orders failed", error))
    assert "a long story" in Lines(coloured=False, verbose=True).format(record("orders failed", error))


def test_the_same_traceback_is_shown_once_a_tick() -> None:
    lines, error = Lines(coloured=False), raised(ValueError("cannot digest 2"))
    shown = [lines.format(record(raising=error, invocation_id=tick)) for tick in ("first", "first", "second")]
    assert ["Traceback" in line for line in shown] == [True, False, True]
