"""Documents and entries that others have spoilt: told of where they are, in nobody else's way, and mended by force."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from azure_functions_db.state.backend import document_name

if TYPE_CHECKING:
    from tests.integration.cli.shops import Shop


def lease(document: dict[str, Any], **parts: Any) -> bytes:
    return json.dumps(document | {"lease": document["lease"] | parts}).encode()


BROKEN: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "cut short": lambda document: json.dumps(document).encode()[:40],
    "deep": lambda document: json.dumps(document).encode().replace(b'"lease": {', b'"lease": ' + b'{"a":' * 900),
    "huge number": lambda document: json.dumps(document).encode().replace(b'"value": 4', b'"value": 1e999'),
    "end of time": lambda document: lease(document, expires_at="9999-12-31T23:59:59.999999Z"),
    "negative token": lambda document: lease(document, fencing_token=-1),
    "true for a token": lambda document: lease(document, fencing_token=True),
    "list for a lease": lambda document: json.dumps(document | {"lease": [1]}).encode(),
    "text for a rate": lambda document: json.dumps(
        document | {"checkpoint": document["checkpoint"] | {"metadata": {"rows_per_second": "fast"}}}
    ).encode(),
}
WITHOUT_A_POSITION = {"cut short", "deep", "huge number"}


def spoil(shop: Shop, content: bytes) -> None:
    """Put something else in the place of the poller's document, past the store's rules."""
    backend, name = shop.shelf.store._backend, document_name(None, "orders")
    stored = backend.read(name)
    assert stored is not None
    assert stored.version is not None
    assert backend.replace(name, content, stored.version)


def test_a_broken_document_is_its_own_pollers_trouble_and_can_be_mended(any_shop: Shop) -> None:
    shop = any_shop
    shop.sell(1, 2, 3, 4)
    shop.tick()
    document = shop.document()
    assert shop.azfdb("clone", "orders", "copy", "--yes").code == 0
    for kind, broken in BROKEN.items():
        content = broken(document)
        spoil(shop, content)

        status = shop.azfdb("status", "--json")
        assert status.code == 1, kind
        orders, copy = status.json["pollers"]  # trouble comes first
        assert (copy["cursor"], copy["problems"]) == (4, []), kind
        assert "The state document of poller 'orders'" in orders["problems"][0], kind
        assert shop.azfdb("status").code == 1, kind
        assert shop.azfdb("lease", "break", "orders", "--yes").code not in {0, 70}, kind
        as_told = re.search(r"`(--to-beginning --force)`", orders["problems"][0])
        assert as_told, kind
        rehearsed = shop.azfdb("reset", "orders", *as_told[1].split())
        assert rehearsed.complaint.endswith("[AZFDB-115]"), "it would go on once the name is typed"
        assert "How many rows come again or are skipped cannot be told here." in rehearsed.out, kind

        mended = shop.azfdb("lease", "break", "orders", "--yes", "--force", "--json")
        assert mended.code == 0, (kind, mended.err)
        assert (shop.folder / mended.json["backup"]).read_bytes() == content
        kept = mended.json["after"]["checkpoint"].get("cursor")
        assert kept == (None if kind in WITHOUT_A_POSITION else document["checkpoint"]["cursor"]), kind
        assert mended.json["after"]["lease"]["fencing_token"] > document["lease"]["fencing_token"], kind
        shop.tick()
    assert shop.position() == 4


def test_a_file_beside_the_documents_that_is_none_is_left_alone(shop: Shop) -> None:
    shop.sell(1)
    shop.tick()
    state = shop.shelf.store._backend._directory / "local"  # type: ignore[attr-defined]  # a shop with files
    (state / "notes of today.json").write_text("{")
    (state / "x".join(["y"] * 110)).with_suffix(".json").write_text("{")
    Path(str(state / "caf\udce9.json")).write_text("{")
    assert [poller["poller"] for poller in shop.azfdb("status", "--json").json["pollers"]] == ["orders"]


@pytest.mark.parametrize("spoilt", [b"{", b"[1]", b'{"poller_name": 5}'])
def test_an_entry_that_is_none_is_in_nobody_elses_way(shop: Shop, spoilt: bytes) -> None:
    shop.sell(1, 2, 3, 4)
    shop.tick(REFUSED="2", MAX_ATTEMPTS="1")
    (shop.folder / "quarantine" / "payments").mkdir()
    (shop.folder / "quarantine" / "payments" / "e1.json").write_bytes(spoilt)
    listed = shop.azfdb("quarantine", "list", "--poller", "orders", "--json").json["rows"]
    assert [row["event"]["pk"]["id"] for row in listed] == [2]
    assert shop.azfdb("status", "--json").json["pollers"][0]["quarantined"] == 1
    told = shop.azfdb("quarantine", "list")
    assert told.code != 0
    assert "payments/e1.json is no quarantined row" in told.complaint


def test_an_entry_cannot_pose_as_another_pollers(shop: Shop) -> None:
    shop.sell(1, 2, 3, 4)
    shop.tick(REFUSED="2", MAX_ATTEMPTS="1")
    [own] = (shop.folder / "quarantine" / "orders").glob("*.json")
    other = shop.folder / "quarantine" / "payments"
    other.mkdir()
    (other / own.name).write_bytes(own.read_bytes())
    told = shop.azfdb("quarantine", "replay", "--all")
    assert told.code != 0
    assert "another poller or event than its place says" in told.complaint
    assert 2 not in shop.handled
    assert shop.azfdb("quarantine", "list", "--poller", "orders").code == 0
