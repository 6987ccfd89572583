"""Every command as an operator uses it, on three kinds of database and store."""

from __future__ import annotations

import json
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli.shops import AZFDB
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.integration.cli.shops import Shop


def test_watching_a_poller(any_shop: Shop) -> None:
    shop = any_shop
    shop.sell(1, 2, 3, 4, 5, 6)

    [before] = shop.azfdb("status", "--json").json["pollers"]
    assert (before["cursor"], before["waiting_rows"], before["lease"]) == (None, 6, None)

    shop.tick()
    [after] = shop.azfdb("status", "--json").json["pollers"]
    assert after["cursor"] == 4
    assert after["key"] == {"id": 4}
    assert after["waiting_rows"] == 2
    assert after["rows_per_second"] > 0
    assert after["quarantined"] == 0
    assert (after["lease"]["token"], after["lease"]["alive"]) == (1, False)
    assert shop.azfdb("status", "--json", "--store", shop.store_url).json["pollers"][0]["cursor"] == 4

    waiting = shop.azfdb("tail", "orders", "--json").json
    assert [event["after"]["note"] for event in waiting["events"]] == ["order 5", "order 6"]
    assert shop.azfdb("tail", "orders", "--limit", "1").out.endswith(
        "1 event(s) would be delivered; more wait behind them.\n"
    )
    assert shop.handled == [1, 2, 3, 4], "looking changes nothing"
    assert shop.position() == 4

    inspected = shop.azfdb("inspect", "orders")
    assert "checkpoint.cursor.value" in inspected.out
    assert inspected.code == 0


def test_whoever_holds_the_horizon_is_named(shop_on_postgres: Shop) -> None:
    shop = shop_on_postgres
    shop.sell(1)
    with shop.engine.connect() as writer:
        pid = writer.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        writer.exec_driver_sql("INSERT INTO orders VALUES (2, 2, 'not yet committed')")
        shop.sell(3)
        [standing] = shop.azfdb("status", "--json").json["pollers"]
        shown = shop.azfdb("status", COLUMNS="80").out

    [holder] = standing["horizon"]["holders"]
    assert (holder["session"], holder["user"]) == (str(pid), "azfdb")
    assert f"session {pid} (azfdb, " in shown
    assert (standing["waiting_rows"], standing["lag_seconds"]) == (2, None), "they are there, if not to be read yet"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("backfill", "orders", "--as", "again"), "again: the stretch of orders is complete; 4 row(s)"),
        (("verify", "orders"), "0 missing of 4"),
    ],
    ids=["backfill", "verify"],
)
def test_what_is_held_back_is_waited_for(shop_on_postgres: Shop, words: tuple[str, ...], told: str) -> None:
    shop = shop_on_postgres
    shop.sell(1, 2, 3, 4)
    shop.tick()
    with ThreadPoolExecutor() as aside, shop.engine.connect() as writer:
        pid = writer.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        writer.exec_driver_sql("INSERT INTO orders VALUES (5, 5, 'not yet committed')")
        running = aside.submit(shop.azfdb, *words)
        wait_for(
            lambda: f"session {pid}" in (shop.folder / ".err").read_text(), 30, "it does not say whom it waits for"
        )
        writer.rollback()
        done = running.result()
    assert (done.code, told in done.out) == (0, True), done


def test_watching_goes_on_until_it_is_interrupted(any_shop: Shop) -> None:
    shop = any_shop
    shop.sell(1)
    words = [str(AZFDB), "status", "--watch", "--every", "0.2", "--json"]
    with subprocess.Popen(words, cwd=shop.folder, env=shop.environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert looks[0]["at"] < looks[1]["at"]
    assert looks[1]["pollers"][0]["waiting_rows"] == 1


def test_examining_an_app(any_shop: Shop) -> None:
    any_shop.sell(1, 2)
    with any_shop.engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO orders VALUES (9, NULL, 'without a version')")

    report = any_shop.azfdb("doctor", "--json")

    assert report.code == 0, report.out
    found = {finding["check"]: finding for finding in report.json["pollers"][0]["findings"]}
    assert found["index"]["grade"] == "ok"
    assert "orders_by_version" in found["index"]["text"]
    assert found["cursor"]["text"].startswith("version INT")
    assert found["NULL cursors"]["grade"] == "warning"
    assert found["database clock"]["grade"] == found["storage clock"]["grade"] == "ok"
    assert found["late commits"]["text"].startswith("exact")
    assert found["requests"]["text"].startswith("259,200 ticks a month")
    assert any_shop.azfdb("doctor", "--strict").code == 1


def test_moving_a_poller_and_back(any_shop: Shop) -> None:
    shop = any_shop
    shop.sell(*range(1, 9))
    shop.tick()

    reset = shop.azfdb("reset", "orders", "--to-beginning", "--yes", "--json")
    assert reset.code == 0, reset.err
    assert reset.json["before"]["checkpoint"]["cursor"]["value"] == 4
    assert reset.json["after"]["checkpoint"] == {}
    assert shop.document()["checkpoint"] == {}

    back = shop.azfdb("reset", "orders", "--to-checkpoint", reset.json["backup"], "--yes", "--store", shop.store_url)
    assert back.code == 0, back.err
    assert shop.position() == 4

    assert shop.azfdb("reset", "orders", "--to-cursor", "6", "--pk", "id=6", "--yes").code == 0
    shop.tick()
    assert shop.handled == [1, 2, 3, 4, 7, 8]

    app = shop.folder / "function_app.py"
    app.write_text(app.read_text().replace('table="orders"', 'table="orders", where="id > 0"'))
    assert shop.azfdb("status").code == 1
    assert shop.azfdb("reset", "orders", "--adopt-fingerprint", "--yes").code == 0
    assert (shop.azfdb("status").code, shop.position()) == (0, 8)


def test_cloning_and_exporting(any_shop: Shop) -> None:
    shop = any_shop
    shop.sell(1, 2)
    shop.tick()

    assert shop.azfdb("clone", "orders", "orders-copy", "--yes").code == 0
    assert shop.position("orders-copy") == 2
    assert [poller["poller"] for poller in shop.azfdb("status", "--json").json["pollers"]] == ["orders", "orders-copy"]

    exported = shop.azfdb("export", "orders", "--output", "orders.json")
    assert (exported.code, exported.out) == (0, "")
    assert json.loads((shop.folder / "orders.json").read_text())["checkpoint"]["cursor"]["value"] == 2
    again = shop.azfdb("export", "orders", "--output", "orders.json")
    assert again.code == 3, "an export never overwrites a file"
    assert json.loads(shop.azfdb("export", "orders").out)["poller_name"] == "orders"


def test_breaking_a_lease(any_shop: Shop) -> None:
    shop = any_shop
    shop.sell(1)
    shop.azfdb("run", "--once", "on_orders", DIES_AFTER="1")
    held = shop.document()["lease"]

    refused = shop.azfdb("lease", "break", "orders", "--yes")
    assert refused.code == 5
    assert held["owner_id"] in refused.complaint
    assert shop.document()["lease"] == held

    broken = shop.azfdb("lease", "break", "orders", "--yes", "--force", "--json")
    assert broken.code == 0, broken.err
    assert broken.json["after"]["lease"]["fencing_token"] == held["fencing_token"] + 1
    shop.tick()
    assert shop.handled == [1, 1]


def test_quarantined_rows(any_shop: Shop) -> None:
    shop = any_shop
    shop.sell(1, 2, 3, 4)
    shop.tick(REFUSED="2,3", MAX_ATTEMPTS="1")

    listed = shop.azfdb("quarantine", "list", "--json").json["rows"]
    assert [row["event"]["pk"]["id"] for row in listed] == [2, 3]
    assert shop.azfdb("quarantine", "list", "--json", "--quarantine", shop.sink_url).json["rows"] == listed
    assert shop.azfdb("quarantine", "list", "--json", "--error", "KeyError").json["rows"] == []
    first, second = (row["event_id"] for row in listed)

    shown = shop.azfdb("quarantine", "show", first[:8])
    assert "cannot digest 2" in shown.out

    failed = shop.azfdb("quarantine", "replay", first, "--json", REFUSED="2")
    assert (failed.code, list(failed.json["failed"])) == (1, [first])
    assert shop.azfdb("quarantine", "replay", first, "--json").json["handled"] == [first]
    assert f"2 {first}" in (shop.folder / "handled.txt").read_text(), "a replayed event keeps its id"

    filled = shop.azfdb("backfill", "orders", "--as", "again", REFUSED="4", MAX_ATTEMPTS="1")
    assert "1 of them in quarantine (azfdb quarantine list --poller again)" in " ".join(filled.out.split())
    of_backfill = shop.azfdb("quarantine", "list", "--poller", "again", "--json").json["rows"]
    assert [row["event"]["pk"]["id"] for row in of_backfill] == [4]
    shop.azfdb("backfill", "orders", "--as", "third", REFUSED="4", MAX_ATTEMPTS="1")
    twice = shop.azfdb("quarantine", "show", of_backfill[0]["event_id"])
    assert (twice.code, "in the quarantine of again, third" in twice.complaint) == (3, True)
    assert shop.azfdb("quarantine", "show", of_backfill[0]["event_id"], "--poller", "third").code == 0
    shop.azfdb("quarantine", "drop", "--all", "--yes", "--poller", "third")
    assert shop.azfdb("quarantine", "replay", "--all", "--poller", "again", "--json").json["failed"] == {}

    dropped = shop.azfdb("quarantine", "drop", "--all", "--yes", "--json").json
    assert [row["event_id"] for row in dropped["rows"]] == [second]
    assert json.loads((shop.folder / dropped["backup"]).read_text())[0]["event_id"] == second
    assert shop.azfdb("quarantine", "list").out == "Nothing is in quarantine.\n"


def test_a_backfill_goes_on_after_a_kill_and_leaves_the_live_poller_alone(any_shop: Shop) -> None:
    shop = any_shop
    shop.sell(*range(1, 11))
    while shop.azfdb("status", "--json").json["pollers"][0]["waiting_rows"]:
        shop.tick()
    live = shop.document()
    (shop.folder / "handled.txt").unlink()

    command = ("backfill", "orders", "--as", "again", "--from", "2", "--json")
    assert shop.azfdb(*command, DIES_AFTER="8").code == -9
    assert shop.azfdb(*command).code == 5, "the killed one's lease is still alive"
    assert shop.azfdb("lease", "break", "again", "--force", "--yes").code == 0
    shop.sell(11)
    done = shop.azfdb(*command)

    assert done.code == 0, done.err
    assert set(shop.handled) == set(range(2, 11)), "up to where the live poller was when it was begun"
    assert shop.handled.count(5) == 1, "what was committed does not come again"
    assert shop.document() == live
    assert not done.json["keeps_state"]
    assert shop.azfdb("inspect", "again").code == 3, "it leaves no state behind"


def test_a_backfill_whose_first_batch_failed_goes_on(any_shop: Shop) -> None:
    shop = any_shop
    shop.sell(*range(1, 7))
    shop.tick()
    shop.tick()
    (shop.folder / "handled.txt").unlink()

    command = ("backfill", "orders", "--as", "again", "--json")
    for _ in range(2):
        failed = shop.azfdb(*command, REFUSED="1")
        assert failed.code != 0
        assert "cannot digest 1" in failed.err
    shop.sell(7)
    shop.tick()
    assert "needs another name" in shop.azfdb("backfill", "orders", "--as", "again", "--to", "3").complaint
    assert shop.azfdb(*command).json["rows"] == 6, "up to where the live poller was when it was begun"
    assert set(shop.handled) == set(range(1, 8))


def test_verifying_what_was_delivered(any_shop: Shop) -> None:
    shop = any_shop
    shop.sell(1, 2, 3, 4, 5)
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO orders VALUES (40, 4, 'of the version of the checkpoint, yet after it')"
        )
    shop.tick()

    assert shop.azfdb("verify", "orders").out == "0 missing of 4\n"
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE azfdb_delivered SET position_hash = 'gone' WHERE row_key = '{\"id\": 3}'")

    lost = shop.azfdb("verify", "orders", "--json")
    assert (lost.code, lost.json["checked"]) == (1, 4)
    assert [row["key"] for row in lost.json["missing"]] == [{"id": 3}]

    refused = shop.azfdb("verify", "orders", "--replay", REFUSED="3")
    assert refused.code == 1
    assert "cannot digest 3" in refused.complaint
    assert shop.azfdb("verify", "orders", "--replay").out.endswith("1 missing of 4, now replayed\n")
    assert shop.handled == [1, 2, 3, 4, 3]
    assert shop.azfdb("verify", "orders", "--sample", "0.5").code == 0

    shop.sell(6)
    shop.tick(REFUSED="6", MAX_ATTEMPTS="1")
    assert shop.azfdb("verify", "orders").out == "0 missing of 7, 1 in quarantine\n"


def test_every_command_through_the_real_executable(shop: Shop) -> None:
    shop.sell(1, 2, 3, 4, 5)
    shop.tick(REFUSED="2", MAX_ATTEMPTS="1")
    [entry] = shop.azfdb("quarantine", "list", "--json").json["rows"]

    for words in (
        ("status",),
        ("inspect", "orders"),
        ("doctor",),
        ("tail", "orders"),
        ("run", "--once", "on_orders"),
        ("clone", "orders", "copy", "--yes"),
        ("export", "orders"),
        ("lease", "break", "orders", "--yes"),
        ("quarantine", "list"),
        ("quarantine", "show", entry["event_id"]),
        ("quarantine", "replay", entry["event_id"]),
        ("quarantine", "drop", "--all", "--yes"),
        ("backfill", "orders", "--as", "again"),
        ("verify", "orders", "--replay"),
        ("reset", "orders", "--to-beginning", "--yes"),
    ):
        done = shop.executable(*words)
        assert (done.code, "Traceback" in done.err) == (0, False), (words, done)
        assert (done.out + done.err).strip()
        assert "\x1b" not in done.out + done.err, "a pipe gets no control codes"
