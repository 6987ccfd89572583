"""A small function app with its database and its state store, operated through the real executable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, create_engine, text

from tests.integration.cli import warm

if TYPE_CHECKING:
    from tests.integration.cli.shelves import Shelf

AZFDB = Path(sys.prefix) / "bin" / "azfdb"

APP = """
from __future__ import annotations
import os
import azure.functions as func
from azure_functions_db import DbBindings, SqlAlchemySource
from azure_functions_db.ledger import DeliveredLedger
{imports}

app = func.FunctionApp(http_auth_level=func.AuthLevel.ANONYMOUS)
db = DbBindings()
print("an app may print while it is imported")

def source():
    return SqlAlchemySource(url="%SHOP_DB%", table="orders", cursor_column="version", pk_columns=["id"])

@app.timer_trigger(schedule="*/10 * * * * *", arg_name="timer")
@db.trigger(arg_name="events", name="orders", source=source(), checkpoint_store={store}, batch_size=4,
            lease_ttl_seconds=60, quarantine={sink}, max_attempts=int(os.environ.get("MAX_ATTEMPTS", 3)),
            observers=[DeliveredLedger(url="%SHOP_DB%")])
def on_orders(timer: func.TimerRequest, events) -> None:
    print("a handler may print")
    refused = os.environ.get("REFUSED", "")
    for event in events:
        if str(event.pk["id"]) in refused.split(","):
            raise ValueError(f"cannot digest {{event.pk['id']}}")
    with open("handled.txt", "a") as out:
        out.writelines(f"{{event.pk['id']}} {{event.event_id}}\\n" for event in events)
    if len(open("handled.txt").readlines()) >= int(os.environ.get("DIES_AFTER", 1_000_000)):
        os.kill(os.getpid(), 9)
"""


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def complaint(self) -> str:
        """The one line on standard error that says what is wrong, apart from what the app prints."""
        lines = [line for line in self.err.splitlines() if not line.startswith(("an app may", "a handler may"))]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("azfdb: ")
        return lines[0]


@dataclass
class Shop:
    """An app in a folder of its own."""

    folder: Path
    database: str
    store_url: str
    sink_url: str
    shelf: Shelf
    settings: dict[str, str]
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        self.engine = create_engine(self.database)
        settings = {"SHOP_DB": self.database, **self.settings}
        (self.folder / "local.settings.json").write_text(json.dumps({"Values": settings}))

    def sell(self, *ids: int) -> None:
        """Write orders into the database."""
        with self.engine.begin() as connection:
            rows = [{"id": number, "version": number, "note": f"order {number}"} for number in ids]
            connection.execute(text("INSERT INTO orders VALUES (:id, :version, :note)"), rows)

    def azfdb(self, *words: str, stdin: str = "", **environment: str) -> Outcome:
        """Run the command line in the app's folder."""
        return Outcome(*warm.run(words, self.folder, self.environment | environment, stdin))

    def executable(self, *words: str) -> Outcome:
        """Run the real executable in the app's folder."""
        command = [str(AZFDB), *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.settings}

    def tick(self, **environment: str) -> None:
        assert self.azfdb("run", "--once", "on_orders", **environment).code == 0

    def document(self, poller: str = "orders") -> Any:
        return self.azfdb("inspect", poller, "--json", "--store", self.store_url).json["document"]

    def position(self, poller: str = "orders") -> Any:
        return self.document(poller)["checkpoint"]["cursor"]["value"]

    @property
    def handled(self) -> list[int]:
        """The ids that the handler was given, in order."""
        return [int(line.split()[0]) for line in (self.folder / "handled.txt").read_text().splitlines()]


def opened(
    folder: Path,
    database: str,
    *,
    store: tuple[str, str, str],
    sink: tuple[str, str, str],
    shelf: Shelf,
    **settings: str,
) -> Shop:
    """Return a shop whose store and sink are given as (import, expression, URL), and the shelf behind both."""
    folder.mkdir()
    app = APP.format(imports=f"{store[0]}\n{sink[0]}", store=store[1], sink=sink[1])
    (folder / "function_app.py").write_text(app)
    shop = Shop(folder, database, store[2], sink[2], shelf, settings)
    with shop.engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, version INTEGER, note VARCHAR(50))"))
        connection.execute(text("CREATE INDEX orders_by_version ON orders (version, id)"))
    return shop
