"""The database change trigger as users see it: its options, and one call for each tick."""

# Annotations are no texts here: the options are read from theirs, and to compile each would delay the first tick.

import asyncio
import datetime as dt
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, Unpack, get_args

from azure_functions_db.core.bridge import finished, in_thread
from azure_functions_db.core.clocks import utc_now
from azure_functions_db.core.config import encoded_name
from azure_functions_db.core.errors import ConfigurationError, did_you_mean
from azure_functions_db.core.ports import (
    ChangeSource,
    MetricsCollector,
    Observer,
    QuarantineSink,
    SourceAdapter,
    StateStore,
)
from azure_functions_db.core.signals import Observers, standard_observers
from azure_functions_db.core.types import Position
from azure_functions_db.trigger.batch import Checkpoint
from azure_functions_db.trigger.handler import Handler
from azure_functions_db.trigger.isolation import IsolatingTick
from azure_functions_db.trigger.lease import TickCancelled, check_store
from azure_functions_db.trigger.normalizers import Normalizer, full_source, normalizer_for
from azure_functions_db.trigger.pace import Pace
from azure_functions_db.trigger.retry import ONCE, RetryPolicy
from azure_functions_db.trigger.tick import Tick

random_id = partial(secrets.token_hex, 16)
"""Makes an id that nobody else has."""


def always() -> bool:
    """Say yes."""
    return True


class Option(NamedTuple):
    """What is to be known of an option: its default, its meaning, what an object given for it must have."""

    default: Any
    text: str
    methods: tuple[str, ...] = ()


class PollOptions(TypedDict, total=False):
    """The options of a poll; checks, defaults and the reference page are made of them."""

    normalizer: Annotated[
        Normalizer | None,
        Option(None, "Makes an event of a record; without one the source's columns do.", ("__call__",)),
    ]
    batch_size: Annotated[int, Option(100, "How many changes one call of the handler is given at most.")]
    max_batches_per_tick: Annotated[int, Option(1, "How many batches a tick handles at most, to work off a backlog.")]
    lease_ttl_seconds: Annotated[
        float, Option(120, "How long the lease of an instance lives that has vanished; while alive it is renewed.")
    ]
    retry_policy: Annotated[
        RetryPolicy | None,
        Option(None, "Calls a failed handler again within the tick; without one it is called once.", ("pauses",)),
    ]
    metrics: Annotated[
        MetricsCollector | None, Option(None, "Receives the metrics.", ("increment", "observe", "set_gauge"))
    ]
    time_budget_seconds: Annotated[
        float | None, Option(None, "Starts no further batch or retry in a tick that would not end within this time.")
    ]
    linger_seconds: Annotated[
        float | None,
        Option(
            None,
            "Keeps a tick that has drained its backlog for this long after it began: it holds its lease and looks for "
            "more every poll_interval_seconds. Without it, a tick ends when nothing is left.",
        ),
    ]
    poll_interval_seconds: Annotated[
        float, Option(0.5, "How long a tick that lingers waits between two looks; up to 2 seconds while nothing comes.")
    ]
    quarantine: Annotated[
        QuarantineSink | None,
        Option(
            None,
            "Keeps the rows that fail again and again while the others go through; without one a failing batch is "
            "retried for ever.",
            ("put", "entries", "remove"),
        ),
    ]
    max_attempts: Annotated[
        int, Option(3, "How often a batch may fail before it is searched for its bad rows; needs a quarantine.")
    ]
    model: Annotated[type[Any] | None, Option(None, "Gives the handler instances of this Pydantic model.")]
    transactional: Annotated[
        bool,
        Option(
            False,
            "With a state store in the handler's own database: its writes and the checkpoint are one transaction.",
        ),
    ]
    commit: Annotated[
        Literal["batch", "row"],
        Option(
            "batch",
            'When the checkpoint moves: "batch", behind the whole batch; "row", behind each row, which the handler '
            "is then given alone.",
        ),
    ]
    read_ahead: Annotated[
        bool,
        Option(
            True,
            "Reads the next page while the handler has this one, over a connection of its own, where the source can "
            'and somebody waits; not with transactional=True or commit="row".',
        ),
    ]
    observers: Annotated[Iterable[Observer], Option((), "Further listeners beside the log and metrics.", ("__iter__",))]


class TriggerOptions(PollOptions, total=False):
    """The options of a poll, and what tests and partitions put in place of clocks, ids and decisions."""

    now: Annotated[Callable[[], dt.datetime], Option(utc_now, "The time.")]
    monotonic: Annotated[Callable[[], float], Option(time.monotonic, "The clock that leases are held against.")]
    sleep: Annotated[Callable[[float], object] | None, Option(None, "Waits; without it a tick that ends wakes up.")]
    new_id: Annotated[Callable[[], str], Option(random_id, "Makes the ids of batches and invocations.")]
    consumer: Annotated[
        str | None,
        Option(None, "Who handles the changes, for those who remember that; the poller's name unless given."),
    ]
    carried: Annotated[
        Callable[[Checkpoint], Position | None] | None,
        Option(None, "Returns where to go on instead of at a stored checkpoint; None: right there."),
    ]
    may_steal: Annotated[
        Callable[[], bool], Option(always, "Asked before the lease of a holder who vanished is taken over.")
    ]


@cache
def all_options() -> Mapping[str, Option]:
    """Return every option by name."""
    hints = TriggerOptions.__annotations__
    return {name: next(each for each in get_args(hint) if isinstance(each, Option)) for name, hint in hints.items()}


def check_options(options: Mapping[str, Any], allowed: type[PollOptions] = PollOptions) -> None:
    """Refuse options that do not exist, and objects that cannot do what they are given for."""
    known = all_options()
    if unknown := [name for name in options if name not in allowed.__annotations__]:
        there = ", ".join(PollOptions.__annotations__)
        raise ConfigurationError(
            f"A trigger has no option {unknown[0]!r}; it has: {there}{did_you_mean(unknown[0], known)}"
        )
    for name, given in options.items():
        missing = [method for method in known[name].methods if given is not None and not hasattr(given, method)]
        if missing:
            raise ConfigurationError(f"{name}= was given a {type(given).__name__}, which has no {missing[0]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PollSettings:
    """A poller's definition, checked once; all ticks share it."""

    name: str
    source: ChangeSource
    store: StateStore
    normalizer: Normalizer
    observers: Observers
    retry_policy: RetryPolicy
    batch_size: int
    max_batches_per_tick: int
    lease_ttl_seconds: float
    time_budget_seconds: float | None
    linger_seconds: float | None
    poll_interval_seconds: float
    quarantine: QuarantineSink | None
    max_attempts: int
    model: type[Any] | None
    transactional: bool
    commit: Literal["batch", "row"]
    read_ahead: bool
    consumer: str
    """Who handles the changes, whichever poller reads them: a function has several partitions, and backfills."""
    carried: Callable[[Checkpoint], Position | None] | None
    may_steal: Callable[[], bool]
    now: Callable[[], dt.datetime]
    monotonic: Callable[[], float]
    sleep: Callable[[float], object] | None
    new_id: Callable[[], str]

    def __post_init__(self) -> None:
        if not str(self.name or "").strip():
            raise ConfigurationError("A poller needs a name")
        encoded_name("poller name", self.name)  # one that a store or a quarantine could not keep is refused here
        for setting in ("batch_size", "max_batches_per_tick", "max_attempts"):
            value = getattr(self, setting)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(f"{setting} must be a whole number of at least 1", setting=setting)
        for setting in ("lease_ttl_seconds", "time_budget_seconds", "linger_seconds", "poll_interval_seconds"):
            value = getattr(self, setting)
            if value is not None and not value > 0:
                raise ConfigurationError(f"{setting} must be greater than 0", setting=setting)
        if self.linger_seconds is not None and self.source.capability().scans:
            raise ConfigurationError(
                f"linger_seconds= would have a {type(self.source).__name__} compare its whole table at every look: "
                "leave it out, and give the function a faster schedule instead",
                setting="linger_seconds",
            )
        if self.commit not in {"batch", "row"}:
            raise ConfigurationError(f"commit= is 'batch' or 'row', not {self.commit!r}", setting="commit")
        if self.model is not None and not hasattr(self.model, "model_validate"):
            raise ConfigurationError("model= takes a Pydantic model class", setting="model")
        check_store(self.store, transactional=self.transactional)


def settings_of(name: str, source: object, store: StateStore, options: Mapping[str, Any]) -> PollSettings:
    """Return the definition of a poller with these options, and the default of every other."""
    check_options(options, TriggerOptions)
    chosen = {option: given.default for option, given in all_options().items()} | dict(options)
    normalizer = normalizer_for(source, chosen.pop("normalizer"))
    observers = Observers([*standard_observers(chosen.pop("metrics")), *chosen.pop("observers")])
    policy = chosen.pop("retry_policy") or ONCE
    consumer = chosen.pop("consumer") or name
    return PollSettings(
        name=name,
        source=full_source(source, normalizer),
        store=store,
        normalizer=normalizer,
        observers=observers,
        retry_policy=policy,
        consumer=consumer,
        **chosen,
    )


class PollRunner:
    """A poller that is ready to run: each call is one tick."""

    def __init__(self, settings: PollSettings) -> None:
        self.settings = settings
        self._kind = Tick if settings.quarantine is None else IsolatingTick
        self._pace = Pace()

    def tick(self, handler: Callable[..., Any], *, invocation_id: str | None = None) -> int:
        """Run one tick here and now; return the number of events handled."""
        return self._kind(self.settings, Handler(handler), invocation_id, self._pace).run()

    async def tick_async(self, handler: Callable[..., Any], *, invocation_id: str | None = None) -> int:
        """Run one tick in a thread; an async handler is awaited on this loop.

        Cancelling this call cancels the handler, commits nothing more and gives the lease back
        before the cancellation goes on.
        """
        tick = self._kind(self.settings, Handler(handler, asyncio.get_running_loop()), invocation_id, self._pace)
        work = asyncio.ensure_future(in_thread(_run, tick))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            tick.lease.cancel()
            with suppress(Exception):  # the cancellation is what counts now
                await finished(work)
            raise


def _run(tick: Tick) -> int:
    try:
        return tick.run()
    except TickCancelled:
        return 0  # whoever cancelled is told by asyncio


class PollTrigger:
    """Finds the rows that changed since the last commit and hands them to a handler, in batches.

    It runs when the host says so (a timer, usually): a library on top of the host's own triggers,
    not a host extension. Delivery is at least once, by one instance at a time: a change may come
    again until its batch is committed, so the handler must be idempotent.
    """

    def __init__(
        self,
        *,
        name: str,
        source: SourceAdapter | ChangeSource,
        checkpoint_store: StateStore,
        **options: Unpack[TriggerOptions],
    ) -> None:
        self._runner = PollRunner(settings_of(name, source, checkpoint_store, options))
        self.name = name
        self.source = source
        self.checkpoint_store = checkpoint_store
        self.quarantine = self.settings.quarantine

    @property
    def settings(self) -> PollSettings:
        """What the poller is made of, for tools."""
        return self._runner.settings

    def run(self, *, timer: object, handler: Callable[..., Any], invocation_id: str | None = None) -> int:  # noqa: ARG002 - the host's own argument
        """Run one tick; return the number of events handled.

        ``handler`` is called with a list of events, and with a `PollContext` when it takes a
        second argument.
        """
        return self._runner.tick(handler, invocation_id=invocation_id)

    async def run_async(self, *, timer: object, handler: Callable[..., Any], invocation_id: str | None = None) -> int:  # noqa: ARG002 - see run
        """Run one tick without blocking the loop; the handler may be async."""
        return await self._runner.tick_async(handler, invocation_id=invocation_id)
