"""Four workers share one source through a queue; one of them is killed in the middle of its work."""

from __future__ import annotations

import json
import secrets
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
from azure.storage.queue import QueueClient
from sqlalchemy import create_engine, text

from tests.acceptance.conftest import EXAMPLES
from tests.acceptance.host import FunctionApp, queue_message, timer
from tests.conftest import temporary_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from azure.storage.queue import QueueMessage

    from tests.acceptance.conftest import Sql

ORDERS = 400
PARTITIONS = 8
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


class Instance:
    """One instance of the queue function: takes a message, invokes its worker, deletes the message."""

    def __init__(self, app: FunctionApp, queue: QueueClient) -> None:
        self.app = app
        self.handled: list[str] = []
        self._queue = queue
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._consume)
        self._thread.start()

    def _consume(self) -> None:
        while not self._stopping.is_set():
            message = self._queue.receive_message(visibility_timeout=5)
            if message is None:
                self._stopping.wait(0.05)
            elif not self._invoked(message):
                return

    def _invoked(self, message: QueueMessage) -> bool:
        try:
            invocation = self.app.start("ship", tick=queue_message(message.content)).result()
        except OSError:
            return False  # the worker is gone; the queue hands the message to somebody else
        assert invocation.ok, invocation.traceback
        self.handled.append(message.content)
        self._queue.delete_message(message)
        return True

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


@contextmanager
def locked(url: str, table: str) -> Iterator[None]:
    """Let every writer of the table wait, so that handlers are caught in the middle."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"LOCK TABLE {table} IN EXCLUSIVE MODE"))
        yield
    engine.dispose()


@pytest.fixture
def queue(azurite: str) -> Iterator[QueueClient]:
    with QueueClient.from_connection_string(azurite, f"ticks-{secrets.token_hex(8)}") as client:
        client.create_queue()
        yield client
        client.delete_queue()


@pytest.fixture
def shipping(postgres_url: str) -> Iterator[str]:
    with temporary_database(postgres_url, "DROP DATABASE {name} WITH (FORCE)") as url:
        yield url


@pytest.mark.timeout(240)
def test_every_change_is_handled_once_by_whoever_is_alive(
    postgres_database: str, shipping: str, azurite: str, blob_container: str, queue: QueueClient, sql: Sql
) -> None:
    for url in (postgres_database, shipping):
        sql(url, (EXAMPLES / "partitions" / "schema.sql").read_text())
    sql(postgres_database, f"INSERT INTO orders SELECT n, 'new', n FROM generate_series(1, {ORDERS}) AS n")
    settings = {
        "SHOP_DB": postgres_database,
        "SHIPPING_DB": shipping,
        "STATE_CONTAINER": blob_container,
        "AzureWebJobsStorage": azurite,
    }

    def tick_until(condition: Callable[[], bool]) -> None:
        """Do what the timer does whenever the queue is empty: a tick that found nothing yet is followed by another."""
        deadline = time.monotonic() + 90
        while not condition():
            assert time.monotonic() < deadline, "it did not come to pass"
            if queue.get_queue_properties().approximate_message_count == 0:
                ticks = instances[-1].app.invoke("hand_out", timer=timer()).outputs["ticks"]
                for content in json.loads(ticks):
                    queue.send_message(content)
            time.sleep(0.05)

    def waiting_writers() -> int:
        return int(sql(shipping, WAITING)[0][0])

    def parcels() -> int:
        return int(sql(shipping, "SELECT count(*) FROM parcels")[0][0])

    with ExitStack() as running:
        apps = [running.enter_context(FunctionApp(EXAMPLES / "partitions", settings)) for _ in range(4)]
        instances = [Instance(app, queue) for app in apps]
        for instance in instances:
            running.callback(instance.stop)

        with locked(shipping, "parcels"):
            tick_until(lambda: waiting_writers() == 4)
        tick_until(lambda: parcels() == ORDERS)
        assert all(instance.handled for instance in instances), "each instance had its share"

        sql(postgres_database, f"UPDATE orders SET status = 'paid', version = version + {ORDERS}")
        with locked(shipping, "parcels"):
            tick_until(lambda: waiting_writers() == 4)
            apps[0].kill()
        # The dead worker's partition is skipped until its lease has expired; then it goes on elsewhere.
        tick_until(lambda: parcels() == 2 * ORDERS)

    once = "SELECT count(*), count(DISTINCT (order_id, version)), count(DISTINCT poller) FROM parcels"
    assert sql(shipping, once) == [(2 * ORDERS, 2 * ORDERS, PARTITIONS)]
