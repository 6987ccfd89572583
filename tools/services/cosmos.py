"""A private server that speaks the protocol of Cosmos DB."""

from __future__ import annotations

import re

from tools.services.server import CHECKOUT, HOST, Server


class Cosmos(Server):
    """An emulator of Cosmos DB, in memory, on a port that it chooses itself."""

    name = "cosmos"
    ready = "Ready to accept HTTP connections"

    def prepare(self) -> None:
        """Nothing to do: it keeps everything in memory."""

    def command(self) -> list[str]:
        script = CHECKOUT / "node_modules" / "@vercel" / "cosmosdb-server" / "lib" / "cli.js"
        return ["node", str(script), "--no-ssl", "--host", HOST, "--port", "0"]

    def settings(self) -> dict[str, str]:
        [address] = re.findall(r"connections at (\S+)", self.log.read_text())
        return {"AZFDB_TEST_COSMOS": f"http://{address}"}
