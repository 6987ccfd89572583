"""Exceptions as they may leave the process: whatever renders them, no secret is in what it writes."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import pytest

from azure_functions_db.core.errors import (
    DbConnectionError,
    HandlerError,
    LeaseConflictError,
    StateStoreError,
    masked_error,
    traceback_text,
)
from tests.support.told import whole_story

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = "hunter-2"
URL = "postgresql://ann:" + SECRET + "@host/db"
DEEP = 200


def raised(make: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        make()
    return caught.value


def fail_to_connect() -> None:
    raise ValueError(URL)


def with_cause() -> None:
    try:
        fail_to_connect()
    except ValueError as error:
        raise RuntimeError("no stock") from error


def with_context() -> None:
    try:
        fail_to_connect()
    except ValueError:
        raise RuntimeError("no stock")  # noqa: B904 - what happens to those who forget


def with_suppressed_context() -> None:
    try:
        fail_to_connect()
    except ValueError:
        raise RuntimeError("no stock") from None


def with_note() -> None:
    error = RuntimeError("no stock")
    error.add_note(f"tried {URL}")
    raise error


def with_group() -> None:
    raise ExceptionGroup("no stock", [ValueError(URL), ExceptionGroup("inner", [OSError(2, URL)])])


def with_source_line() -> None:
    raise RuntimeError("no stock", "postgresql://ann:hunter-2@host/db")


def with_named_literal() -> None:
    {"password": "hunter-2"}.pop("no stock")


def with_repeating_cause() -> None:
    error = RuntimeError(URL)
    error.__cause__ = other = ValueError("no stock")
    other.__cause__ = error
    raise error


def with_a_long_chain() -> None:
    error: Exception = ValueError(URL)
    for number in range(DEEP):
        error.__cause__, error = None, _led_to(error, number)
    error.add_note("no stock")
    raise error


def _led_to(cause: Exception, number: int) -> Exception:
    error = RuntimeError(f"{number} {URL}")
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    "make",
    [
        with_cause,
        with_context,
        with_suppressed_context,
        with_note,
        with_group,
        with_source_line,
        with_named_literal,
        with_repeating_cause,
        with_a_long_chain,
    ],
)
def test_no_part_of_a_chain_shows_a_secret(make: Callable[[], object]) -> None:
    error = raised(make)
    copy = masked_error(error)
    printed = "".join(traceback.format_exception(copy))
    assert SECRET in "".join(traceback.format_exception(error)) or make is with_suppressed_context
    assert SECRET not in printed + traceback_text(error)
    assert "no stock" in printed
    if make is not with_repeating_cause:
        assert SECRET not in whole_story(copy)


def test_what_is_no_secret_is_printed_as_ever() -> None:
    error = raised(with_cause)
    printed = traceback_text(error)
    assert printed == "".join(traceback.format_exception(error)).replace(SECRET, "***")
    assert "raise ValueError(URL)" in printed


def test_a_line_that_only_names_a_password_stays() -> None:
    def connect(password: str) -> None:
        raise RuntimeError("no route")

    def open_up() -> None:
        hush = SECRET
        connect(password=hush)

    assert "connect(password=hush)" in "".join(traceback.format_exception(masked_error(raised(open_up))))


def test_the_library_s_own_errors_keep_their_class_and_fields() -> None:
    cause = raised(with_cause)
    error = LeaseConflictError(f"held, see {URL}", owner_id="other")
    error.__cause__ = cause
    copy = masked_error(error)
    assert isinstance(copy, LeaseConflictError)
    assert copy.owner_id == "other"
    assert type(copy.__cause__).__name__ == "RuntimeError"
    for kind in (DbConnectionError, HandlerError, StateStoreError):
        assert str(masked_error(kind("told"))) == "told"


def test_an_error_that_cannot_say_why_is_told_all_the_same() -> None:
    class Mute(Exception):  # noqa: N818 - a name like any other
        def __str__(self) -> str:
            raise RuntimeError("I am mute")

    assert "Mute: (it cannot say why)" in traceback_text(Mute())


def test_a_message_of_the_library_is_masked_and_bounded_wherever_it_comes_from() -> None:
    error = HandlerError(f"{URL} " + "x" * 100_000)
    assert SECRET not in str(error)
    assert len(str(error)) < 2100
