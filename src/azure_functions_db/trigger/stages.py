"""The single place that times a step of a tick, tells the observers and turns foreign errors into ours."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from azure_functions_db.core.errors import (
    CommitError,
    FetchError,
    HandlerError,
    LeaseAcquireError,
    LeaseConflictError,
    LostLeaseError,
    PollerError,
    PositionLostError,
    SerializationError,
    SourceConfigurationError,
    StateStoreError,
)
from azure_functions_db.core.secrets import masked_words
from azure_functions_db.core.signals import Stage, StageEnded, StageFailed, StageStarted
from azure_functions_db.trigger.batch import Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from azure_functions_db.core.errors import DbError
    from azure_functions_db.core.observers import Observers
    from azure_functions_db.core.signals import TickSignal


class _Rule(NamedTuple):
    says: str
    raises: type[DbError]
    keeps: tuple[type[DbError], ...] = ()


_RULES = {
    Stage.DESCRIPTOR: _Rule("The source could not be described", SourceConfigurationError, (PollerError,)),
    Stage.ACQUIRE: _Rule("The state store failed", LeaseAcquireError, (LeaseAcquireError, StateStoreError)),
    Stage.LOAD: _Rule("The checkpoint could not be loaded", StateStoreError, (StateStoreError, PollerError)),
    Stage.FETCH: _Rule(
        "Changes could not be read",
        FetchError,
        (FetchError, PositionLostError, SerializationError, SourceConfigurationError),
    ),
    Stage.NORMALIZE: _Rule("Records could not be turned into events", SerializationError, (SerializationError,)),
    Stage.HANDLER: _Rule("The handler failed", HandlerError, (LostLeaseError,)),
    Stage.QUARANTINE: _Rule("Rows could not be put into quarantine", CommitError),
    Stage.COMMIT: _Rule("The checkpoint could not be committed", CommitError, (PollerError,)),
    Stage.ACKNOWLEDGE: _Rule("The source could not be told of the commit", FetchError),
    Stage.RENEW: _Rule("The lease could not be renewed", LostLeaseError),
    Stage.RELEASE: _Rule("The lease could not be released", CommitError),
    Stage.CLOSE: _Rule("The source could not be closed", FetchError),
}


class Stages:
    """Opens the stages of one tick."""

    def __init__(
        self, *, poller_name: str, invocation_id: str, clock: Callable[[], float], observers: Observers
    ) -> None:
        self.poller_name = poller_name
        self.invocation_id = invocation_id
        self.source = ""
        self.clock = clock
        self.is_traced = bool(observers.listeners(StageStarted) or observers.listeners(StageEnded))
        """Whether anybody wants to know of steps that end well."""
        self._observers = observers

    def say(self, kind: type[TickSignal], **facts: Any) -> None:
        """Tell the observers a fact about this tick, if one of them listens."""
        if self._observers.listeners(kind):
            about = {"poller_name": self.poller_name, "invocation_id": self.invocation_id, "source": self.source}
            self._observers.notice(kind(**about, **facts))

    def stage(self, stage: Stage, batch_id: str | None = None, timing: Timing | None = None) -> OpenStage:
        """Run one step: what it raises comes out as the error of this step; its time is added to ``timing``."""
        return OpenStage(self, stage, batch_id, timing or Timing())

    @contextmanager
    def translated(self, stage: Stage, batch_id: str | None = None) -> Iterator[None]:
        """Turn what is raised into the error of this stage, and let it say what it is about."""
        try:
            yield
        except Exception as error:
            ours = self.translation(stage, error, batch_id)
            if ours is error:
                raise
            raise ours from error

    def translation(self, stage: Stage, error: Exception, batch_id: str | None) -> DbError:
        """Return the error of this stage that says what was raised, and what it is about."""
        ours = _ours(stage, error)
        for name, value in (("poller_name", self.poller_name), ("batch_id", batch_id), ("source", self.source)):
            if getattr(ours, name, "") is None:
                setattr(ours, name, value or None)
        return ours


class OpenStage:
    """One step of a tick while it runs."""

    __slots__ = ("_batch_id", "_began", "_stage", "_stages", "_timing")

    def __init__(self, stages: Stages, stage: Stage, batch_id: str | None, timing: Timing) -> None:
        self._stages = stages
        self._stage = stage
        self._batch_id = batch_id
        self._timing = timing

    def __enter__(self) -> Timing:
        if self._stages.is_traced:
            self._stages.say(StageStarted, stage=self._stage, batch_id=self._batch_id)
        self._began = self._stages.clock()
        return self._timing

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        duration_ms = (self._stages.clock() - self._began) * 1000
        self._timing.ms += duration_ms
        if error is not None:
            self._fail(error, duration_ms)
        elif self._stages.is_traced:
            self._stages.say(StageEnded, stage=self._stage, batch_id=self._batch_id, duration_ms=duration_ms)

    def _fail(self, error: BaseException, duration_ms: float) -> None:
        ours = error
        if isinstance(error, Exception):
            ours = self._stages.translation(self._stage, error, self._batch_id)
        if ours is not error:
            ours.__cause__ = error  # observers want to know it, too
        self._stages.say(StageFailed, stage=self._stage, batch_id=self._batch_id, duration_ms=duration_ms, error=ours)
        if ours is not error:
            raise ours from error


def _ours(stage: Stage, error: Exception) -> DbError:
    rule = _RULES[stage]
    if isinstance(error, rule.keeps) and not (stage is Stage.ACQUIRE and getattr(error, "unreachable", False)):
        return error
    if stage is Stage.COMMIT and isinstance(error, LeaseConflictError):
        return LostLeaseError(f"The lease had passed to somebody else: {error}")
    ours = rule.raises(f"{rule.says}: {type(error).__name__}: {masked_words(error)}")
    if isinstance(ours, FetchError):
        ours.transient = isinstance(error, ConnectionError | TimeoutError)
    return ours
