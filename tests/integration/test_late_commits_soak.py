from __future__ import annotations

import os

import pytest

from azure_functions_db import DbConfig, EngineProvider, SqlAlchemySource
from tests.integration.traffic import create_table, run_traffic

SECONDS = float(os.environ.get("AZFDB_SOAK_SECONDS", "8"))


@pytest.fixture(params=["postgres", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    found = str(request.getfixturevalue(f"{request.param}_database"))
    create_table(found)
    return found


def sources(url: str, in_flight: str, provider: EngineProvider) -> list[SqlAlchemySource]:
    return [
        SqlAlchemySource(
            db_config=DbConfig(connection_url=url),
            table="changes",
            cursor_column=cursor,
            pk_columns=["id"],
            in_flight=in_flight,  # type: ignore[arg-type]
            engine_provider=provider,
        )
        for cursor in ("stamp", "id")
    ]


@pytest.mark.timeout(SECONDS + 120)
def test_nothing_is_lost_among_overlapping_transactions(url: str, provider: EngineProvider) -> None:
    committed, (by_stamp, by_id) = run_traffic(url, sources(url, "wait", provider), SECONDS)

    print(f"{len(committed)} rows, {by_stamp.fetches} and {by_id.fetches} fetches")  # noqa: T201 - the measure of a soak
    assert len(committed) > 10 * SECONDS
    assert {number: v for number, v in committed.items() if by_stamp.seen.get(number, 0) < v} == {}
    assert committed.keys() - by_id.seen.keys() == set()


def test_plain_polling_would_have_lost_rows(url: str, provider: EngineProvider) -> None:
    committed, (by_stamp, by_id) = run_traffic(url, sources(url, "ignore", provider), 3)

    assert any(by_stamp.seen.get(number, 0) < version for number, version in committed.items())
    assert committed.keys() - by_id.seen.keys()
