"""What an operator sees and does when something is wrong."""

from __future__ import annotations

import datetime as dt
import json
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.cli.shops import AZFDB
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.integration.cli.shops import Shop


def standing(shop: Shop, *words: str) -> Any:
    [status] = shop.azfdb("status", "--json", *words).json["pollers"]
    return status


def failing(shop: Shop) -> None:
    """Let the poller fail twice at orders 1 to 4."""
    shop.sell(1, 2, 3, 4, 5)
    for _ in range(2):
        assert shop.azfdb("run", "--once", "on_orders", REFUSED="2").code == 1


class TestAFailingPoller:
    def test_is_told_by_every_command_that_looks(self, any_shop: Shop) -> None:
        failing(any_shop)

        status = any_shop.azfdb("status", "--json")
        assert status.code == 1
        [poller], [problem] = status.json["pollers"], status.json["problems"]
        assert poller["condition"] == "failing"
        failure = poller["failure"]
        assert (failure["attempts"], failure["error_type"]) == (2, "ValueError")
        assert failure["error"] == "The handler failed: ValueError: cannot digest 2"
        assert (failure["batch"]["rows"], failure["batch"]["first"]) == (4, "1 (id=1)")
        assert problem["poller"] == "orders"
        assert problem["text"].startswith("failed 2 time(s) since 20")
        assert problem["text"].endswith(f"at a batch of 4 from 1 (id=1): {failure['error']}")
        assert any_shop.azfdb("status").out.startswith("orders: failed 2 time(s)"), "trouble comes first"

        doctor = any_shop.azfdb("doctor", "--json")
        assert doctor.code == 1
        [found] = [each for each in doctor.json["pollers"][0]["findings"] if each["check"] == "ticks"]
        assert (found["grade"], "cannot digest 2" in found["text"]) == ("error", True)

        inspected = any_shop.azfdb("inspect", "orders")
        assert inspected.out.startswith("orders: failed 2 time(s)")
        assert any_shop.azfdb("inspect", "orders", "--json").json["failure"] == failure

        any_shop.tick()
        well = any_shop.azfdb("status", "--json")
        assert (well.code, well.json["pollers"][0]["failure"], well.json["problems"]) == (0, None, [])

    def test_is_no_problem_up_to_a_limit(self, shop: Shop) -> None:
        failing(shop)
        assert shop.azfdb("status", "--max-failures", "1").code == 1
        assert shop.azfdb("status", "--max-failures", "2").code == 0

    def test_is_seen_where_its_table_is_gone(self, shop: Shop) -> None:
        shop.tick()
        with shop.engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE orders")
        assert shop.azfdb("run", "--once", "on_orders").code == 1
        status = shop.azfdb("status", "--json", "--store", shop.store_url)
        assert status.code == 1
        assert status.json["pollers"][0]["failure"]["batch"] is None
        assert standing(shop)["condition"] == "failing", "though its source cannot be looked at"

    def test_promises_no_time_to_catch_up(self, shop: Shop) -> None:
        shop.sell(1, 2, 3, 4, 5, 6)
        shop.tick()
        assert standing(shop)["catch_up_seconds"] > 0
        assert shop.azfdb("run", "--once", "on_orders", REFUSED="6").code == 1
        fails = standing(shop)
        assert (fails["condition"], fails["waiting_rows"], fails["catch_up_seconds"]) == ("failing", 2, None)
        shop.tick()
        shop.sell(7)
        assert standing(shop)["catch_up_seconds"] > 0
        shop.azfdb("pause", "orders")
        assert (standing(shop)["condition"], standing(shop)["catch_up_seconds"]) == ("paused", None)


class TestLimits:
    def test_a_lag_that_is_too_large_is_a_problem(self, shop: Shop) -> None:
        shop.sell(*range(1, 10))
        shop.tick()
        assert shop.azfdb("status", "--max-lag", "3600").code == 0
        late = shop.azfdb("status", "--max-lag", "0", "--json")
        assert late.code == 1
        assert "behind, more than 0 s" in late.json["problems"][0]["text"]

    def test_a_success_that_is_too_old_is_a_problem(self, shop: Shop) -> None:
        never = shop.azfdb("status", "--max-age", "60", "--json")
        assert (never.code, never.json["pollers"][0]["condition"]) == (1, "new")
        shop.tick()
        assert shop.azfdb("status", "--max-age", "60").code == 0
        assert shop.azfdb("status", "--max-age", "0").code == 1

    def test_a_paused_poller_is_beyond_no_limit(self, shop: Shop) -> None:
        shop.azfdb("pause", "orders")
        assert shop.azfdb("status", "--max-age", "0", "--max-lag", "0").code == 0


def aged(shop: Shop, minutes: int) -> None:
    """Let everything that the state tells be older."""
    [path] = (shop.folder / "state").rglob("orders.json")
    document = json.loads(path.read_text())
    then = (dt.datetime.now(dt.UTC) - dt.timedelta(minutes=minutes)).isoformat()
    document["checkpoint"]["updated_at"] = then
    document["lease"] |= {"acquired_at": then, "heartbeat_at": then, "expires_at": then}
    path.write_text(json.dumps(document))


class TestIdleAndDead:
    def test_a_poller_that_does_not_tick_any_more_is_silent(self, shop: Shop) -> None:
        shop.sell(1)
        shop.tick()
        idle = standing(shop)
        assert (idle["condition"], idle["problems"]) == ("idle", [])
        assert idle["next_expected"] > idle["last_tick"]

        aged(shop, minutes=1)
        quiet = standing(shop)
        assert quiet["condition"] == "idle", "an idle one leaves a sign every two minutes only"
        assert quiet["silent_from"] > dt.datetime.now(dt.UTC).isoformat()
        assert "silent if none comes by" in shop.azfdb("doctor").out
        assert "\n  last tick     1 min" in shop.azfdb("status", COLUMNS="80").out
        aged(shop, minutes=4)
        silent = standing(shop)
        assert silent["condition"] == "silent"
        assert silent["problems"][0].endswith("though its schedule is due: does the app run?")
        assert silent["next_expected"] < dt.datetime.now(dt.UTC).isoformat()

    def test_an_idle_tick_is_a_sign_of_life(self, shop: Shop) -> None:
        shop.sell(1)
        shop.tick()
        aged(shop, minutes=30)
        shop.tick()
        assert standing(shop)["condition"] == "idle"


class TestPausing:
    def test_one_that_is_not_paused_is_not_said_to_be_resumed(self, shop: Shop) -> None:
        shop.tick()
        assert shop.azfdb("resume", "orders").out == "orders was not paused.\n"

    def test_a_paused_poller_ticks_nowhere_until_it_is_resumed(self, any_shop: Shop) -> None:
        any_shop.sell(1, 2, 3, 4)
        paused = any_shop.azfdb("pause", "orders", "--why", "the target is rebuilt", "--by", "ann", "--json")
        [change] = paused.json["changes"]
        assert (paused.code, change["done"], change["after"]["paused"]["by"]) == (0, True, "ann")
        any_shop.tick()
        assert not (any_shop.folder / "handled.txt").exists()

        shown = any_shop.azfdb("status", COLUMNS="80")
        assert (shown.code, "paused by ann at 20" in shown.out, "the target is rebuilt" in shown.out) == (0, True, True)
        wide = any_shop.azfdb("status", COLUMNS="200").out.splitlines()
        assert wide[0].startswith("orders: paused by ann at 20"), "a reason of any length leaves the table as it is"
        assert (wide[1].split()[:2], wide[2].split()[:2]) == (["poller", "is"], ["orders", "paused"])
        assert "azfdb resume orders" in any_shop.azfdb("doctor").out
        any_shop.azfdb("reset", "orders", "--to-beginning", "--yes")
        assert standing(any_shop)["condition"] == "paused", "a reset does not start it"

        assert any_shop.azfdb("resume", "orders", "--store", any_shop.store_url).code == 0
        any_shop.tick()
        assert any_shop.handled == [1, 2, 3, 4]

    def test_an_unknown_poller_cannot_be_paused(self, shop: Shop) -> None:
        assert shop.azfdb("pause", "nobody").code == 3
        assert shop.azfdb("pause", "orders", "--why", "two\nlines").code == 3
        assert shop.azfdb("resume", "orders").code == 1


class TestForgetting:
    def test_a_state_is_removed_and_can_be_had_back(self, any_shop: Shop) -> None:
        any_shop.sell(1, 2, 3, 4)
        any_shop.tick()
        gone = any_shop.azfdb("forget", "orders", "--yes", "--json")
        assert gone.code == 0, gone.err
        assert any_shop.azfdb("inspect", "orders").code == 3
        assert any_shop.azfdb("reset", "orders", "--to-checkpoint", gone.json["backup"], "--yes").code == 0
        assert any_shop.position() == 4

    def test_nothing_is_forgotten_under_a_holder(self, shop: Shop) -> None:
        shop.sell(*range(1, 9))
        assert shop.azfdb("run", "--once", "on_orders", DIES_AFTER="1").code == -9
        assert shop.azfdb("forget", "orders", "--yes").code == 5
        assert shop.azfdb("forget", "orders", "--yes", "--force").code == 0
        assert standing(shop)["condition"] == "behind"

    def test_nothing_is_forgotten_that_was_not_confirmed(self, shop: Shop) -> None:
        shop.tick()
        assert shop.azfdb("forget", "orders").code == 2
        assert shop.azfdb("inspect", "orders").code == 0


class TestResets:
    def test_all_that_waits_can_be_skipped(self, any_shop: Shop) -> None:
        any_shop.sell(*range(1, 9))
        any_shop.tick()
        told = any_shop.azfdb("reset", "orders", "--to-end", "--yes")
        assert "0 row(s) will come again, 4 will be skipped." in told.out
        any_shop.sell(9)
        any_shop.tick()
        assert any_shop.handled == [1, 2, 3, 4, 9]

    def test_a_cursor_without_a_key_begins_with_the_rows_of_that_value(self, shop: Shop) -> None:
        shop.sell(*range(1, 5))
        shop.tick()
        moved = shop.azfdb("reset", "orders", "--to-cursor", "3", "--yes", "--json").json
        assert (moved["rows_again"], moved["rows_skipped"]) == (2, 0)
        shop.tick()
        assert shop.handled == [1, 2, 3, 4, 3, 4]

    def test_rows_cannot_be_counted_without_the_app(self, shop: Shop) -> None:
        shop.sell(1)
        shop.tick()
        told = shop.azfdb("reset", "orders", "--to-beginning", "--yes", "--store", shop.store_url)
        assert "cannot be told here" in told.out
        assert shop.azfdb("reset", "orders", "--to-end", "--yes", "--store", shop.store_url).code == 3

    def test_a_key_alone_is_no_goal(self, shop: Shop) -> None:
        assert shop.azfdb("reset", "orders", "--to-beginning", "--pk", "id=3", "--yes").code == 2

    def test_old_backups_are_removed(self, shop: Shop) -> None:
        shop.tick()
        folder = shop.folder / ".azfdb" / "backups"
        folder.mkdir(parents=True)
        old, young = (folder / f"orders-{_moment(days)}.json" for days in (31, 29))
        mine = folder / "notes.json"
        for path in (old, young, mine):
            path.write_text("{}")
        shop.azfdb("reset", "orders", "--to-beginning", "--yes")
        assert (old.exists(), young.exists(), mine.exists()) == (False, True, True)


def _moment(days: int) -> str:
    return (dt.datetime.now(dt.UTC) - dt.timedelta(days=days)).strftime("%Y%m%dT%H%M%S.%fZ")


class TestQuarantine:
    def test_a_row_is_replayed_as_it_is_now(self, used_shop: Shop) -> None:
        [entry] = used_shop.azfdb("quarantine", "list", "--json").json["rows"]
        first = entry["traceback"].splitlines()[1]
        assert "function_app.py" in first, "what the library did before is of no use to who repairs the handler"
        assert 'raise ValueError(f"cannot digest' in entry["traceback"]
        assert "cannot digest" in used_shop.azfdb("quarantine", "show", entry["event_id"]).out
        with used_shop.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE orders SET note = 'corrected', version = 70 WHERE id = 2")
        script = used_shop.folder / "function_app.py"
        script.write_text(script.read_text().replace('"a handler may print"', "[event.after for event in events]"))
        done = used_shop.azfdb("quarantine", "replay", "--all", "--refetch", "--json", REFUSED="2")
        assert (done.code, list(done.json["failed"])) == (1, [entry["event_id"]])
        assert "'note': 'corrected'" in done.err
        with used_shop.engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM orders WHERE id = 2")
        done = used_shop.azfdb("quarantine", "replay", "--all", "--refetch", "--json")
        [why] = done.json["failed"].values()
        assert (done.code, "not there any more" in why) == (1, True)

    @pytest.mark.parametrize("any_shop", ["sqlite_and_files"], indirect=True)
    def test_dropped_rows_can_be_restored_for_a_week(self, used_shop: Shop) -> None:
        before = used_shop.azfdb("quarantine", "list", "--json").json
        dropped = used_shop.azfdb("quarantine", "drop", "--all", "--yes", "--json").json
        assert used_shop.azfdb("quarantine", "restore", "--all").out == "1 row(s) are in quarantine again.\n"
        assert used_shop.azfdb("quarantine", "list", "--json").json == before

        used_shop.azfdb("quarantine", "drop", "--all", "--yes")
        folder = Path(dropped["backup"]).parent
        for path in folder.glob("quarantine-*.json"):
            path.rename(folder / f"quarantine-{_moment(8)}.json")
        assert used_shop.azfdb("quarantine", "restore", "--all", "--json").json == {"rows": []}
        assert "no such row was dropped within the last week" in used_shop.azfdb("quarantine", "restore", "--all").out

    def test_a_range_is_given_to_the_handler_again(self, shop: Shop) -> None:
        shop.sell(*range(1, 9))
        shop.tick()
        before = shop.document()
        done = shop.azfdb("replay", "orders", "--from", "2", "--to", "7", "--json")
        assert done.json == {"poller": "orders", "rows": 6}
        assert shop.handled == [1, 2, 3, 4, *range(2, 8)]
        assert shop.document() == before
        failed = shop.azfdb("replay", "orders", "--from", "2", "--to", "7", REFUSED="6")
        assert (failed.code, "after 4 row(s), at a batch that begins with 6" in failed.complaint) == (1, True)


class TestTargets:
    @pytest.mark.parametrize("url", ["azureblob://SHOP_STORAGE/nowhere", "azuretable://SHOP_STORAGE/nowhere"])
    def test_an_unknown_place_in_azure_is_an_error(self, shop: Shop, azurite: str, url: str) -> None:
        told = shop.azfdb("status", "--store", url, SHOP_STORAGE=azurite)
        assert (told.code, "nowhere here" in told.complaint) == (3, True)

    def test_an_unknown_table_or_folder_is_an_error(self, shop: Shop, tmp_path: Path) -> None:
        told = shop.azfdb("status", "--store", f"{shop.database}#nowhere")
        assert (told.code, "There is no table nowhere here" in told.complaint) == (3, True)
        assert shop.azfdb("status", "--store", f"file://{tmp_path}/nowhere").code == 3

    def test_the_version_is_told(self, shop: Shop) -> None:
        told = shop.executable("--version")
        assert (told.code, told.out.startswith("azfdb ")) == (0, True)

    def test_an_app_is_run_by_option_or_argument(self, shop: Shop) -> None:
        shop.sell(1)
        assert shop.azfdb("run", "--app", ".", "--once", "on_orders").code == 0
        assert shop.azfdb("run", ".", "--once", "on_orders").code == 0
        assert shop.azfdb("run", ".", "--app", "elsewhere", "--once", "on_orders").code == 2

    def test_what_is_typed_counts_more_than_the_environment(self, shop: Shop) -> None:
        shop.sell(1)
        shop.tick()
        named = {"AZFDB_STORE": "file:///nowhere", "AZFDB_QUARANTINE": "file:///nowhere"}
        assert shop.azfdb("status", **named).code == 3
        assert shop.azfdb("status", "--app", ".", **named).code == 0
        assert shop.azfdb("status", "--store", shop.store_url, AZFDB_APP="nowhere").code == 0
        assert shop.azfdb("status", "--store", shop.store_url, "--app", ".").code == 3
        assert "goes with --store" in shop.azfdb("status", "--app-name", "shop").complaint

    def test_a_quarantine_that_is_named_stands_in_for_that_of_the_app(self, used_shop: Shop, tmp_path: Path) -> None:
        shop, elsewhere = used_shop, tmp_path / "elsewhere"
        elsewhere.mkdir()
        waiting = len(shop.azfdb("quarantine", "list", "--json").json["rows"])
        named = ("--quarantine", f"file://{elsewhere}")
        assert standing(shop)["quarantined"] == waiting > 0
        assert shop.azfdb("status", "--json", *named).json["pollers"][0]["quarantined"] == 0

        shop.azfdb("quarantine", "drop", "--all", "--yes")
        shop.azfdb("quarantine", "restore", "--all", *named)
        assert shop.azfdb("quarantine", "list", "--json").json == {"rows": []}
        replayed = shop.azfdb("quarantine", "replay", "--all", "--json", *named)
        assert len(replayed.json["handled"]) == waiting
        assert shop.azfdb("quarantine", "list", "--json", *named).json == {"rows": []}

    @pytest.mark.parametrize(
        "words", ["backfill orders --as x", "verify orders", "stream show orders", "outbox status orders"]
    )
    def test_what_needs_the_app_says_so(self, shop: Shop, words: str) -> None:
        shop.tick()
        told = shop.azfdb(*words.split(), "--store", shop.store_url)
        assert (told.code, "give --app instead of --store" in told.complaint) == (3, True)

    def test_a_store_alone_is_examined_as_far_as_it_goes(self, shop: Shop) -> None:
        failing(shop)
        told = shop.azfdb("doctor", "--store", shop.store_url, "--json")
        grades = {each["check"]: each["grade"] for each in told.json["pollers"][0]["findings"]}
        assert (told.code, grades["state"], grades["ticks"]) == (1, "ok", "error")


def with_output(shop: Shop) -> None:
    """Put one of the host's output bindings above the trigger of the app."""
    script = shop.folder / "function_app.py"
    output = '@app.queue_output(arg_name="out", queue_name="orders", connection="AzureWebJobsStorage")\n'
    text = script.read_text().replace("@db.trigger", f"{output}@db.trigger")
    script.write_text(text.replace("TimerRequest, events", "TimerRequest, events, out: func.Out[str]"))


class TestOutputBindings:
    def test_one_below_a_trigger_is_warned_of(self, shop: Shop) -> None:
        with_output(shop)
        doctor = shop.azfdb("doctor", "--json")
        [found] = [each for each in doctor.json["pollers"][0]["findings"] if each["check"] == "output binding"]
        assert found["grade"] == "warning"
        assert "when the checkpoint has moved" in found["text"]
        run = shop.azfdb("run", "--once", "on_orders")
        assert (run.code, "when the checkpoint has moved" in run.err) == (0, True)

    def test_nothing_is_replayed_into_one(self, shop: Shop) -> None:
        shop.sell(1)
        with_output(shop)
        told = shop.azfdb("replay", "orders", "--from", "1", "--to", "1")
        assert (told.code, "would be lost here" in told.complaint) == (3, True)


def test_who_holds_late_commits_back_is_in_the_log_of_a_run(shop_on_postgres: Shop) -> None:
    shop = shop_on_postgres
    with shop.engine.connect() as writer:
        pid = writer.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        writer.exec_driver_sql("INSERT INTO orders VALUES (2, 2, 'not yet committed')")
        shop.sell(3)
        told = shop.azfdb("run", "--once", "on_orders")
    assert f"held back by session {pid} (azfdb, " in told.err


def test_watching_shows_the_time_and_how_what_waits_has_changed(shop: Shop) -> None:
    from tests.integration.cli.test_screens import CODES

    shop.sell(1, 2, 3)
    seen = shop.folder / "seen.txt"
    with (
        seen.open("wb") as out,
        subprocess.Popen(
            ["script", "-qec", f"stty cols 200; {AZFDB} status --watch --every 0.2", "/dev/null"],
            cwd=shop.folder,
            env=shop.environment | {"TERM": "xterm"},
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
        ) as process,
    ):
        wait_for(lambda: CODES.sub("", seen.read_text(errors="replace")).count("██") > 0, 30, "nothing is drawn")
        process.send_signal(signal.SIGTERM)
    drawn = CODES.sub("", seen.read_text(errors="replace"))
    assert "trend" in drawn
    assert f"{dt.datetime.now(dt.UTC):%Y-%m-%d}" in drawn


SCREENS = {
    80: """
orders
  problem       failed 2 time(s) since WHEN at a batch of 2 from
                5 (id=5): The handler failed: ValueError: cannot digest 6
  is            failing
  position      4 id=4
  waiting       2 rows
  rate (5 min)  N
  last tick     N
  last success  N
  next tick     HH:MM:SSZ
  lease         free, last #3
  quarantined   0

""",
    200: """
orders: failed 2 time(s) since WHEN at a batch of 2 from 5 (id=5): The handler failed: ValueError: cannot digest 6
poller  is  position  waiting  rate (5 min)  last tick  last success  next tick  lease  quarantined
orders  failing  4 id=4    2 rows   N  N  N  HH:MM:SSZ  free, last #3  0
""",
}


@pytest.mark.parametrize("columns", [80, 200])
def test_the_screen_of_a_failing_poller(shop: Shop, columns: int) -> None:
    shop.sell(1, 2, 3, 4, 5, 6)
    shop.tick()
    for _ in range(2):
        shop.azfdb("run", "--once", "on_orders", REFUSED="6")
    shown = shop.azfdb("status", COLUMNS=str(columns)).out
    plain = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "WHEN", shown)
    plain = re.sub(r"\d\d:\d\d:\d\dZ", "HH:MM:SSZ", plain)
    plain = re.sub(r"[\d.]+ (s|min)( \d+ s)?( ago)?(?!\))|[\d.]+/min", "N", plain)
    assert [line.split() for line in plain.split("\n")] == [line.split() for line in SCREENS[columns][1:].split("\n")]
