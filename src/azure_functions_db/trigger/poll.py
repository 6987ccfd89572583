"""The database change trigger as users see it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.observers import Observers, standard_observers
from azure_functions_db.trigger.normalizers import normalizer_for
from azure_functions_db.trigger.retry import ONCE
from azure_functions_db.trigger.runner import PollRunner
from azure_functions_db.trigger.settings import PollSettings, always, random_id, utc_now
from azure_functions_db.trigger.source import full_source

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable

    from azure_functions_db.core.ports import (
        ChangeSource,
        MetricsCollector,
        Observer,
        QuarantineSink,
        SourceAdapter,
        StateStore,
    )
    from azure_functions_db.trigger.mapping import Model
    from azure_functions_db.trigger.normalizers import Normalizer
    from azure_functions_db.trigger.retry import RetryPolicy


class PollTrigger:
    """Finds the rows that changed since the last commit and hands them to a handler, in batches.

    It runs when the host says so (a timer, usually): a library on top of the host's own triggers,
    not a host extension. Delivery is at least once, by one instance at a time: a change may come
    again until its batch is committed, so the handler must be idempotent.

    Parameters that are not self-evident:

    - ``time_budget_seconds``: start no further batch or retry that would not end in time;
    - ``retry_policy``: call a failed handler again within the tick; without one it is called once;
    - ``quarantine`` and ``max_attempts``: a batch that failed so often is searched for its bad rows,
      which are put into the sink while the others go through; without a sink it is retried for ever;
    - ``model``: give the handler instances of this Pydantic model in place of events;
    - ``transactional``: with a state store in the handler's own database, commit the handler's
      writes and the checkpoint in one transaction;
    - ``observers``: further listeners beside the log and ``metrics``;
    - ``may_steal``: asked before the lease of a holder who vanished is taken over;
    - ``consumer``: who handles the changes, for those who remember that (`processed_once`); several
      pollers may read for one. The poller's name unless given.
    """

    def __init__(
        self,
        *,
        name: str,
        source: SourceAdapter | ChangeSource,
        checkpoint_store: StateStore,
        normalizer: Normalizer | None = None,
        batch_size: int = 100,
        max_batches_per_tick: int = 1,
        lease_ttl_seconds: float = 120,
        retry_policy: RetryPolicy | None = None,
        metrics: MetricsCollector | None = None,
        time_budget_seconds: float | None = None,
        quarantine: QuarantineSink | None = None,
        max_attempts: int = 3,
        model: type[Model] | None = None,
        transactional: bool = False,
        observers: Iterable[Observer] = (),
        now: Callable[[], dt.datetime] = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
        new_id: Callable[[], str] = random_id,
        may_steal: Callable[[], bool] = always,
        consumer: str | None = None,
    ) -> None:
        chosen = normalizer_for(source, normalizer)
        self.name = name
        self.source = source
        self.checkpoint_store = checkpoint_store
        self.quarantine = quarantine
        self._runner = PollRunner(
            PollSettings(
                name=name,
                source=full_source(source, chosen),
                store=checkpoint_store,
                normalizer=chosen,
                observers=Observers([*standard_observers(metrics), *observers]),
                retry_policy=retry_policy or ONCE,
                batch_size=batch_size,
                max_batches_per_tick=max_batches_per_tick,
                lease_ttl_seconds=lease_ttl_seconds,
                time_budget_seconds=time_budget_seconds,
                quarantine=quarantine,
                max_attempts=max_attempts,
                model=model,
                transactional=transactional,
                now=now,
                monotonic=monotonic,
                sleep=sleep,
                new_id=new_id,
                may_steal=may_steal,
                consumer=consumer or name,
            )
        )

    @property
    def settings(self) -> PollSettings:
        """What the poller is made of, for tools."""
        return self._runner.settings

    def run(self, *, timer: object, handler: Callable[..., Any], invocation_id: str | None = None) -> int:  # noqa: ARG002 - the host's own argument
        """Run one tick; return the number of events handled.

        ``handler`` is called with a list of events, and with a `PollContext` when it takes a
        second argument.
        """
        return self._runner.run(handler, invocation_id=invocation_id)

    async def run_async(self, *, timer: object, handler: Callable[..., Any], invocation_id: str | None = None) -> int:  # noqa: ARG002 - see run
        """Run one tick without blocking the loop; the handler may be async."""
        return await self._runner.run_async(handler, invocation_id=invocation_id)
