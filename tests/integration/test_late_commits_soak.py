"""Every kind of cursor under every kind of traffic at once: nothing may be lost.

`AZFDB_SOAK_SECONDS` says for how long, `AZFDB_SOAK_WITHOUT` which guard of `tests.chaos.guards` to do without:
then something must be lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import make_url

from azure_functions_db import DbConfig, EngineProvider, SqlAlchemySource
from tests.chaos.guards import GUARDS
from tests.integration.traffic import CURSORS, Traffic, create_table

SECONDS = float(os.environ.get("AZFDB_SOAK_SECONDS", "8"))
WITHOUT = os.environ.get("AZFDB_SOAK_WITHOUT", "")
# All to the east of the zone that the writers of a naive column mean.
ZONES_OF_POLLERS = {
    "postgresql": (
        "Pacific/Tongatapu",
        "Asia/Tokyo",
        "Asia/Kolkata",
        "UTC",
        "America/Sao_Paulo",
        "America/New_York",
        "America/Los_Angeles",
        "Pacific/Marquesas",
    ),
    "mysql": ("+13:00", "+09:00", "+05:30", "+00:00", "-03:00", "-05:00", "-08:00", "-09:30"),
}


@pytest.fixture(params=["postgres", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    found = str(request.getfixturevalue(f"{request.param}_database"))
    create_table(found)
    return found


def traffic(url: str, provider: EngineProvider, seconds: float, **options: Any) -> Traffic:
    """A poller for each cursor column, one that asks by a query, and two that share the rows by a key with a NULL."""
    dialect = make_url(url).get_backend_name()
    began = time.monotonic()

    def new_source(**own: Any) -> SqlAlchemySource:
        config = DbConfig(connection_url=url, connect_args=session(dialect, (time.monotonic() - began) / seconds))
        return SqlAlchemySource(db_config=config, engine_provider=provider, **own, **options)

    sources: list[tuple[str, Callable[[], SqlAlchemySource]]] = [
        (cursor, partial(new_source, table="changes", cursor_column=cursor, pk_columns=["id"]))
        for cursor in CURSORS[dialect]
    ]
    query = "SELECT id, version, second FROM changes"
    sources += [("second by query", partial(new_source, query=query, cursor_column="second", pk_columns=["id"]))]
    shares = partial(new_source, table="changes", cursor_column="stamp", pk_columns=["code"])
    sources += [("code", partial(shares, partition=(share, 2))) for share in range(2)]
    return Traffic(url, sources)


def session(dialect: str, progress: float) -> dict[str, Any]:
    """What puts a poller's sessions into a zone: ever further west, where clocks show what they have shown before."""
    zone = ZONES_OF_POLLERS[dialect][min(int(progress * 8), 7)]
    return (
        {"options": f"-c timezone={zone}"} if dialect == "postgresql" else {"init_command": f"SET time_zone='{zone}'"}
    )


@pytest.mark.timeout(SECONDS + 240)
def test_nothing_is_lost_in_any_weather(url: str, provider: EngineProvider) -> None:
    if WITHOUT:
        GUARDS[WITHOUT]()
    soak = traffic(url, provider, SECONDS)
    soak.run(SECONDS, patience=15)

    print(soak.report())  # noqa: T201 - the measure of a soak
    assert len(soak.committed) > 2 * SECONDS
    assert {cursor: count for cursor, count in soak.lost().items() if count} == {}


def test_plain_polling_would_have_lost_rows(url: str, provider: EngineProvider) -> None:
    soak = traffic(url, provider, 3, in_flight="ignore")
    soak.run(3, patience=1)

    print(soak.report())  # noqa: T201 - the measure of a soak
    assert soak.lost()["stamp"] + soak.lost()["id"]
