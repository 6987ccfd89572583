"""What people type and settings hold: a right value, or the one error that says what to do."""

from __future__ import annotations

import datetime as dt

from hypothesis import example, given
from hypothesis import strategies as st

from azure_functions_db.core.config import expanded
from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.operations.pollers import sink_at, store_at
from azure_functions_db.operations.positions import guessed, of_kind
from azure_functions_db.operations.run import parsed_schedule
from tests.fuzz.inputs import SECRET, fuzzed, odd_texts, refusing

NOW = dt.datetime(2026, 4, 7, tzinfo=dt.UTC)
SCHEMES = ["azureblob", "azuretable", "cosmos", "file", "postgresql+psycopg", "sqlite", ""]
KINDS = ["text", "integer", "float", "boolean", "timestamp", "date", "time", "decimal", "uuid", "bytes", "odd"]
fields = st.text("0123456789*/,-#L?MON", min_size=1, max_size=5)


@fuzzed
@given(odd_texts | st.lists(fields, min_size=5, max_size=6).map(" ".join) | st.text("0123456789.:", max_size=12))
@example("99999999999.00:00:01")
@example("99999999.00:00:01")
@example("*/" + "9" * 5000 + " * * * *")
@example("0 0 0 30 2 1")
def test_a_schedule_comes_round_later_or_is_refused(text: str) -> None:
    with refusing(ConfigurationError):
        assert parsed_schedule(text).after(NOW) > NOW


@fuzzed
@given(st.sampled_from(SCHEMES), odd_texts, odd_texts)
@example("azureblob", "[", "")
@example("cosmos", "[", "/a/b")
@example("file", "/", "a" * 5000)
def test_a_place_is_named_or_refused(scheme: str, host: str, path: str) -> None:
    for opened in (store_at, sink_at):
        with refusing(ConfigurationError):
            opened(f"{scheme}://{host}{path}")


@fuzzed
@given(st.lists(st.sampled_from(["%NAME%", "%NONE%", "%%", "%40", "%C3%A9", "%"]) | odd_texts, max_size=5).map("".join))
def test_settings_are_filled_in_or_named(text: str) -> None:
    with refusing(ConfigurationError):
        expanded(text, {"NAME": "value", "OTHER": SECRET})


@fuzzed
@given(st.text())
def test_a_text_with_doubled_percent_signs_is_itself(text: str) -> None:
    assert expanded(text.replace("%", "%%"), {}) == text


@fuzzed
@given(odd_texts | st.floats().map(str) | st.datetimes().map(str), st.sampled_from(KINDS))
def test_a_typed_cursor_is_of_its_kind_or_refused(text: str, kind: str) -> None:
    guessed(text)
    with refusing(ConfigurationError):
        of_kind(text, kind)
