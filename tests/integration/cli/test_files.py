"""Files that commands leave behind: their owner's alone, new ones only, and never by way of a link."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli.shops import Shop


@pytest.fixture
def sold(shop: Shop) -> Shop:
    shop.sell(1, 2, 3, 4)
    shop.tick(REFUSED="2", MAX_ATTEMPTS="1")
    return shop


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_backups_and_exports_are_their_owners_alone(sold: Shop) -> None:
    shop = sold
    shop.folder.chmod(0o755)
    assert shop.azfdb("export", "orders", "--output", "orders.json").code == 0
    reset = shop.azfdb("reset", "orders", "--to-beginning", "--yes", "--json")
    dropped = shop.azfdb("quarantine", "drop", "--all", "--yes", "--json")
    written = [shop.folder / "orders.json", *(shop.folder / done.json["backup"] for done in (reset, dropped))]
    assert [mode_of(path) for path in written] == [0o600] * 3
    assert mode_of(shop.folder / ".azfdb") == mode_of(shop.folder / ".azfdb" / "backups") == 0o700
    assert mode_of(shop.folder) == 0o755


def test_an_export_follows_no_link(sold: Shop, tmp_path: Path) -> None:
    (sold.folder / "orders.json").symlink_to(tmp_path / "elsewhere")
    refused = sold.azfdb("export", "orders", "--output", "orders.json")
    assert refused.code == 3
    assert "a link in the place of a file" in refused.complaint
    assert not (tmp_path / "elsewhere").exists()


def test_an_export_is_written_where_the_command_was_given(sold: Shop) -> None:
    inner = sold.folder / "inner"
    inner.mkdir()
    assert sold.azfdb("export", "orders", "--output", "inner/orders.json", "--app", str(sold.folder)).code == 0
    assert (inner / "orders.json").exists()
