from __future__ import annotations

import functools
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from azure_functions_db.core.config import DbConfig
from azure_functions_db.core.secrets import masked, masked_message

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
        f"Bearer opaque-{SECRET}",
        f"Authorization: SharedKey account:{SECRET}",
        f"{{'Authorization': 'Basic {SECRET}'}}",
        f"postgresql://ann:a#{SECRET}@host/db",
        f"postgresql://ann:\x85\u2028{SECRET}@host/db",
        f"BlobEndpoint=x;SharedAccessSignature=sv=2024-11-04&sig={SECRET}",
        f'{{"password": "a\\" {SECRET}"}}',
        f"password='a\\' {SECRET}'",
        f"PWD={{never closed;{SECRET}",
        f"user=ann password = '{SECRET}' host=h",
        f"postgresql://ann:{SECRET}%40host/db",
        f"mysql://ann:{SECRET}/db",
        f"password: {SECRET}",
        f"x-api-key: {SECRET}",
        f"SECRET_KEY={SECRET}",
        f'{{\\"password\\":\\"{SECRET}\\"}}',
        f"https://app.azurewebsites.net/api/run?code={SECRET}",
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
        'credential="default" needs the package azure-identity',
        'duplicate key value violates unique constraint "orders_pkey"',
        """Unknown column 'note' in 'SELECT'""",
        "the bearer of this message wants orders.total, not total",
        "http://127.0.0.1:8080/x, https://host: gone, sqlite:///C:/x, file://C:/x, http://[::1]:80",
        "postgresql://%USER%@%HOST%:%PORT%/db failed with code=5",
    ],
)
def test_what_is_no_secret_stays_readable(text: str) -> None:
    assert masked(text) == text


def test_what_surrounds_a_secret_stays_readable() -> None:
    assert masked(f"mysql://ann:{SECRET}@host:3306/db") == "mysql://ann:***@host:3306/db"
    assert masked(f"Server=s;PWD={SECRET};Encrypt=yes") == "Server=s;PWD=***;Encrypt=yes"


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        (
            'violates "orders_key"\nDETAIL:  Key (email)=(PRIVATE) exists.',
            'violates "orders_key"\nDETAIL:  ***',
        ),
        ("Incorrect datetime value: 'PRI'VATE' for column `shop`.`at`", "value: '***' for column `shop`.`at`"),
        ("Incorrect integer value: 'PRI\nVATE' for column `n` at row 1", "value: '***' for column `n` at row 1"),
        ("Duplicate entry 'a' for key PRIVATE' for key 'email'", "entry '***' for key 'email'"),
        ("Truncated incorrect DOUBLE value: 'PRIVATE'", "incorrect DOUBLE value: '***"),
        ("right syntax to use near 'PRIVATE)' at line 1", "near '***' at line 1"),
        ('invalid input syntax for type integer: "PRIVATE"', 'for type integer: "***'),
        ('value "PRIVATE" is out of range for type integer', '"***" is out of range for type integer'),
        ("The duplicate key value is (PRIVATE).", "key value is (***"),
        ("[SQL: SELECT 1]\n[parameters: ('PRIVATE',)]\n(Background on this)", "[parameters: ***\n(Background on this)"),
        ("failed\nDETAIL:  Failing row contains (1, PRI\nVATE).\n[SQL: INSERT 1]", "DETAIL:  ***\n[SQL: INSERT 1]"),
        ("id\n  bad [type=int, input_value='PRIVATE', input_type=str]", "input_value=***, input_type=str]"),
        ("Duplicate entry '***PRIVATE' for key 'email'", "entry '***' for key 'email'"),
    ],
)
def test_values_of_rows_that_databases_quote_are_hidden_and_the_rest_stays(text: str, rest: str) -> None:
    assert "PRIVATE" not in masked(text)
    assert "VATE" not in masked(text)
    assert masked(text).endswith(rest)
    assert masked(masked(text)) == masked(text)


# So many characters take a moment where each is looked at a few times, and minutes where each is
# looked at once for every other.
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece",
    [
        *("a-", "pass", "x://a:", "password=", "eyJ-", "eyJ.", "pwd={", "a@", "pwd =  ", "pwd={;", 'pwd=";', "pwd='&"),
        *(
            "://:",
            "://a:b\n@",
            "://a:b",
            "password: ",
            "?code",
            "input_value=",
            "input_value=\n",
            "DETAIL: ",
            'value "',
            "incorrect a ",
            "Bearer ",
        ),
        *("' for ", "\n[SQL: ", "Authorization:", "[parameters: ***", "invalid input syntax for a"),
    ],
)
def test_a_long_text_is_no_trap(piece: str) -> None:
    masked(piece * (300_000 // len(piece)))


def test_what_is_told_of_a_long_text_is_two_kilobytes_of_its_beginning() -> None:
    shown = masked_message("no stock: " + "ж" * 1_000_000)
    assert len(shown.encode()) <= 2048
    assert shown.startswith("no stock: жж")
    assert shown.endswith("…")
    assert masked_message("ж" * 1000) == "ж" * 1000


@pytest.mark.parametrize("start", ["x://ann:", "password='", "PWD={", "Bearer "])
def test_a_secret_that_is_cut_off_stays_hidden(start: str) -> None:
    many = "token=short;" * 8000
    for length in (60_000, 65_500):
        assert SECRET not in masked_message(many[:length] + start + SECRET * 9999)
    assert SECRET not in masked_message(start + SECRET * 9999)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}",
        f"postgresql://ann:first\n{SECRET}@host/db",
        f"oracle://scott/{SECRET}@host",
        f"mysql://ann:a@b?{SECRET}@host/db",
        f"mysql://ann:a/b#{SECRET}@host/db",
        f"mssql+pyodbc:///?odbc_connect=UID%3Dsa%3BPWD%3D{SECRET}",
        f"postgresql://ann {SECRET}:x@host/db",
    ],
)
def test_no_badly_written_url_shows_its_password(url: str) -> None:
    assert SECRET not in repr(DbConfig(connection_url=url))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann@host:5432/db",
        "mysql://%USER%@%HOST%:%PORT%/db",
        "sqlite:///x.db",
        "sqlite://",
        "x://[::1]:5/d",
    ],
)
def test_a_url_without_a_password_is_shown_whole(url: str) -> None:
    assert url in repr(DbConfig(connection_url=url))


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
