"""What a trigger passes on to its `PollTrigger`, which has the defaults and the meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from azure_functions_db.core.ports import MetricsCollector, Observer, QuarantineSink
    from azure_functions_db.trigger.normalizers import Normalizer
    from azure_functions_db.trigger.retry import RetryPolicy

_METHODS = {
    "normalizer": ["__call__"],
    "retry_policy": ["pauses"],
    "metrics": ["increment", "observe", "set_gauge"],
    "quarantine": ["put", "entries", "remove"],
    "observers": ["__iter__"],
}


class PollOptions(TypedDict, total=False):
    """The options of a poll; see `PollTrigger`."""

    normalizer: Normalizer | None
    batch_size: int
    max_batches_per_tick: int
    lease_ttl_seconds: float
    retry_policy: RetryPolicy | None
    metrics: MetricsCollector | None
    time_budget_seconds: float | None
    quarantine: QuarantineSink | None
    max_attempts: int
    model: type[Any] | None
    transactional: bool
    observers: Iterable[Observer]


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that do not exist, and objects that cannot do what they are given for."""
    known = PollOptions.__annotations__
    if unknown := [name for name in options if name not in known]:
        raise ConfigurationError(f"A trigger has no option {unknown[0]!r}; it has: {', '.join(known)}")
    for option, methods in _METHODS.items():
        given = options.get(option)
        missing = [method for method in methods if given is not None and not hasattr(given, method)]
        if missing:
            raise ConfigurationError(f"{option}= was given a {type(given).__name__}, which has no {missing[0]}")
