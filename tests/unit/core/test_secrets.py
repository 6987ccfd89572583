from __future__ import annotations

import functools
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from azure_functions_db.core.config import DbConfig
from azure_functions_db.core.secrets import masked

SECRET = "hunter-2"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://ann:{SECRET}@host/db",
        f"postgresql+psycopg://ann@server:{SECRET}@host/db",
        f"mysql+pymysql://:{SECRET}@host",
        f"could not open mysql://ann:{SECRET}@host and gave up",
        f"postgresql://ann:sl/ash?{SECRET}@host/db",
        f"postgresql://ann:with space {SECRET}@host/db",
        f"postgresql://ann:a@b@{SECRET}@host/db",
        f"postgresql://host/db?user=ann&password={SECRET}",
        f"host=h dbname=d password={SECRET}",
        f"Driver={{ODBC Driver 18}};Server=s;UID=sa;PWD={SECRET};Encrypt=yes",
        f"Server=s;Pwd={{a}}}}b;{SECRET}}};Encrypt=yes",
        f'Server=s;Password="a;{SECRET}";Encrypt=yes',
        f"Server=s;Password=my own {SECRET};Encrypt=yes",
        "mssql+pyodbc:///?odbc_connect=" + quote_plus(f"DRIVER={{x}};UID=sa;PWD={SECRET};"),
        f"AccountName=a;AccountKey={SECRET}==;EndpointSuffix=core.windows.net",
        f"https://a.blob.core.windows.net/c?sv=1&sig={SECRET}&se=2",
        f"client_secret={SECRET}",
        f"{{'user': 'ann', 'password': '{SECRET}'}}",
        f'{{"access_token": "{SECRET}"}}',
        f"Bearer eyJhbGciOi.eyJ{SECRET}.c2ln",
    ],
)
def test_secrets_of_urls_and_connection_strings_are_hidden(text: str) -> None:
    assert SECRET not in masked(text)
    assert "***" in masked(text)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://ann@host:5432/db",
        "sqlite:////data/orders.db",
        "Access denied for user 'ann'@'localhost' (using password: YES)",
        'password authentication failed for user "ann"',
    ],
)
def test_what_is_no_secret_stays_readable(text: str) -> None:
    assert masked(text) == text


def test_what_surrounds_a_secret_stays_readable() -> None:
    assert masked(f"mysql://ann:{SECRET}@host:3306/db") == "mysql://ann:***@host:3306/db"
    assert masked(f"Server=s;PWD={SECRET};Encrypt=yes") == "Server=s;PWD=***;Encrypt=yes"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("piece", ["a-", "pass", "x://a:", "password=", "eyJ-", "pwd={", "a@", "pwd =  "])
def test_a_long_text_is_no_trap(piece: str) -> None:
    masked(piece * (100_000 // len(piece)))


# A letter that occurs in no other part of the texts below makes a leak recognisable.
passwords = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1).map(
    lambda text: f"ж{text}ж"
)


@given(password=passwords)
def test_no_password_shows_in_a_configuration(password: str) -> None:
    encoded = quote(password, safe="")
    config = DbConfig(
        connection_url=f"postgresql://ann:{encoded}@host/db",
        connect_args={"password": password, "options": f"password={password.replace(';', '').replace('&', '')}"},
    )
    assert "ж" not in repr(config)
    assert encoded not in repr(config)


@given(password=passwords)
def test_not_even_a_password_that_breaks_its_url_shows(password: str) -> None:
    assert "ж" not in repr(DbConfig(connection_url=f"postgresql://ann:{password}@host/db"))


def hide_and_seek(**_options: object) -> None:
    """Stand for a connection factory."""


@pytest.mark.parametrize(
    "options",
    [
        {"connect_args": MappingProxyType({"password": SECRET})},
        {"connect_args": {"nested": {"ssl_passphrase": SECRET}}},
        {"connect_args": {"attrs_before": {1256: SECRET.encode()}}},
        {"connect_args": {"init": [f"password={SECRET}"]}},
        {"engine_kwargs": {"creator": functools.partial(hide_and_seek, password=SECRET)}},
    ],
)
def test_no_option_of_a_configuration_shows_its_secret(options: dict[str, Any]) -> None:
    assert SECRET not in repr(DbConfig(connection_url="sqlite://", **options))


def test_a_configuration_shows_what_is_no_secret() -> None:
    shown = repr(DbConfig(connection_url="mysql://ann:x@host/db", pool_size=7, connect_args={"charset": "utf8mb4"}))
    assert "mysql://ann:***@host/db" in shown
    assert "pool_size=7" in shown
    assert "'charset': 'utf8mb4'" in shown
