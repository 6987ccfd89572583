"""A private MongoDB, where `AZFDB_MONGOD` names a server program."""

from __future__ import annotations

import os
from pathlib import Path

from tools.services.server import HOST, Server, free_port

PROGRAM = "AZFDB_MONGOD"
OPTIONS = (
    "--bind_ip", HOST,
    "--replSet", "rs0",
    "--wiredTigerCacheSizeGB", "0.25",
    "--setParameter", "diagnosticDataCollectionEnabled=false",
    "--setParameter", "enableTestCommands=1",  # for failures that cannot be had otherwise
    "--setParameter", "shutdownTimeoutMillisForSignaledShutdown=100",
)  # fmt: skip


class MongoDb(Server):
    """One member of a replica set, which has to be initiated."""

    name = "mongod"
    ready = "Waiting for connections"
    oplog_megabytes = 64

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()

    def prepare(self) -> None:
        self.data.mkdir()

    def command(self) -> list[str]:
        place = ["--dbpath", str(self.data), "--port", str(self.port), "--oplogSize", str(self.oplog_megabytes)]
        return [os.environ[PROGRAM], *OPTIONS, *place]

    def settings(self) -> dict[str, str]:
        return {"AZFDB_TEST_MONGO_URI": f"mongodb://{HOST}:{self.port}/?directConnection=true"}
