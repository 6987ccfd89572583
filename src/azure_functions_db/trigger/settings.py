"""What a poller is made of, checked once."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.trigger.lease import check_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure_functions_db.core.observers import Observers
    from azure_functions_db.core.ports import ChangeSource, QuarantineSink, StateStore
    from azure_functions_db.trigger.mapping import Model
    from azure_functions_db.trigger.normalizers import Normalizer
    from azure_functions_db.trigger.retry import RetryPolicy


def utc_now() -> dt.datetime:
    """Return the time by the machine's clock."""
    return dt.datetime.now(dt.UTC)


def always() -> bool:
    """Say yes."""
    return True


def random_id() -> str:
    """Return an id that nobody else has."""
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class PollSettings:
    """A poller's definition; all ticks share it."""

    name: str
    source: ChangeSource
    store: StateStore
    normalizer: Normalizer
    observers: Observers
    retry_policy: RetryPolicy
    batch_size: int = 100
    max_batches_per_tick: int = 1
    lease_ttl_seconds: float = 120
    time_budget_seconds: float | None = None
    quarantine: QuarantineSink | None = None
    max_attempts: int = 3
    model: type[Model] | None = None
    transactional: bool = False
    may_steal: Callable[[], bool] = always
    """Asked before the lease of a holder who vanished is taken over; no makes it count as held."""
    now: Callable[[], dt.datetime] = utc_now
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] | None = None
    new_id: Callable[[], str] = random_id

    def __post_init__(self) -> None:
        if not str(self.name or "").strip():
            raise ConfigurationError("A poller needs a name")
        for setting in ("batch_size", "max_batches_per_tick", "max_attempts"):
            value = getattr(self, setting)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(f"{setting} must be a whole number of at least 1", setting=setting)
        for setting in ("lease_ttl_seconds", "time_budget_seconds"):
            value = getattr(self, setting)
            if value is not None and not value > 0:
                raise ConfigurationError(f"{setting} must be greater than 0", setting=setting)
        if self.model is not None and not hasattr(self.model, "model_validate"):
            raise ConfigurationError("model= takes a Pydantic model class", setting="model")
        check_store(self.store, transactional=self.transactional)
