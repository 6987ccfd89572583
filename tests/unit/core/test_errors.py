from __future__ import annotations

import inspect
import pickle
import re
import traceback
from pathlib import Path

import pytest

from azure_functions_db.core import errors
from azure_functions_db.core.errors import (
    Code,
    DbConnectionError,
    DbError,
    LeaseConflictError,
    RowsFailed,
    WriteError,
    code_behind,
    traceback_text,
    with_code,
)
from tests.support.errors import all_errors

ERROR_CLASSES = [found for _, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, DbError)]


def drawn_tree() -> dict[str, str | None]:
    """Return each drawn class with the class it hangs from."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"    ([│├└─ ]*)(\w+Error)\b", line):
            depth = len(found[1]) // 4
            parents[found[2]] = path[depth - 1] if depth else None
            path[depth:] = [found[2]]
    return parents


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    real = {found.__name__: found.__bases__[0].__name__ for found in ERROR_CLASSES}
    real_root = {name: None if name == "DbError" else parent for name, parent in real.items()}
    assert drawn_tree() == real_root


def test_second_parents_are_as_drawn() -> None:
    assert issubclass(DbConnectionError, ConnectionError)
    assert issubclass(errors.SourceConfigurationError, errors.ConfigurationError)


@pytest.mark.parametrize("kind", ERROR_CLASSES)
def test_every_error_says_what_happened_in_its_docstring(kind: type[DbError]) -> None:
    assert kind.__doc__
    assert kind.__doc__.rstrip().endswith(".")


def test_every_class_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in all_errors()]
    assert sorted(set(codes)) == sorted(codes)
    assert set(codes) <= set(Code)


def test_every_code_is_raised_somewhere() -> None:
    sources = "".join(path.read_text() for path in Path(errors.__file__).parents[1].rglob("*.py"))
    assert [code for code in Code if f"Code.{code.name}" not in sources] == []


def test_a_code_stands_below_the_message_in_a_traceback_and_not_in_it() -> None:
    error = WriteError("refused")
    assert str(error) == "refused"
    assert traceback.format_exception(error) == ["azure_functions_db.WriteError: refused\n", "AZFDB-301\n"]
    assert traceback_text(error) == "azure_functions_db.WriteError: refused\nAZFDB-301\n"


def test_an_error_can_say_more_exactly_what_happened() -> None:
    error = errors.ConfigurationError("no such table", code=Code.TABLE_MISSING)
    assert (error.code, with_code(error)) == ("AZFDB-104", "no such table [AZFDB-104]")
    assert errors.SourceConfigurationError.of(error, "orders").code is Code.TABLE_MISSING
    assert errors.SourceConfigurationError.of(errors.ConfigurationError("no")).code is Code.SOURCE_UNFIT


def test_the_code_in_the_log_is_that_of_what_really_happened() -> None:
    handler = errors.HandlerError("failed")
    assert code_behind(handler) == "AZFDB-504"
    handler.__cause__ = ValueError("bad")
    assert code_behind(handler) == "AZFDB-504"
    handler.__cause__ = WriteError("refused")
    assert code_behind(handler) == "AZFDB-301"
    assert code_behind(ValueError("bad")) is None


def test_state_that_cannot_be_reached_has_another_code_than_state_that_makes_no_sense() -> None:
    assert errors.StateStoreError("gone", unreachable=True).code is Code.STATE_UNREACHABLE
    assert errors.StateStoreError("torn").code is Code.STATE_UNUSABLE


def test_an_error_carries_what_it_is_about() -> None:
    error = WriteError("refused", table="orders", constraint="orders_pk")
    assert (str(error), error.table, error.constraint, error.setting) == ("refused", "orders", "orders_pk", None)


def test_a_field_that_the_error_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="WriteError has no field 'owner_id'"):
        WriteError("refused", owner_id="me")


@pytest.mark.parametrize(
    "error",
    [
        DbConnectionError("gone", table="orders"),
        LeaseConflictError("held", poller_name="orders", owner_id="other"),
        *(kind("message") for kind in ERROR_CLASSES),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error: DbError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_failed_rows_survive_pickling() -> None:
    copy = pickle.loads(pickle.dumps(RowsFailed({"a": "bad", "b": "worse"})))
    assert copy.failures == {"a": "bad", "b": "worse"}
    assert str(copy) == "2 event(s) failed"


def test_failed_rows_need_a_row() -> None:
    with pytest.raises(ValueError, match="at least one"):
        RowsFailed({})
