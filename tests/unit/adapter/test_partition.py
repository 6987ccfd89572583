from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

from azure_functions_db.sources.keyset.definition import Partition, _zoneless


def test_a_moment_belongs_to_one_share_whatever_the_sessions_time_zone() -> None:
    shares = [Partition(index, 4) for index in range(4)]
    for minute in range(60):
        moment = dt.datetime(2026, 10, 25, 0, minute, tzinfo=dt.UTC)
        told = [moment, *(moment.astimezone(ZoneInfo(zone)) for zone in ("Europe/Berlin", "Asia/Kolkata"))]
        taken = {tuple(share.takes(["x", here]) for share in shares) for here in told}
        assert len(taken) == 1


def test_a_moment_without_a_zone_is_not_given_that_of_the_machine() -> None:
    naive = dt.datetime(2026, 11, 17, 12)  # noqa: DTZ001 - that is what it is about
    assert _zoneless(naive) is naive
