from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from azure_functions_db.core.config import DbConfig, config_of
from azure_functions_db.core.errors import ConfigurationError


def test_the_defaults_are_the_documented_ones() -> None:
    config = DbConfig(connection_url="sqlite://")
    assert (config.pool_size, config.pool_recycle, config.echo) == (5, 3600, False)
    assert (config.connect_args, config.engine_kwargs, config.credential) == (None, {}, None)


def test_a_configuration_cannot_be_changed_and_takes_keywords_only() -> None:
    config = DbConfig(connection_url="sqlite://")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.pool_size = 9  # type: ignore[misc]
    with pytest.raises(TypeError):
        DbConfig("sqlite://")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"connection_url": ""}, "connection_url must be a URL"),
        ({"connection_url": None}, "connection_url must be a URL"),
        ({"connection_url": "orders"}, "connection_url must be a URL"),
        ({"engine_kwargs": {"connect_args": {}}}, "connect_args"),
        ({"pool_size": "5"}, "pool_size must be a number"),
        ({"credential": "managed"}, "credential"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        DbConfig(**{"connection_url": "sqlite://", **options})


def test_a_malformed_url_is_not_repeated_in_the_complaint() -> None:
    with pytest.raises(ConfigurationError) as caught:
        DbConfig(connection_url="ann:hunter2@host")
    assert "hunter2" not in str(caught.value)


def test_settings_are_read_when_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    config = DbConfig(connection_url="%AZFDB_URL%", connect_args={"ssl": {"ca": "%AZFDB_CA%"}, "timeout": 5})
    monkeypatch.setenv("AZFDB_URL", "sqlite:///a.db")
    monkeypatch.setenv("AZFDB_CA", "/etc/ca.pem")
    resolved = config.resolved()
    assert resolved.connection_url == "sqlite:///a.db"
    assert resolved.connect_args == {"ssl": {"ca": "/etc/ca.pem"}, "timeout": 5}
    assert config.connection_url == "%AZFDB_URL%"


def test_an_unset_setting_is_named_when_it_is_wanted() -> None:
    config = DbConfig(connection_url="%AZFDB_NOT_THERE%")
    with pytest.raises(ConfigurationError, match="AZFDB_NOT_THERE"):
        config.resolved()


def test_exactly_one_of_url_and_db_config_is_taken() -> None:
    config = DbConfig(connection_url="sqlite://")
    assert config_of(None, config) is config
    assert config_of("sqlite://", None) == config
    for url, db_config in [(None, None), ("sqlite://", config)]:
        with pytest.raises(ConfigurationError, match="exactly one"):
            config_of(url, db_config)
