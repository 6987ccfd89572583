"""Every command about a poller whose source compares hashes."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from azure_functions_db import HashDiffSource

if TYPE_CHECKING:
    from tests.integration.cli.shops import Shop


@pytest.fixture
def diffing_shop(any_shop: Shop) -> Shop:
    """A shop whose orders are found without their version column."""
    app = any_shop.folder / "function_app.py"
    written = app.read_text()
    keyset = 'SqlAlchemySource(url="%SHOP_DB%", table="orders", cursor_column="version", pk_columns=["id"])'
    assert keyset in written
    replaced = written.replace(keyset, 'HashDiffSource(url="%SHOP_DB%", table="orders", pk_columns=["id"])')
    app.write_text(replaced.replace("import DbBindings, SqlAlchemySource", "import DbBindings, HashDiffSource"))
    return any_shop


def test_every_command_knows_a_hash_diff(diffing_shop: Shop) -> None:
    shop = diffing_shop
    shop.sell(1, 2, 3, 4, 5, 6)

    examined = shop.azfdb("doctor", "orders", "--json")
    findings = {finding["check"]: finding for finding in examined.json["pollers"][0]["findings"]}
    assert "6 row(s)" in findings["cost"]["text"]
    assert {finding["grade"] for finding in findings.values()} <= {"ok", "note"}

    [before] = shop.azfdb("status", "--json").json["pollers"]
    assert (before["waiting_rows"], before["waiting_unit"]) == (6, "changes")
    shop.tick()
    [after] = shop.azfdb("status", "--json").json["pollers"]
    assert (after["cursor"], after["key"], after["waiting_rows"]) == (1, {"id": 4}, 2)
    assert "2 changes" in shop.azfdb("tail", "orders").out
    assert shop.handled == [1, 2, 3, 4], "looking changes nothing"
    assert shop.azfdb("inspect", "orders").code == 0
    assert shop.azfdb("export", "orders", "--output", "saved.json").code == 0
    shop.tick()
    shop.tick()
    assert shop.handled == [1, 2, 3, 4, 5, 6]

    with shop.engine.begin() as connection:
        connection.execute(text("DELETE FROM orders WHERE id = 2"))
    shop.sell(7)
    shop.tick(REFUSED="2", MAX_ATTEMPTS="1")
    [row] = shop.azfdb("quarantine", "list", "--json").json["rows"]
    assert (row["event"]["op"], row["event"]["pk"]) == ("delete", {"id": 2})
    assert shop.azfdb("quarantine", "replay", "--all", "--json").json["failed"] == {}

    assert shop.azfdb("lease", "break", "orders", "--yes").code == 0
    assert shop.azfdb("clone", "orders", "copy", "--yes").code == 0
    assert shop.azfdb("reset", "orders", "--adopt-fingerprint", "--yes").code == 0

    assert shop.azfdb("reset", "orders", "--to-checkpoint", "saved.json", "--yes").code == 0
    assert shop.azfdb("status", "orders").code == 1
    assert "no longer has" in shop.azfdb("status", "orders", "--json").json["pollers"][0]["problems"][0]
    assert shop.azfdb("reset", "orders", "--to-beginning", "--yes").code == 0
    shop.tick()
    assert shop.handled[-4:] == [1, 3, 4, 5], "a reset delivers everything that is there anew"


def test_rows_are_delivered_again_by_a_backfill(diffing_shop: Shop) -> None:
    shop = diffing_shop
    shop.sell(*range(1, 10))
    assert "no checkpoint to fill up to" in shop.azfdb("backfill", "orders", "--as", "some").complaint
    for _ in range(3):
        shop.tick()
    live = shop.document()
    some = ("backfill", "orders", "--as", "some", "--from", "3", "--to", "8", "--json")
    assert shop.azfdb(*some, REFUSED="7").code == 1
    assert shop.handled[9:] == [3, 4, 5, 6], "the second batch has failed"
    assert "needs another name" in shop.azfdb("backfill", "orders", "--as", "some", "--from", "1").complaint
    assert shop.azfdb(*some).json["rows"] == 2, "the same command goes on"
    assert "is no value of id" in shop.azfdb("backfill", "orders", "--as", "other", "--from", "soon").complaint
    with shop.engine.begin() as connection:
        connection.execute(text("UPDATE orders SET note = 'new' WHERE id = 2"))
    assert shop.azfdb("backfill", "orders", "--as", "all", "--json").json["rows"] == 9
    assert shop.azfdb("replay", "orders", "--from", "3", "--to", "4", "--json").json["rows"] == 2
    ids = [line.split()[1] for line in (shop.folder / "handled.txt").read_text().splitlines()]
    assert len(set(ids)) == 9 + 9 + 1 - 1, "the same row again has the id of the first backfill, and none of a scan"
    assert shop.document() == live
    shop.tick()
    assert shop.handled[-1] == 2, "the live poller does not know of it"


def test_a_comparison_tells_what_waits_from_what_no_scan_would_find(diffing_shop: Shop) -> None:
    shop = diffing_shop
    assert shop.azfdb("verify", "orders").out == "0 missing of 0\n"
    shop.sell(*range(1, 7))
    shop.tick()
    shop.tick()
    assert shop.azfdb("verify", "orders").out == "0 missing of 6\n"
    with shop.engine.begin() as connection:
        connection.execute(text("DELETE FROM orders WHERE id = 2"))
        connection.execute(text("UPDATE orders SET note = 'new' WHERE id = 3"))
    waiting = shop.azfdb("verify", "orders")
    assert (waiting.code, waiting.out) == (0, "0 missing of 5, 2 change(s) wait for the next tick\n")
    shop.tick()
    assert shop.azfdb("verify", "orders", "--sample", "0.5").code == 0
    _exchange_hashes(shop)
    shop.tick()
    assert shop.handled[-2:] == [2, 3], "the sum of the hashes is the same: no scan finds it"
    found = shop.azfdb("verify", "orders", "--json")
    assert (found.code, [row["key"] for row in found.json["missing"]]) == (1, [{"id": 1}, {"id": 4}])
    assert "backfill" in shop.azfdb("verify", "orders", "--replay").complaint
    assert "snapshot" in shop.azfdb("verify", "orders", "--ledger", "sqlite://").complaint


def _exchange_hashes(shop: Shop) -> None:
    """Let the snapshot take two rows for each other."""
    source = HashDiffSource(url=shop.database, table="orders", pk_columns=["id"])
    root = source.documents.root(shop.document()["checkpoint"]["cursor"]["snapshot"])
    [name] = {name for block in root.blocks for name in block.names if block.rows > 1}
    places = source.documents.place
    body = places.read("orders", name)
    assert body is not None
    end = 4 + int.from_bytes(body[:4])
    hashes = [body[at : at + 16] for at in range(end, len(body), 16)]
    keys = json.loads(zlib.decompress(body[4:end]))[0]
    one, other = keys.index([1]), keys.index([4])
    hashes[one], hashes[other] = hashes[other], hashes[one]
    places.write("orders", {name: body[:end] + b"".join(hashes)})


def test_a_position_of_a_scan_cannot_be_typed(diffing_shop: Shop) -> None:
    shop = diffing_shop
    shop.sell(1)
    shop.tick()
    for words in (("5",), ("1", "--pk", "id=1"), ("id=1",)):
        refused = shop.azfdb("reset", "orders", "--to-cursor", *words, "--yes")
        assert refused.code == 3
        assert "or from the beginning. To have a range of keys delivered again" in refused.complaint
    assert "cannot skip what waits" in shop.azfdb("reset", "orders", "--to-end", "--yes").complaint
    assert shop.azfdb("reset", "orders", "--to-cursor", "beginning", "--yes").code == 0
    shop.tick()
    assert shop.handled == [1, 1]
