"""An app as teams wrote it for release 0.8.3: that release runs this very file, and so does this one."""

import datetime
import json
import os
import pathlib

import azure.functions as func
from azure.storage.blob import ContainerClient

from azure_functions_db import (
    BlobCheckpointStore,
    DbBindings,
    DbOut,
    DbReader,
    DbWriter,
    RetryPolicy,
    RowChange,
    SqlAlchemySource,
)
from azure_functions_db.core import SourceDescriptor
from azure_functions_db.observability import METRIC_BATCHES_TOTAL, METRIC_EVENTS_TOTAL
from azure_functions_db.state import LeaseConflictError
from azure_functions_db.trigger import make_normalizer

app = func.FunctionApp()
db = DbBindings()
folder = pathlib.Path(os.environ["APP_FOLDER"])


class Counters:
    """A metrics collector as the documents of 0.8 show it."""

    def increment(self, name, value=1.0, *, labels=None):
        if name in {METRIC_BATCHES_TOTAL, METRIC_EVENTS_TOTAL}:
            with (folder / "metrics.jsonl").open("a") as lines:
                lines.write(json.dumps([name, value, labels]) + "\n")

    def observe(self, name, value, *, labels=None):
        raise RuntimeError("this one is broken")

    def set_gauge(self, name, value, *, labels=None):
        pass


class FileStore:
    """A state store of the team's own: five methods and a file."""

    def __init__(self, path):
        self.path = path

    def acquire_lease(self, poller_name, ttl_seconds):
        if (self.path.parent / "held").exists():
            raise LeaseConflictError("held")
        return "mine:1"

    def renew_lease(self, poller_name, lease_id, ttl_seconds):
        pass

    def release_lease(self, poller_name, lease_id):
        pass

    def load_checkpoint(self, poller_name):
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def commit_checkpoint(self, poller_name, checkpoint, lease_id):
        self.path.write_text(json.dumps(checkpoint))


class Journal:
    """A source of the team's own: numbered lines of a file, three at a time."""

    source_descriptor = SourceDescriptor(name="journal", kind="file", fingerprint="journal-1")

    def __init__(self, path):
        self.path = path

    def fetch(self, cursor, batch_size):
        lines = self.path.read_text().splitlines()
        start = 0 if cursor is None else cursor
        return [{"number": number, "text": lines[number - 1]} for number in range(start + 1, len(lines) + 1)][:3]


def journal_line(record, descriptor):
    number = record["number"]
    return RowChange(
        event_id=f"journal-{number}",
        op="insert",
        source=descriptor,
        cursor=number,
        pk={"number": number},
        before=None,
        after=record,
    )


class Ledger:
    """Another one, whose position is a cursor and a key."""

    source_descriptor = SourceDescriptor(name="ledger", kind="file", fingerprint="ledger-1")

    def __init__(self, path):
        self.path = path

    def fetch(self, cursor, batch_size):
        entries = [json.loads(line) for line in self.path.read_text().splitlines()]
        after = (0, 0) if cursor is None else tuple(cursor)
        return [entry for entry in entries if (entry["day"], entry["id"]) > after][:batch_size]


def ledger_entry(record, descriptor):
    made = make_normalizer(cursor_column="day", pk_columns=["id"])(record, descriptor)
    return RowChange(
        event_id=made.event_id,
        op="insert",
        source=descriptor,
        cursor=(record["day"], record["id"]),
        pk=made.pk,
        before=None,
        after=record,
    )


orders = SqlAlchemySource(
    url="%SHOP_DB%",
    table="orders",
    cursor_column="updated_at",
    pk_columns=["id"],
    where="status <> :ignored",
    parameters={"ignored": "draft"},
    cursor_types=[datetime.datetime, int],
)
container = ContainerClient.from_connection_string(os.environ["AzureWebJobsStorage"], os.environ["STATE_CONTAINER"])


@app.timer_trigger(arg_name="timer", schedule="0 */1 * * * *")
@db.trigger(
    arg_name="events",
    source=orders,
    checkpoint_store=BlobCheckpointStore(
        container_client=container, source_fingerprint=orders.source_descriptor.fingerprint
    ),
    name="orders",
    batch_size=2,
    max_batches_per_tick=10,
    retry_policy=RetryPolicy(max_retries=2, base_delay_seconds=0.01, max_delay_seconds=0.02, exponential_base=2),
    metrics=Counters(),
)
@db.output("out", url="%SHOP_DB%", table="invoices", action="upsert", conflict_columns=["order_id"])
def write_invoices(timer: func.TimerRequest, events: list[RowChange], out: DbOut) -> None:
    failing = folder / "fail-once"
    if failing.exists():
        failing.unlink()
        raise ValueError("try me again")
    out.set([{"order_id": event.pk["id"], "total": event.after["total"]} for event in events])
    with (folder / "orders.log").open("a") as lines:
        lines.writelines(f"{event.pk['id']}\n" for event in events)


@app.timer_trigger(arg_name="timer", schedule="0 */1 * * * *")
@db.trigger(
    arg_name="events",
    source=Journal(folder / "journal.txt"),
    checkpoint_store=FileStore(folder / "journal.state"),
    normalizer=journal_line,
    batch_size=10,
    max_batches_per_tick=5,
)
@db.inject_writer("writer", url="%SHOP_DB%", table="journal")
def keep_journal(timer: func.TimerRequest, events: list[RowChange], writer: DbWriter) -> None:
    with writer.transaction():
        writer.insert_many(rows=[event.after for event in events])


@app.timer_trigger(arg_name="timer", schedule="0 */1 * * * *")
@db.trigger(
    arg_name="events",
    source=Ledger(folder / "ledger.jsonl"),
    checkpoint_store=BlobCheckpointStore(container_client=container, source_fingerprint="our-ledger"),
    normalizer=ledger_entry,
)
def keep_ledger(timer: func.TimerRequest, events: list[RowChange]) -> None:
    with (folder / "ledger.log").open("a") as lines:
        lines.writelines(f"{event.pk['id']}\n" for event in events)


@app.route("orders/{id}", methods=["GET"])
@db.input("order", url="%SHOP_DB%", table="orders", pk=lambda req: {"id": int(req.route_params["id"])})
def get_order(req: func.HttpRequest, order: dict | None) -> func.HttpResponse:
    return func.HttpResponse(json.dumps(order, default=str), status_code=200 if order else 404)


@app.route("totals", methods=["GET"])
@db.inject_reader("reader", url="%SHOP_DB%")
@db.inject_writer("writer", url="%SHOP_DB%", table="journal")
def get_totals(req: func.HttpRequest, reader: DbReader, writer: DbWriter) -> func.HttpResponse:
    total = reader.scalar("SELECT sum(total) FROM invoices WHERE total > :least", params={"least": 0})
    writer.insert(data={"number": 1000, "text": "totals were asked for"})
    return func.HttpResponse(json.dumps({"total": float(total)}))
