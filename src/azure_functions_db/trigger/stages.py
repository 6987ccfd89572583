"""The single place that times a step of a tick, tells the observers and turns foreign errors into ours."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

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
    SourceInUseError,
    StateStoreError,
)
from azure_functions_db.core.secrets import masked_words
from azure_functions_db.core.signals import Stage, StageEnded, StageFailed, StageStarted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from azure_functions_db.core.errors import DbError
    from azure_functions_db.core.observers import Observers
    from azure_functions_db.core.signals import TickSignal

T = TypeVar("T")


class _Rule(NamedTuple):
    says: str
    raises: type[DbError]
    keeps: tuple[type[DbError], ...] = ()
    passes: tuple[type[DbError], ...] = ()
    """What is no failure: somebody else is at it."""


_RULES = {
    Stage.DESCRIPTOR: _Rule("The source could not be described", SourceConfigurationError, (PollerError,)),
    Stage.ACQUIRE: _Rule(
        "The state store failed", LeaseAcquireError, (LeaseAcquireError, StateStoreError), (LeaseConflictError,)
    ),
    Stage.LOAD: _Rule("The checkpoint could not be loaded", StateStoreError, (StateStoreError, PollerError)),
    Stage.FETCH: _Rule(
        "Changes could not be read",
        FetchError,
        (FetchError, PositionLostError, SerializationError, SourceConfigurationError),
        (SourceInUseError,),
    ),
    Stage.NORMALIZE: _Rule("Records could not be turned into events", SerializationError, (SerializationError,)),
    Stage.HANDLER: _Rule("The handler failed", HandlerError, (LostLeaseError,)),
    Stage.QUARANTINE: _Rule("Rows could not be put into quarantine", CommitError),
    Stage.COMMIT: _Rule("The checkpoint could not be committed", CommitError, (PollerError,)),
    Stage.ACKNOWLEDGE: _Rule("The source could not be told of the commit", FetchError, (), (SourceInUseError,)),
    Stage.RENEW: _Rule("The lease could not be renewed", LostLeaseError),
    Stage.RELEASE: _Rule("The lease could not be released", CommitError),
    Stage.CLOSE: _Rule("The source could not be closed", FetchError),
}


class Stages:
    """Runs the stages of one tick: timed, told, and with errors of their own."""

    def __init__(
        self, *, poller_name: str, invocation_id: str, clock: Callable[[], float], observers: Observers
    ) -> None:
        self.poller_name = poller_name
        self.invocation_id = invocation_id
        self.source = ""
        self._clock = clock
        self._observers = observers
        self._is_traced = observers.trace_stages

    def say(self, kind: type[TickSignal], **facts: Any) -> None:
        """Tell the observers a fact about this tick, if one of them listens."""
        about = {"poller_name": self.poller_name, "invocation_id": self.invocation_id, "source": self.source}
        self._observers.tell(kind, about | facts)

    def run(
        self,
        stage: Stage,
        step: Callable[[], T],
        batch_id: str | None = None,
        spent: dict[Stage, float] | None = None,
    ) -> T:
        """Run one step: what it raises comes out as the error of its stage; ``spent`` adds up the milliseconds."""
        if self._is_traced:
            self.say(StageStarted, stage=stage, batch_id=batch_id)
        began = self._clock()
        try:
            result = step()
        except BaseException as error:
            self._fail(stage, batch_id, (self._clock() - began) * 1000, error)
            raise
        finally:
            if spent is not None:
                spent[stage] = spent.get(stage, 0.0) + (self._clock() - began) * 1000
        if self._is_traced:
            self.say(StageEnded, stage=stage, batch_id=batch_id, duration_ms=(self._clock() - began) * 1000)
        return result

    def _fail(self, stage: Stage, batch_id: str | None, duration_ms: float, error: BaseException) -> None:
        """Tell of a failed step, and raise the error of its stage unless that is what it raised itself."""
        if isinstance(error, _RULES[stage].passes):
            self.say(StageEnded, stage=stage, batch_id=batch_id, duration_ms=duration_ms)
            return
        ours = self.translation(stage, error, batch_id) if isinstance(error, Exception) else error
        if ours is not error:
            ours.__cause__ = error  # observers want to know it, too
        self.say(StageFailed, stage=stage, batch_id=batch_id, duration_ms=duration_ms, error=ours)
        if ours is not error:
            raise ours from error

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
