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
from azure_functions_db.core.signals import Stage, StageEnded, StageStarted
from azure_functions_db.trigger.batch import Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from azure_functions_db.core.errors import DbError
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
        self, *, poller_name: str, invocation_id: str, clock: Callable[[], float], notice: Callable[[TickSignal], None]
    ) -> None:
        self.poller_name = poller_name
        self.invocation_id = invocation_id
        self.source = ""
        self._clock = clock
        self._notice = notice

    def say(self, kind: type[TickSignal], **facts: Any) -> None:
        """Tell the observers a fact about this tick."""
        self._notice(kind(poller_name=self.poller_name, invocation_id=self.invocation_id, source=self.source, **facts))

    @contextmanager
    def stage(self, stage: Stage, batch_id: str | None = None, timing: Timing | None = None) -> Iterator[Timing]:
        """Run one step: what it raises comes out as the error of this step; its time is added to ``timing``."""
        self.say(StageStarted, stage=stage, batch_id=batch_id)
        timing, began = timing or Timing(), self._clock()
        failure: BaseException | None = None
        try:
            with self.translated(stage, batch_id):
                yield timing
        except BaseException as error:
            failure = error
            raise
        finally:
            duration_ms = (self._clock() - began) * 1000
            timing.ms += duration_ms
            self.say(StageEnded, stage=stage, batch_id=batch_id, duration_ms=duration_ms, error=failure)

    @contextmanager
    def translated(self, stage: Stage, batch_id: str | None = None) -> Iterator[None]:
        """Turn what is raised into the error of this stage, and let it say what it is about."""
        try:
            yield
        except Exception as error:
            ours = _ours(stage, error)
            self._sign(ours, batch_id)
            if ours is error:
                raise
            raise ours from error

    def _sign(self, error: DbError, batch_id: str | None) -> None:
        for name, value in (("poller_name", self.poller_name), ("batch_id", batch_id), ("source", self.source)):
            if getattr(error, name, "") is None:
                setattr(error, name, value or None)


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
