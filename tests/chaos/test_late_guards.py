"""For each guard of rows that are late, come again or have no share: what is lost without it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import make_url, text

from tests.chaos.scene import Scene, removing
from tests.support.followers import standby_of
from tests.support.visitors import visitor
from tests.support.waiting import wait_for

TURNS: dict[str, tuple[Any, Any]] = {"batch": (1, 2), "day": ("2026-01-01", "2026-01-02")}
"""A value that comes again and again, and the one after it."""


def ago(**time: float) -> dt.datetime:
    """A moment of the past as a naive time in UTC, the zone of the servers."""
    return dt.datetime.now(dt.UTC).replace(tzinfo=None) - dt.timedelta(**time)


@removing("boundary")
@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_a_late_commit_among_rows_of_one_value_is_not_jumped_over(scene: Scene, without: str) -> None:
    load = {"stamp": ago(hours=1)}  # all transactions of one load carry the time at which it began
    scene.write(1, **load)
    scene.start("poller")
    scene.wait_for_row(1)
    with scene.engine.connect() as late:
        scene.insert(late, 1, **load)
        scene.write(1, **load)
        scene.wait_for_ticks()
        late.commit()
    scene.write(1)
    scene.wait_for_row(4)

    verdict = scene.verdict()
    assert bool(verdict.lost) is bool(without)
    assert verdict.concurrent == verdict.stale == []


@removing("same_value")
@pytest.mark.parametrize(("server", "cursor"), [("postgres", "batch"), ("mariadb", "day")])
def test_a_value_that_comes_again_on_a_smaller_key_is_delivered(scene: Scene, without: str, cursor: str) -> None:
    now, later = TURNS[cursor]
    scene.write(1, id=5, **{cursor: now})
    scene.start("poller", source={"cursor_column": cursor})
    scene.wait_for(what="committed")
    scene.write(1, id=3, **{cursor: now})
    scene.wait_for_ticks()
    scene.write(1, id=6, **{cursor: later})
    scene.wait_for_row(6)

    verdict = scene.verdict()
    assert bool(verdict.lost) is bool(without)
    assert verdict.concurrent == []


@removing("same_value")
@pytest.mark.parametrize(("server", "cursor"), [("postgres", "day"), ("mariadb", "batch")])
def test_what_was_delivered_of_a_value_is_known_after_a_kill(scene: Scene, without: str, cursor: str) -> None:
    now, later = TURNS[cursor]
    scene.write(1, id=5, **{cursor: now})
    scene.start("victim", source={"cursor_column": cursor})
    scene.wait_for(what="committed")
    scene.hold("victim", "commit")
    scene.write(1, id=7, **{cursor: now})
    scene.wait_for(what="waits", place="commit")
    scene.kill("victim")
    scene.write(1, id=3, **{cursor: now})
    scene.start("successor", source={"cursor_column": cursor})
    scene.wait_for_ticks()
    scene.write(1, id=8, **{cursor: later})
    scene.wait_for_row(8)

    verdict = scene.verdict()
    assert bool(verdict.lost) is bool(without)
    assert verdict.repeated == 1  # only what the victim could not commit
    assert verdict.concurrent == []


@pytest.fixture
def reader(scene: Scene, url: str) -> Iterator[str]:
    """The URL of a user of MariaDB who may not see what others do."""
    with visitor(url, f"SELECT ON {make_url(url).database}.*") as reader:
        yield reader


@removing("settling")
@pytest.mark.parametrize("server", ["mariadb"])
def test_who_cannot_see_late_commits_keeps_the_distance_that_was_asked_for(
    scene: Scene, without: str, reader: str
) -> None:
    scene.write(1, stamp=ago(hours=2))
    with scene.engine.connect() as late:
        scene.insert(late, 1, stamp=ago(seconds=40))
        scene.write(1, stamp=ago(seconds=30))
        scene.start("careful", url=reader, source={"settle_seconds": 3600})
        scene.wait_for_ticks()
        late.commit()
    scene.kill("careful")
    scene.start("hasty", url=reader, source={"settle_seconds": 1})
    scene.wait_for_row(3)

    verdict = scene.verdict()
    assert bool(verdict.lost) is bool(without)
    assert verdict.concurrent == verdict.stale == []


@removing("utc")
@pytest.mark.parametrize("server", ["mariadb"])
def test_a_timestamp_is_the_same_moment_in_every_zone(scene: Scene, without: str) -> None:
    cursor: dict[str, Any] = {"source": {"cursor_column": "moment"}}
    scene.write(1, moment=ago(hours=3))
    scene.start("in summer", connect_args={"init_command": "SET time_zone = '+02:00'"}, **cursor)
    scene.wait_for(what="committed")
    scene.kill("in summer")
    scene.write(1, moment=ago(hours=2))
    scene.write(1, moment=ago(minutes=30))
    scene.start("in winter", connect_args={"init_command": "SET time_zone = '+00:00'"}, **cursor)
    scene.wait_for_row(3)

    verdict = scene.verdict()
    assert bool(verdict.lost) is bool(without)
    assert verdict.concurrent == []


@contextmanager
def waiting_insert(scene: Scene) -> Iterator[None]:
    """A row whose statement has taken its stamp and waits for a lock until the end of the block."""
    name, number = scene.engine.url.database, len(scene.committed) + 1
    wait = f"SELECT GET_LOCK('{name}', 600)"
    insert = f"INSERT INTO changes (id, version, stamp) SELECT {number}, 1, now(6) FROM ({wait}) AS waiting"
    is_waiting = f"SELECT 1 FROM information_schema.processlist WHERE state = 'User lock' AND info LIKE '%{name}%'"
    with ThreadPoolExecutor() as aside, scene.engine.connect() as holder:
        holder.execute(text(wait))
        inserted = aside.submit(scene.execute, insert)
        scene.committed[number] = 1
        try:
            wait_for(lambda: holder.execute(text(is_waiting)).first(), 30, "the statement does not wait")
            yield
        finally:
            holder.execute(text(f"DO RELEASE_LOCK('{name}')"))
    inserted.result()


@removing("statements")
@pytest.mark.parametrize("server", ["mariadb"])
def test_a_statement_that_has_its_stamp_and_waits_is_not_jumped_over(scene: Scene, without: str) -> None:
    with waiting_insert(scene):
        scene.write(1)
        scene.start("poller")
        scene.wait_for_ticks()
    scene.write(1)
    scene.wait_for_row(3)

    verdict = scene.verdict()
    assert bool(verdict.lost) is bool(without)
    assert verdict.concurrent == verdict.stale == []


@removing("standby")
def test_a_standby_that_is_promoted_shows_its_late_commits(scene: Scene, without: str, url: str) -> None:
    scene.write(1)
    with standby_of(url) as standby:
        scene.move_to(standby.url)
        scene.start("poller")
        scene.wait_for_row(1)
        standby.promote()
        with scene.engine.connect() as late:
            scene.insert(late, 1)
            scene.write(1)
            scene.wait_for_ticks()
            late.commit()
        scene.write(1)
        scene.wait_for_row(4)
        verdict = scene.verdict()
        scene.engine.dispose()

    assert bool(verdict.lost) is bool(without)
    assert verdict.concurrent == verdict.stale == []


HIDDEN = {
    "a materialized view": ("stamp", "CREATE MATERIALIZED VIEW shown AS SELECT * FROM changes"),
    "a cached sequence below a view": ("id", "CREATE VIEW shown AS SELECT * FROM changes"),
}


@removing("grade")
@pytest.mark.parametrize("hidden", HIDDEN)
def test_what_cannot_be_watched_is_not_called_exact(scene: Scene, without: str, hidden: str) -> None:
    cursor, view = HIDDEN[hidden]
    scene.write(1)
    scene.execute("ALTER SEQUENCE changes_id_seq CACHE 20", view)
    scene.start("poller", graded=True, source={"table": "shown", "cursor_column": cursor})
    scene.wait_for(what="graded")

    (graded,) = scene.seen(what="graded")
    assert (graded["grade"] == "exact") is bool(without)
    scene.verdict()


@removing("null_share")
def test_a_row_whose_key_is_null_has_a_share(scene: Scene, without: str) -> None:
    for code in (None, 2, 3, 4, 5):
        scene.write(1, code=code)
    for share in range(2):
        source = {"pk_columns": ["code"], "partition": (share, 2)}
        scene.start(f"share {share}", poller=f"share-{share}", source=source)
    scene.wait_for_row(4)
    scene.wait_for_row(5)

    assert bool(scene.verdict().lost) is bool(without)


@removing("versions")
def test_the_state_that_was_made_anew_is_not_written_by_its_former_owner(scene: Scene, without: str) -> None:
    database: dict[str, Any] = {"storage": None, "ttl": 60}  # no renewal comes in between
    scene.write(1, 2, 3)
    scene.start("sleeper", hold=["commit"], **database)
    scene.start("successor", hold=["start", "handler"], **database)
    scene.wait_for(what="waits", who="sleeper", place="commit")
    scene.execute("DELETE FROM azfdb_state")
    scene.let_go("successor", "start")
    scene.wait_for(what="begin", who="successor")
    scene.let_go("sleeper", "commit")
    scene.wait_for_ticks(who="sleeper")
    scene.let_go("successor", "handler")

    verdict = scene.verdict()
    assert bool(scene.seen(what="committed", who="sleeper")) is bool(without)
    assert verdict.lost == []
