"""Shares one source among as many instances as the host starts: a queue message for each partition."""

from __future__ import annotations

from typing import List  # noqa: UP035 - the Functions worker does not accept list[str] in an output

import azure.functions as func

from azure_functions_db import BlobCheckpointStore, DbBindings, DbOut, PollContext, RowChange, SqlAlchemySource

app = func.FunctionApp()
db = DbBindings()
PARTITIONS = 8

orders = SqlAlchemySource(url="%SHOP_DB%", table="orders", cursor_column="version", pk_columns=["id"])


@app.timer_trigger(schedule="*/5 * * * * *", arg_name="timer")
@app.queue_output(arg_name="ticks", queue_name="order-ticks", connection="AzureWebJobsStorage")
def hand_out(timer: func.TimerRequest, ticks: func.Out[List[str]]) -> None:  # noqa: UP006 - see above
    ticks.set([str(number) for number in range(PARTITIONS)])


@app.queue_trigger(arg_name="tick", queue_name="order-ticks", connection="AzureWebJobsStorage")
@db.trigger(
    arg_name="events",
    source=orders,
    checkpoint_store=BlobCheckpointStore(container="%STATE_CONTAINER%"),
    partitions=PARTITIONS,
    partition=lambda tick: int(tick.get_body()),
    batch_size=50,
    max_batches_per_tick=20,
    lease_ttl_seconds=10,
)
@db.output("parcels", url="%SHIPPING_DB%", table="parcels")
def ship(tick: func.QueueMessage, events: list[RowChange], poll: PollContext, parcels: DbOut) -> None:
    parcels.set([{"order_id": event.pk["id"], "version": event.cursor, "poller": poll.poller_name} for event in events])
