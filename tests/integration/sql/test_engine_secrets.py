"""Whatever goes wrong on the way to a database, the password is never told."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

import pytest
from sqlalchemy import make_url, text

from azure_functions_db.core.config import DbConfig
from tests.support.told import whole_story

if TYPE_CHECKING:
    from azure_functions_db.sql.engine import EngineProvider
    from tests.integration.sql.conftest import Server

SECRET = "hunter-2:/@ %41"


def told_by_a_failed_connect(provider: EngineProvider, config: DbConfig, caplog: pytest.LogCaptureFixture) -> str:
    """Return everything that a person could read after a connection has failed."""
    caplog.set_level(logging.DEBUG)
    engine = provider.get_engine(config)
    with pytest.raises(Exception) as caught:
        engine.connect()
    return "\n".join([whole_story(caught.value), caplog.text, repr(engine), repr(engine.url), repr(config)])


def forms_of(secret: str) -> list[str]:
    return [secret, quote_plus(secret), secret.partition(":")[0]]


def test_a_wrong_password_is_not_told(
    server: Server, provider: EngineProvider, caplog: pytest.LogCaptureFixture
) -> None:
    url = make_url(server.url).set(password=SECRET).render_as_string(hide_password=False)
    told = told_by_a_failed_connect(provider, DbConfig(connection_url=url, echo=True), caplog)
    assert not [form for form in forms_of(SECRET) if form in told]


def test_a_wrong_password_among_the_connect_args_is_not_told(
    server: Server, provider: EngineProvider, caplog: pytest.LogCaptureFixture
) -> None:
    config = DbConfig(connection_url=server.url, connect_args={"password": SECRET})
    told = told_by_a_failed_connect(provider, config, caplog)
    assert not [form for form in forms_of(SECRET) if form in told]


def test_a_password_that_comes_from_a_setting_is_not_told(
    server: Server, provider: EngineProvider, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZFDB_WRONG", quote_plus(SECRET))
    url = make_url(server.url).set(password="PLACE").render_as_string(hide_password=False)
    config = DbConfig(connection_url=url.replace("PLACE", "%AZFDB_WRONG%"))
    told = told_by_a_failed_connect(provider, config, caplog)
    assert not [form for form in forms_of(SECRET) if form in told]


def test_the_password_of_an_unreachable_server_is_not_told(
    server: Server, provider: EngineProvider, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = make_url(server.url).set(port=taken.getsockname()[1], password=SECRET)
        config = DbConfig(connection_url=url.render_as_string(hide_password=False))
        told = told_by_a_failed_connect(provider, config, caplog)
    assert not [form for form in forms_of(SECRET) if form in told]


class Odbc:
    """Stands for pyodbc, whose system library is not everywhere; refuses as it does."""

    paramstyle = "qmark"
    version = "5.0"
    Cursor = object

    class Error(Exception):
        """What the driver raises."""

    def __init__(self) -> None:
        self.asked = ""

    def connect(self, connection_string: str, **_options: object) -> None:
        self.asked = connection_string
        raise self.Error("28000", "[28000] [Microsoft][ODBC Driver 18] Login failed for user 'sa'. (18456)")


def test_the_password_of_an_odbc_connection_string_is_not_told(
    provider: EngineProvider, caplog: pytest.LogCaptureFixture
) -> None:
    odbc = Odbc()
    string = "DRIVER={ODBC Driver 18 for SQL Server};SERVER=127.0.0.1;UID=sa;PWD={hunter-2;x};Encrypt=yes"
    config = DbConfig(
        connection_url=f"mssql+pyodbc:///?odbc_connect={quote_plus(string)}", engine_kwargs={"module": odbc}
    )
    told = told_by_a_failed_connect(provider, config, caplog)
    assert odbc.asked == string
    assert "hunter-2" not in told
    assert "UID%3Dsa" in told


def test_a_password_among_the_options_of_a_url_is_used_and_not_told(server: Server, provider: EngineProvider) -> None:
    url = make_url(server.url)
    by_option = url._replace(password=None).update_query_dict({"password": url.password or ""})
    engine = provider.get_engine(DbConfig(connection_url=by_option.render_as_string()))
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT 1")) == 1
    assert (url.password or "-") not in repr(engine) + repr(engine.url) + engine.url.render_as_string()


def test_row_values_are_told_neither_in_logs_nor_in_errors(
    server: Server, provider: EngineProvider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    engine = server.engine(provider, echo=True)
    with engine.connect() as connection, pytest.raises(Exception, match="nowhere") as caught:
        connection.execute(text("INSERT INTO nowhere VALUES (:value)"), {"value": "private-row-value"})
    assert "INSERT INTO nowhere" in caplog.text
    assert "private-row-value" not in caplog.text + whole_story(caught.value)
