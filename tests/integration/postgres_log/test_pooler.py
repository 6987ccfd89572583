"""Through PgBouncer only SQL gets to the server: the log is read by it, and who tries otherwise is told."""

from __future__ import annotations

from typing import Any

import pytest

from azure_functions_db import DbConfig, PositionLostError, SourceConfigurationError
from tests.integration.postgres_log.scene import COLUMNS, Scene
from tests.support.pooler import pooler_of


@pytest.fixture(autouse=True)
def table(scene: Scene) -> None:
    scene.run(f"CREATE TABLE %t ({COLUMNS})")


def through(url: str) -> dict[str, Any]:
    return {"url": None, "db_config": DbConfig(connection_url=url, connect_args={"prepare_threshold": None})}


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_snapshot_and_changes_are_read_by_sql(scene: Scene, mode: str) -> None:
    scene.run("INSERT INTO %t SELECT n, 'x' FROM generate_series(1, 100) n")
    with pooler_of(scene.url, mode) as url:
        source = scene.source(transport="sql", **through(url))
        assert len(scene.delivered(source, batch_size=30)) == 100
        scene.run("UPDATE %t SET v = 'y' WHERE id = 1", "DELETE FROM %t WHERE id = 2")
        assert scene.told(source) == [("update", {"id": 1, "v": "y"}), ("delete", {"id": 2})]
        assert [each.grade for each in source.examine() if each.check == "transport"] == ["note"]
        scene.provider.dispose_all()


def test_the_replication_protocol_does_not_get_through_and_that_is_told(scene: Scene) -> None:
    scene.streaming()
    with pooler_of(scene.url) as url:
        source = scene.source(snapshot="never", **through(url))
        with pytest.raises(SourceConfigurationError, match=r"a pooler in between.* or transport='sql'"):
            scene.delivered(source)
        [finding] = [each for each in source.examine() if each.check == "transport"]
        assert (finding.grade, finding.remedy) == (
            "error",
            "give the address of the server itself, or transport='sql'",
        )
        scene.provider.dispose_all()


def test_what_nobody_can_tell_after_a_failover_is_a_lost_position(scene: Scene) -> None:
    direct = scene.streaming()
    scene.run("INSERT INTO %t VALUES (1, 'a')")
    scene.delivered(direct)
    cursor = scene.store.load_checkpoint("poller")["cursor"]
    with pooler_of(scene.url) as url:
        source = scene.source(snapshot="never", transport="sql", **through(url))
        with pytest.raises(PositionLostError, match="promoted or restored"):
            source.fetch_changes({"cursor": {**cursor, "timeline": cursor["timeline"] + 1}}, 1)
        scene.provider.dispose_all()
