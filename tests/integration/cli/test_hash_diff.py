"""Every command about a poller whose source compares hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

if TYPE_CHECKING:
    from tests.integration.cli.shops import Shop


@pytest.fixture
def diffing_shop(any_shop: Shop) -> Shop:
    """A shop whose orders are found without their version column."""
    app = any_shop.folder / "function_app.py"
    written = app.read_text()
    keyset = 'SqlAlchemySource(url="%SHOP_DB%", table="orders", cursor_column="version", pk_columns=["id"])'
    assert keyset in written
    diffing = written.replace(keyset, 'HashDiffSource(url="%SHOP_DB%", table="orders", pk_columns=["id"])')
    app.write_text(diffing.replace("import DbBindings, SqlAlchemySource", "import DbBindings, HashDiffSource"))
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

    for words in (
        ("verify", "orders"),
        ("backfill", "orders", "--as", "again"),
        ("reset", "orders", "--to-cursor", "1", "--pk", "id=1", "--yes"),
    ):
        refused = shop.azfdb(*words)
        assert refused.code != 0
        assert refused.complaint
    assert shop.azfdb("lease", "break", "orders", "--yes").code == 0
    assert shop.azfdb("clone", "orders", "copy", "--yes").code == 0
    assert shop.azfdb("reset", "orders", "--adopt-fingerprint", "--yes").code == 0

    assert shop.azfdb("reset", "orders", "--to-checkpoint", "saved.json", "--yes").code == 0
    assert shop.azfdb("status", "orders").code == 1
    assert "no longer has" in shop.azfdb("status", "orders", "--json").json["pollers"][0]["problems"][0]
    assert shop.azfdb("reset", "orders", "--to-beginning", "--yes").code == 0
    shop.tick()
    assert shop.handled[-4:] == [1, 3, 4, 5], "a reset delivers everything that is there anew"
