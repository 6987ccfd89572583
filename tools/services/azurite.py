"""A private Azurite, the emulator of Azure Storage."""

from __future__ import annotations

import base64
import re
import secrets
from pathlib import Path

from tools.services.server import CHECKOUT, HOST, Server

ACCOUNT = "devstoreaccount1"
OPTIONS = ("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent")


class Azurite(Server):
    """Azurite's blob, queue and table services, in memory, on ports that it chooses itself."""

    name = "azurite"
    ready = "Table service is successfully listening"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.key = base64.b64encode(secrets.token_bytes(64)).decode()

    def prepare(self) -> None:
        """Nothing to do: it keeps everything in memory."""

    def command(self) -> list[str]:
        script = CHECKOUT / "node_modules" / "azurite" / "dist" / "src" / "azurite.js"
        places = [
            f"--{service}{place}" for service in ("blob", "queue", "table") for place in (f"Host={HOST}", "Port=0")
        ]
        return ["node", str(script), *places, *OPTIONS]

    def environment(self) -> dict[str, str]:
        return {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{self.key}"}

    def settings(self) -> dict[str, str]:
        listening = re.findall(r"Azurite (\w+) service is successfully listening at (\S+)", self.log.read_text())
        parts = ["DefaultEndpointsProtocol=http", f"AccountName={ACCOUNT}", f"AccountKey={self.key}"]
        parts += [f"{service}Endpoint={address}/{ACCOUNT}" for service, address in listening]
        return {"AZFDB_TEST_AZURITE": ";".join(parts)}
