"""A process that polls until it is told to stop or killed, and writes down what happens in it."""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure.storage.blob import ContainerClient, LinearRetry

from azure_functions_db import (
    BlobCheckpointStore,
    DbConfig,
    MySqlBinlogSource,
    PollTrigger,
    PostgresLogicalSource,
    SqlAlchemySource,
    SqlStateStore,
)
from azure_functions_db.core.errors import DbError
from azure_functions_db.quarantine import FileQuarantine
from azure_functions_db.state.store import DocumentStateStore
from tests.chaos.guards import GUARDS
from tests.chaos.record import Gates, Record
from tests.chaos.sky import Sky, StormyTransport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from azure_functions_db import PollContext, RowChange
    from azure_functions_db.core.ports import HeldLease
    from azure_functions_db.core.types import CheckpointJson, PollerState, QuarantinedRow

SLICE = 0.02
POISON_EVERY = 150


@dataclass(frozen=True)
class Task:
    """What a poller process is to do."""

    folder: str
    poller: str
    who: str
    url: str
    ttl: float
    storage: str | None = None
    """The connection string of blob storage; without one the state is kept in the polled database."""
    container: str = ""
    longest_work: float = 0.0
    overtime: float = 0.0
    """How often a call takes three times the ttl, from 0 to 1."""
    rest: float = SLICE
    """How long it rests after a tick."""
    without: str = ""
    """The guard to do without."""
    source: dict[str, Any] = field(default_factory=dict)
    """Options of the source where they differ from the usual ones."""
    reads_log: bool = False
    """Whether the changes are read from the server's log, and not from the table."""
    connect_args: dict[str, Any] = field(default_factory=dict)
    graded: bool = False
    """Whether to write down the source's grade first."""


def is_poison(version: int) -> bool:
    """Tell whether no handler can digest this version of a row."""
    return version % POISON_EVERY == 0


class Recorded(DocumentStateStore):
    """Writes down under which token the lease was taken and checkpoints were committed."""

    record: Record
    gates: Gates

    def take(self, state: PollerState, ttl_seconds: float) -> RecordedLease:
        self.gates.wait("take", self.record)
        lease = RecordedLease(super().take(state, ttl_seconds), self)
        lease.note("took", state.checkpoint)
        return lease


class RecordedLease:
    """Writes down what is committed under it."""

    def __init__(self, lease: HeldLease, store: Recorded) -> None:
        self.lease_id = lease.lease_id
        self.renew, self.release, self.transaction = lease.renew, lease.release, lease.transaction
        self._lease, self._store = lease, store

    def commit(self, checkpoint: CheckpointJson, *, release: bool = False) -> bool:
        self._store.gates.wait("commit", self._store.record)
        has_released = self._lease.commit(checkpoint, release=release)
        self.note("committed", checkpoint)
        return has_released

    def note(self, what: str, checkpoint: CheckpointJson) -> None:
        token, cursor = int(self.lease_id.rpartition(":")[2]), checkpoint.get("cursor")
        self._store.record(what, token=token, cursor=cursor, noted=time.time())


class RecordedBlobStore(Recorded, BlobCheckpointStore):
    """State in blob storage, on the record."""


class RecordedSqlStore(Recorded, SqlStateStore):
    """State in the polled database, on the record."""


class GatedQuarantine(FileQuarantine):
    """A sink in front of which a process can be held."""

    def __init__(self, folder: Path, record: Record, gates: Gates) -> None:
        super().__init__(folder)
        self._record = record
        self._gates = gates

    def put(self, rows: Sequence[QuarantinedRow]) -> None:
        self._gates.wait("sink", self._record)
        super().put(rows)


class Handler:
    """Works for a while, asks again and again whether the lease is lost, and stops when it is."""

    def __init__(self, task: Task, record: Record, gates: Gates) -> None:
        self._task = task
        self._record = record
        self._gates = gates

    def __call__(self, events: list[RowChange], context: PollContext) -> None:
        rows = [(row["id"], row["version"]) for event in events if (row := event.after)]
        if any(is_poison(version) for _, version in rows):
            raise ValueError("a poison row")
        call, until = uuid.uuid4().hex, time.monotonic() + self._duration()
        if self._is_ours("begin", context, call=call, rows=rows):
            while time.monotonic() < until or self._gates.is_closed("handler"):
                time.sleep(SLICE)
                if not self._is_ours("alive", context, call=call):
                    return
            self._record("end", call=call)

    def _is_ours(self, what: str, context: PollContext, **facts: Any) -> bool:
        """Ask; the moment is the one before the question, see `judge`."""
        at = time.monotonic_ns()
        lost = context.lease_lost.is_set()
        self._record("told" if lost else what, at=at, **facts)
        return not lost

    def _duration(self) -> float:
        if random.random() < self._task.overtime:
            return 3 * self._task.ttl
        return random.uniform(0, self._task.longest_work)


def store_of(task: Task, sky: Sky) -> Recorded:
    clock = partial(sky.clock_of, task.who)
    if task.storage is None:
        return RecordedSqlStore(url=task.url, app_name="chaos", clock=clock)
    client = ContainerClient.from_connection_string(
        task.storage,
        task.container,
        transport=StormyTransport(sky, task.who),
        retry_policy=LinearRetry(backoff=0, retry_total=1, random_jitter_range=0),
        connection_timeout=2,
        read_timeout=2,
    )
    return RecordedBlobStore(container_client=client, app_name="chaos", clock=clock)


def source_of(task: Task) -> Any:
    return log_of(task) if task.reads_log else table_of(task)


def log_of(task: Task) -> Any:
    """The log of the task's server; where it has lost something, the table is read anew."""
    options: dict[str, Any] = {"url": task.url, "tables": ["changes"], "on_position_lost": "snapshot"} | task.source
    if task.url.startswith("mysql"):
        return MySqlBinlogSource(**options)
    return PostgresLogicalSource(slot=task.poller, **options)


def table_of(task: Task) -> SqlAlchemySource:
    options = {"table": "changes", "cursor_column": "stamp", "pk_columns": ["id"], "name": task.poller} | task.source
    return SqlAlchemySource(
        db_config=DbConfig(connection_url=task.url, connect_args=task.connect_args or None), **options
    )


def trigger_of(task: Task, source: Any, record: Record, gates: Gates) -> PollTrigger:
    folder = Path(task.folder)
    sky = Sky(folder)
    store = store_of(task, sky)
    store.record, store.gates = record, gates
    return PollTrigger(
        name=task.poller,
        source=source,
        checkpoint_store=store,
        batch_size=50,
        max_batches_per_tick=3,
        lease_ttl_seconds=task.ttl,
        quarantine=GatedQuarantine(folder / "quarantine", record, gates),
        max_attempts=2,
        now=partial(sky.clock_of, task.who),
    )


def end_with_parent() -> None:
    """End at once, whatever this process waits for, when whoever started it is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a poller is somebody's child"
    parent.join()
    os._exit(1)


def main(task: Task, errors: Path) -> None:
    """Poll; what goes wrong is told in a file."""
    with errors.open("ab") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    threading.Thread(target=end_with_parent, daemon=True).start()
    if task.without:
        GUARDS[task.without]()
    record, gates = Record(Path(task.folder), task.poller, task.who), Gates(Path(task.folder), task.who)
    source = source_of(task)
    trigger, handler = trigger_of(task, source, record, gates), Handler(task, record, gates)
    gates.wait("start", record)
    if task.graded:
        record("graded", grade=source.late_commit_grade())
    while not (Path(task.folder) / "stop").exists():
        try:
            record("ticked", handled=trigger.run(timer=None, handler=handler))
        except DbError as error:
            record("failed", error=type(error).__name__, message=str(error))
        time.sleep(task.rest)
