"""Every kind of cursor under every kind of traffic at once, with every incident among it: nothing may be lost.

`AZFDB_SOAK_SECONDS` says for how long, `AZFDB_SOAK_WITHOUT` which guard of `tests.chaos.guards` to do without:
then something must go wrong.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from sqlalchemy import make_url

from azure_functions_db import DbConfig, EngineProvider, SqlAlchemySource
from tests.chaos.guards import taken_away
from tests.integration.incidents import INCIDENTS, Place
from tests.integration.traffic import CURSORS, Incident, Traffic, create_table
from tests.support.followers import Replica, second_mariadb, standby_of
from tests.support.visitors import visitor

SECONDS = float(os.environ.get("AZFDB_SOAK_SECONDS", "8"))
WITHOUT = os.environ.get("AZFDB_SOAK_WITHOUT", "")
LONGEST = 90.0
"""How long a machine that is busy with something else may take for the traffic that a test is about."""
SETTLE_SECONDS = 10
"""A distance that no transaction of the traffic lasts for."""
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
# A column that means the same moment in every zone.
MOMENT = {"postgresql": "stamp", "mysql": "moment"}
DIALECTS = {"postgres": "postgresql", "mariadb": "mysql"}
CONTROLS = [
    (server, guard)
    for server, dialect in DIALECTS.items()
    for guard in sorted({guard for one in INCIDENTS if dialect in one.dialects for guard in one.guards})
]


@pytest.fixture(autouse=True)
def _without_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """Leave out what hundreds of sources warn of: it would hide what went wrong."""
    caplog.set_level(logging.ERROR, "azure_functions_db")


@pytest.fixture
def place(request: pytest.FixtureRequest, provider: EngineProvider, server: str) -> Iterator[Place]:
    """A database with its table, and a server that follows it."""
    places = {"postgres": on_postgres, "mariadb": on_mariadb}
    with places[server](request, provider) as place:
        create_table(place.url)
        if place.follower is not None:
            place.follower.catch_up()
        yield place


@contextmanager
def on_postgres(request: pytest.FixtureRequest, provider: EngineProvider) -> Iterator[Place]:
    url = request.getfixturevalue("postgres_database")
    with standby_of(url) as standby:
        yield Place(url, provider, standby)


@contextmanager
def on_mariadb(request: pytest.FixtureRequest, provider: EngineProvider) -> Iterator[Place]:
    """Follow first, as a replica gets what comes later; somebody without PROCESS is there as well."""
    with second_mariadb() as second:
        replica = Replica(make_url(request.getfixturevalue("mariadb_url")), second)
        replica.follow()
        url = request.getfixturevalue("mariadb_database")
        database = make_url(url).database
        with visitor(url, f"SELECT ON {database}.*") as stranger:
            yield Place(url, provider, replica.at(database), stranger)


def traffic(place: Place, seconds: float, **options: Any) -> Traffic:
    """A poller for each cursor column, one that asks by a query, and two that share the rows by a key with a NULL."""
    dialect = place.dialect
    began = time.monotonic()

    def new_source(url: str = place.url, **own: Any) -> SqlAlchemySource:
        config = DbConfig(connection_url=url, connect_args=session(dialect, (time.monotonic() - began) / seconds))
        return SqlAlchemySource(db_config=config, engine_provider=place.provider, **own, **options)

    whole = partial(new_source, table="changes", pk_columns=["id"])
    sources: list[tuple[str, Callable[[], SqlAlchemySource]]] = [
        (cursor, partial(whole, cursor_column=cursor)) for cursor in CURSORS[dialect]
    ]
    query = "SELECT id, version, second FROM changes"
    sources += [("second by query", partial(new_source, query=query, cursor_column="second", pk_columns=["id"]))]
    shares = partial(new_source, table="changes", cursor_column="stamp", pk_columns=["code"])
    sources += [("code", partial(shares, partition=(share, 2))) for share in range(2)]
    distant = partial(whole, cursor_column=MOMENT[dialect], settle_seconds=SETTLE_SECONDS)
    places = {"behind the primary": place.follower and place.follower.url, "without PROCESS": place.stranger}
    sources += [(name, partial(distant, url=url)) for name, url in places.items() if url]
    return Traffic(place.url, sources, incidents(place) if not options else ())


def incidents(place: Place, guard: str = "") -> list[Callable[[threading.Event], Incident]]:
    """The incidents that can happen here, or those that a guard is for."""
    here = [incident for incident in INCIDENTS if place.dialect in incident.dialects]
    return [partial(incident, place) for incident in here if not guard or guard in incident.guards]


def session(dialect: str, progress: float) -> dict[str, Any]:
    """What puts a poller's sessions into a zone: ever further west, where clocks show what they have shown before."""
    zone = ZONES_OF_POLLERS[dialect][min(int(progress * 8), 7)]
    return (
        {"options": f"-c timezone={zone}"} if dialect == "postgresql" else {"init_command": f"SET time_zone='{zone}'"}
    )


def had_all(soak: Traffic, seconds: float) -> bool:
    """Tell whether there was as much traffic as these seconds must have, and every incident among it."""
    return soak.rows() > 2 * seconds and all(incident.staged for incident in soak.incidents)


@pytest.mark.timeout(SECONDS + 240)
@pytest.mark.parametrize("server", DIALECTS)
def test_nothing_is_lost_in_any_weather(place: Place) -> None:
    with taken_away(WITHOUT):
        soak = traffic(place, SECONDS)
        soak.run(SECONDS + LONGEST, 15 + SETTLE_SECONDS, lambda passed: passed > SECONDS and had_all(soak, SECONDS))

    print(soak.report())  # noqa: T201 - the measure of a soak
    assert had_all(soak, SECONDS), "the machine is too slow to say anything"
    assert bool(soak.faults()) is bool(WITHOUT), soak.faults()[:20]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("server", "guard"), CONTROLS)
def test_each_incident_goes_wrong_without_its_guard(place: Place, guard: str) -> None:
    control = Traffic(place.url, [], incidents(place, guard))
    with taken_away(guard):
        control.run(LONGEST, 0, lambda _: all(one.faults or one.staged > 9 for one in control.incidents))

    print(control.report())  # noqa: T201 - the measure of a control
    assert [incident.name for incident in control.incidents if not incident.faults] == []


@pytest.mark.parametrize("server", DIALECTS)
def test_plain_polling_would_have_lost_rows(place: Place) -> None:
    soak = traffic(place, 3, in_flight="ignore")
    soak.run(LONGEST, 1, lambda passed: passed > 3 and had_all(soak, 10))

    print(soak.report())  # noqa: T201 - the measure of a soak
    assert soak.lost()["stamp"] + soak.lost()["id"]
