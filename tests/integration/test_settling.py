"""A distance from the clock means something only where it is the clock of those who write."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine

from azure_functions_db import DbConfig, EngineProvider, SqlAlchemySource

TOKYO = {"postgres": {"options": "-c timezone=Asia/Tokyo"}, "mariadb": {"init_command": "SET time_zone = '+09:00'"}}
UTC = {"postgres": {"options": "-c timezone=UTC"}, "mariadb": {"init_command": "SET time_zone = '+00:00'"}}


def findings(url: str, provider: EngineProvider, connect_args: dict[str, Any], **options: Any) -> dict[str, str]:
    source = SqlAlchemySource(
        db_config=DbConfig(connection_url=url, connect_args=connect_args),
        table="changes",
        pk_columns=["id"],
        engine_provider=provider,
        **{"cursor_column": "at", "settle_seconds": 5, **options},
    )
    return {finding.check: finding.grade for finding in source.examine()}


@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_doctor_warns_of_a_distance_that_is_kept_from_the_wrong_clock(
    request: pytest.FixtureRequest, provider: EngineProvider, server: str
) -> None:
    url = str(request.getfixturevalue(f"{server}_database"))
    moment = "timestamptz" if server == "postgres" else "timestamp(6)"
    naive = "timestamp" if server == "postgres" else "datetime(6)"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f"CREATE TABLE changes (id integer PRIMARY KEY, at {naive} NOT NULL, moment {moment} NOT NULL)"
        )
    engine.dispose()
    assert findings(url, provider, TOKYO[server])["settling"] == "warning"
    assert "settling" not in findings(url, provider, UTC[server])
    assert "settling" not in findings(url, provider, TOKYO[server], cursor_column="moment")
    assert "settling" not in findings(url, provider, TOKYO[server], settle_seconds=None)
