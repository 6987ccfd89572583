"""How long a cursor value must age before it may be passed: by the unit of its column, in whatever zone."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from sqlalchemy import types
from sqlalchemy.dialects import mysql, oracle, postgresql

from azure_functions_db.sources.keyset.horizon import _is_older, ripening
from azure_functions_db.sources.keyset.values import resolution

NOON = dt.datetime(2026, 11, 16, 12)  # noqa: DTZ001 - a time without a zone is what this is about


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        (postgresql.TIMESTAMP(), 1e-6),
        (postgresql.TIMESTAMP(timezone=True, precision=0), 1.0),
        (postgresql.TIMESTAMP(precision=2), 0.01),
        (mysql.DATETIME(), 1.0),
        (mysql.DATETIME(fsp=1), 0.1),
        (mysql.TIMESTAMP(fsp=6), 1e-6),
        (oracle.DATE(), None),
        (types.Date(), None),
        (types.BigInteger(), None),
        (types.Text(), None),
    ],
)
def test_the_unit_of_a_column_is_the_one_it_is_declared_with(
    kind: types.TypeEngine[Any], seconds: float | None
) -> None:
    assert resolution(kind) == pytest.approx(seconds)


@pytest.mark.parametrize("digits", range(7))
@pytest.mark.parametrize(
    "kind",
    [lambda n: mysql.DATETIME(fsp=n), lambda n: mysql.TIMESTAMP(fsp=n), lambda n: postgresql.TIMESTAMP(precision=n)],
)
def test_a_value_ripens_for_longer_than_its_unit(kind: Any, digits: int) -> None:
    assert ripening(kind(digits)) > 10.0**-digits


def test_a_number_need_not_ripen_and_a_time_that_tells_no_unit_ripens_for_a_whole_second() -> None:
    assert ripening(types.BigInteger()) == 0
    assert ripening(types.DateTime()) > 1
    assert ripening(types.Text()) < 1, "what no clock has made need not wait for one"
    assert ripening(mysql.DATETIME(fsp=6)) < 1


@pytest.mark.parametrize("hours", [0, 8, 12, 14, 25])
def test_a_time_without_a_zone_may_be_that_of_a_writer_far_away(hours: int) -> None:
    assert not _is_older(NOON - dt.timedelta(hours=hours), NOON, 1.05)


def test_a_time_is_old_when_no_zone_can_make_it_young() -> None:
    assert _is_older(NOON - dt.timedelta(days=2), NOON, 1.05)
    assert _is_older((NOON - dt.timedelta(seconds=2)).replace(tzinfo=dt.UTC), NOON.replace(tzinfo=dt.UTC), 1.05)


def test_a_time_is_not_taken_for_old_by_a_clock_that_it_cannot_be_compared_with() -> None:
    assert not _is_older(NOON - dt.timedelta(days=2), NOON.replace(tzinfo=dt.UTC), 1.05)
    assert _is_older("2000-01-01", NOON, 1.05) is False
