from __future__ import annotations

from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from azure_functions_db.core.config import expanded
from azure_functions_db.core.errors import ConfigurationError

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{2,20}", fullmatch=True)
# Without lone surrogates, which no URL can encode.
texts = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("%DB_URL%", "sqlite:///a.db"),
        ("postgresql://%USER%:%PASS%@%HOST%/%DB%", "postgresql://ann:p%40ss%HOST%@db.example/orders"),
        ("%USER%%HOST%", "anndb.example"),
        ("%USER%%%HOST%", "ann%HOST%"),
        ("100%%", "100%"),
        ("%%USER%%", "%USER%"),
        ("plain", "plain"),
        ("", ""),
        ("50% off", "50% off"),
        ("%", "%"),
    ],
)
def test_settings_are_replaced_once_and_a_doubled_percent_sign_is_one(value: str, expected: str) -> None:
    environment = {
        "DB_URL": "sqlite:///a.db",
        "USER": "ann",
        "PASS": "p%40ss%HOST%",
        "HOST": "db.example",
        "DB": "orders",
    }
    assert expanded(value, environment) == expected


@pytest.mark.parametrize("value", ["p%40ss%21", "%C3%A9", "%c3%a9", "%C3%A9t%C3%A9", "%AF_x%40", "%D9%85%DB%8C"])
def test_percent_encoding_is_no_setting(value: str) -> None:
    assert expanded(value, {"DB": "orders"}) == value


@given(password=texts)
def test_the_encoded_form_of_any_password_survives(password: str) -> None:
    for encoded in (quote(password, safe=""), quote_plus(password)):
        url = f"postgresql://ann:{encoded}@%HOST%/orders"
        assert expanded(url, {"HOST": "h"}) == f"postgresql://ann:{encoded}@h/orders"


@given(before=texts, after=texts)
def test_a_setting_between_encoded_texts_is_replaced(before: str, after: str) -> None:
    value = f"{quote(before, safe='')}%MY_NAME%/{quote(after, safe='')}"
    assert expanded(value, {"MY_NAME": "x"}) == f"{quote(before, safe='')}x/{quote(after, safe='')}"


@given(text=texts)
def test_any_text_with_its_percent_signs_doubled_means_itself(text: str) -> None:
    assert expanded(text.replace("%", "%%"), {}) == text


@given(name=names, value=texts)
def test_what_a_setting_holds_is_not_looked_into(name: str, value: str) -> None:
    assert expanded(f"<%{name}%>", {name: value}) == f"<{value}>"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("%MISSING%", "MISSING"),
        ("sqlite:///%DB%", "DB"),
        ("sqlite:///%DB_DIR%data.db", "DB_DIR"),
        ("postgresql://%DB_HOST%_%SUFFIX%/x", "DB_HOST"),
        ("mysql://u:%PASS%@h", "PASS"),
    ],
)
def test_an_unset_variable_is_named(value: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"The setting {name} is not set") as caught:
        expanded(value, {"SUFFIX": "x"})
    assert caught.value.setting == name


def test_a_set_variable_wins_where_its_name_begins_like_encoding() -> None:
    assert expanded("%DB_NAME%DATA", {"DB_NAME": "x"}) == "xDATA"


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZFDB_SOME_SETTING", "here")
    assert expanded("%AZFDB_SOME_SETTING%") == "here"
