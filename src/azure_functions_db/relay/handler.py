"""The handler that relays batches, the port that a broker fits into, and the messages: CloudEvents 1.0."""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import itertools
import json
import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, get_args

from azure_functions_db.core.bridge import finished, in_thread
from azure_functions_db.core.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    DbError,
    LostLeaseError,
    RelayError,
    RowsFailed,
)
from azure_functions_db.core.types import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from azure_functions_db.trigger.events import RowChange
    from azure_functions_db.trigger.handler import PollContext

    IsSet = Callable[[], bool]

T = TypeVar("T")

_log = logging.getLogger("azure_functions_db")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
# What a single send may take even where no time is left: without it nothing would ever be tried.
_LEAST_SECONDS = 5.0
_GLANCE_SECONDS, _CLOSING_SECONDS, _ANSWER_SECONDS = 0.5, 2.0, 30.0


class Broker(Protocol):
    """A place that messages are sent to; one call sends at a time, each on a thread of its own.

    One with ``checkup() -> list[Finding]``, which sends nothing, is asked about itself by ``azfdb doctor``.
    """

    def send(self, delivery: Delivery) -> None:
        """Send what waits, messages of one key in their order, and tell the delivery what the broker has taken.

        Return when nothing waits any more. Raise `BrokerUnavailableError` for a failure that passes:
        what still waits is sent again after a pause. Any other error ends the call.
        """

    def close(self) -> None:
        """Let go of the connection; the next send makes a new one."""


class Delivery:
    """The messages of one call on their way: which wait, which the broker has, which it will never take."""

    def __init__(self, messages: Sequence[Message], seconds: float, stopped: Iterable[IsSet] = ()) -> None:
        self.total = len(messages)
        self.refused: dict[str, Exception] = {}
        """By event id, why messages cannot be sent, however often they are tried."""
        self._messages = messages
        self._done: set[int] = set()
        self._seconds = seconds
        self._ends_at = time.monotonic() + seconds
        self._stopped = tuple(stopped)
        self._sender: threading.Thread | None = None

    @property
    def waiting(self) -> list[Message]:
        """The messages that the broker does not have yet, in their order."""
        return [message for message in self._messages if id(message) not in self._done]

    @property
    def done(self) -> int:
        """How many messages need not be sent any more."""
        return len(self._done)

    @property
    def send_seconds(self) -> float:
        """How long one send may take; one that is not answered must leave time for another."""
        return max(_LEAST_SECONDS, min(self._seconds / 3, self._ends_at - time.monotonic()))

    def confirm(self, messages: Iterable[Message]) -> None:
        """Learn that the broker has these messages."""
        self._done.update(map(id, messages))

    def refuse(self, message: Message, reason: Exception) -> None:
        """Learn that the broker will never take this message."""
        self.refused[message.id] = reason
        self._done.add(id(message))

    def check(self) -> None:
        """Raise where what would be sent now could not be confirmed any more; ask before each send."""
        if self._sender is not threading.current_thread():
            raise RelayError("This call took too long, and another one sends in its place")
        self.check_lease()

    def check_lease(self) -> None:
        """Raise where the lease is lost or the call cancelled."""
        if any(is_set() for is_set in self._stopped):
            raise LostLeaseError("The lease was lost, or the call cancelled, while a batch was being relayed")

    def sent_by(self, sender: threading.Thread | None) -> None:
        """Let this thread send from now on, and no other."""
        self._sender = sender

    def has_time_for(self, pause: float) -> bool:
        """Tell whether there is time for a pause and another send."""
        return time.monotonic() + pause < self._ends_at

    def wait(self, pause: float) -> None:
        """Wait before another send, but not for longer than the lease lives."""
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0:
            self.check_lease()
            time.sleep(min(left, 0.1))


class RelayHandler:
    """A handler that sends each batch to a broker as CloudEvents and returns when the broker has all of it.

    Call it with the events and the context of a batch, or await `send_async`. Passing failures are
    tried again for ``patience_seconds``, within the time budget of the tick. An event that the broker
    will never take is named by `RowsFailed`, so that a quarantine can keep it. Whoever receives may see
    a message again, with the same id.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        mode: Mode = "structured",
        key: KeyOf | None = None,
        event: CloudEventOf | None = None,
        patience_seconds: float = 30.0,
    ) -> None:
        if not patience_seconds > 0:
            raise ConfigurationError("patience_seconds must be greater than 0", setting="patience_seconds")
        self._broker = broker
        self._messages = Messages(mode, key, event)
        self._patience = patience_seconds
        self._lock = threading.Lock()

    def __call__(self, events: Sequence[RowChange], context: PollContext | None = None) -> None:
        """Send the events; return when the broker has them all."""
        self._relay(events, context, ())

    async def send_async(self, events: Sequence[RowChange], context: PollContext | None = None) -> None:
        """Send the events from an async handler; a cancelled call has ended its sending when it returns."""
        cancelled = threading.Event()
        work = asyncio.ensure_future(in_thread(self._relay, events, context, (cancelled.is_set,)))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            cancelled.set()
            await finished(asyncio.wait([work]))
            raise

    def close(self) -> None:
        """Let go of the connection; the next call makes a new one."""
        with self._lock:
            self._close()

    def checkup(self) -> list[Finding]:
        """Ask the broker whether it is there and what it takes; nothing is sent."""
        ask = getattr(self._broker, "checkup", None)
        if ask is None:
            return [Finding("relay", "note", f"a {type(self._broker).__name__} does not examine itself")]
        with self._lock:
            try:
                return _in_time(ask)
            except DbError as error:
                return [Finding("relay", "error", str(error), "see connection= and the names given to the relay")]
            finally:
                self._close()

    def _relay(self, events: Sequence[RowChange], context: PollContext | None, stopped: tuple[IsSet, ...]) -> None:
        messages, unfit = self._encoded(events)
        if context is not None:
            stopped = (*stopped, context.lease_lost.is_set)
        delivery = Delivery(messages, _seconds(self._patience, context), stopped)
        with self._lock:
            self._deliver(delivery)
        if failures := unfit | delivery.refused:
            raise RowsFailed(failures)

    def _encoded(self, events: Sequence[RowChange]) -> tuple[list[Message], dict[str, Exception]]:
        """Return the messages, and by event id why others cannot be made."""
        messages, unfit = list[Message](), dict[str, Exception]()
        for event in events:
            if not hasattr(event, "to_cloudevent"):
                raise ConfigurationError(
                    f"A relay sends events, not instances of {type(event).__name__}: give it context.events"
                )
            try:
                messages.append(self._messages.of(event))
            except (RecursionError, TypeError, ValueError) as unfitting:
                unfit[event.event_id] = unfitting
        return messages, unfit

    def _deliver(self, delivery: Delivery) -> None:
        pauses = _pauses()
        while delivery.waiting:
            done = delivery.done
            try:
                delivery.check_lease()
                self._send(delivery)
            except BrokerUnavailableError as failure:
                self._close()
                pauses = pauses if delivery.done == done else _pauses()
                self._wait_after(failure, delivery, next(pauses))
            except BaseException:
                self._close()
                raise

    def _send(self, delivery: Delivery) -> None:
        """Send on a thread that can be left behind: a client may wait for an answer for ever, a tick may not."""
        outcome: Future[None] = Future()
        work = partial(contextvars.copy_context().run, _settle, outcome, partial(self._broker.send, delivery))
        sender = threading.Thread(target=work, name="azfdb-relay", daemon=True)
        delivery.sent_by(sender)
        sender.start()
        try:
            _wait_for(outcome, delivery)
        finally:
            delivery.sent_by(None)
        outcome.result()

    def _close(self) -> None:
        """Close the broker, which may hang as sending does; it has let go of its client by then."""
        closer = threading.Thread(target=self._broker.close, name="azfdb-relay", daemon=True)
        closer.start()
        closer.join(_CLOSING_SECONDS)

    def _wait_after(self, failure: BrokerUnavailableError, delivery: Delivery, pause: float) -> None:
        pause = max(pause, failure.retry_after_seconds or 0.0)
        waiting = len(delivery.waiting)
        if not delivery.has_time_for(pause):
            raise RelayError(
                f"{failure}. {waiting} of {delivery.total} events were not confirmed in time and will come again"
            ) from failure
        _log.warning(
            "the broker did not take all of a batch, trying again: %s",
            failure,
            extra={"event": "relay_retry", "unconfirmed_count": waiting, "delay_seconds": round(pause, 3)},
        )
        delivery.wait(pause)


class PerProcess(Generic[T]):
    """A client that is made when it is first needed, and never shared with a forked child."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: tuple[int, T] | None = None

    def get(self) -> T:
        """Return this process's own client."""
        if self._made is None or self._made[0] != os.getpid():
            self._made = (os.getpid(), self._make())
        return self._made[1]

    def drop(self) -> T | None:
        """Forget the client and return it for closing; None where there is none of this process."""
        made, self._made = self._made, None
        return made[1] if made is not None and made[0] == os.getpid() else None


def _in_time(ask: Callable[[], list[Finding]]) -> list[Finding]:
    """Return an answer, on a thread that can be left behind as a sender can."""
    outcome: Future[list[Finding]] = Future()
    threading.Thread(target=_settle, args=(outcome, ask), name="azfdb-relay", daemon=True).start()
    if not futures.wait([outcome], timeout=_ANSWER_SECONDS).done:
        raise BrokerUnavailableError(f"The broker has not answered for {_ANSWER_SECONDS:.0f} seconds")
    return outcome.result()


def _settle(outcome: Future[T], work: Callable[[], T]) -> None:
    try:
        outcome.set_result(work())
    except BaseException as failure:  # noqa: BLE001 - raised where the outcome is waited for
        outcome.set_exception(failure)


def _wait_for(outcome: Future[None], delivery: Delivery) -> None:
    """Wait until a sender is done, for as long as it gets on."""
    done, since = delivery.done, time.monotonic()
    while not futures.wait([outcome], timeout=_GLANCE_SECONDS).done:
        delivery.check_lease()
        if delivery.done != done:
            done, since = delivery.done, time.monotonic()
        elif time.monotonic() - since > 2 * delivery.send_seconds:
            raise BrokerUnavailableError("The broker neither takes messages nor says why")


def _seconds(patience: float, context: PollContext | None) -> float:
    deadline = context.deadline if context is not None else None
    if deadline is None:
        return patience
    return min(patience, (deadline - dt.datetime.now(dt.UTC)).total_seconds())


def _pauses() -> Iterator[float]:
    # Strayed, so that the instances that one outage has stopped do not all come back at once.
    for attempt in itertools.count():
        yield min(_FIRST_PAUSE * 2 ** min(attempt, 10), _LONGEST_PAUSE) * random.uniform(0.8, 1.2)  # noqa: S311


class TooLargeError(ValueError):
    """A message is larger than its broker takes, however often it is tried."""

    def __init__(self, message: Message, limit: int | None, broker: str) -> None:
        most = "" if limit is None else f", at most {limit:,} with what the protocol adds"
        super().__init__(f"The event is too large for {broker}: {len(message.body):,} bytes{most}")


def packed(
    messages: Sequence[Message], new_batch: Callable[[], T], added: Callable[[T, Message], bool]
) -> Iterator[tuple[T | None, list[Message]]]:
    """Return batches as full as they get, in order; None for a message that does not even fit alone."""
    waiting = deque(messages)
    while waiting:
        batch, taken = new_batch(), list[Message]()
        while waiting and added(batch, waiting[0]):
            taken.append(waiting.popleft())
        yield (batch, taken) if taken else (None, [waiting.popleft()])


Mode = Literal["structured", "binary"]
"""Where the attributes of a CloudEvent go: beside its data into the body, or into the message's properties."""

KeyOf = Callable[["RowChange"], str]
CloudEventOf = Callable[["RowChange"], Mapping[str, Any]]

_STRUCTURED = "application/cloudevents+json"
_JSON = "application/json"
# Made once: json.dumps makes an encoder for each call that is told how to write.
_json_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_key_text = json.JSONEncoder(separators=(",", ":"), default=str).encode


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """One change as it is sent."""

    id: str
    """The id of the event: the same whenever the same change is sent again."""
    key: str
    """What has to stay in order has the same key: the row, unless said otherwise."""
    body: bytes = field(repr=False)
    content_type: str = _STRUCTURED
    attributes: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The attributes of the CloudEvent in binary mode, without ``datacontenttype``."""


class Messages:
    """Makes a message of each change."""

    def __init__(self, mode: Mode = "structured", key: KeyOf | None = None, event: CloudEventOf | None = None) -> None:
        if mode not in get_args(Mode):
            raise ConfigurationError(f"mode= is structured or binary, not {mode!r}")
        self._encoded = _structured if mode == "structured" else _binary
        self._key_of = key or _row_of
        self._event_of = event or _cloudevent_of

    def of(self, change: RowChange) -> Message:
        """Return the message of a change."""
        return self._encoded(change.event_id, str(self._key_of(change)), self._event_of(change))


def _row_of(change: RowChange) -> str:
    """Return a text that all changes of a row share, and no other row of its source has."""
    return _key_text([*change.pk.values()]) if change.pk else change.source.name


def _cloudevent_of(change: RowChange) -> Mapping[str, Any]:
    return change.to_cloudevent()


def _structured(event_id: str, key: str, event: Mapping[str, Any]) -> Message:
    return Message(event_id, key, json_bytes(event))


def _binary(event_id: str, key: str, event: Mapping[str, Any]) -> Message:
    attributes = {
        name: str(value) for name, value in event.items() if name not in {"data", "data_base64", "datacontenttype"}
    }
    content_type = str(event.get("datacontenttype", _JSON))
    return Message(event_id, key, json_bytes(event.get("data")), content_type, attributes)


def json_bytes(value: Any) -> bytes:
    """Return a value as JSON in UTF-8; half a surrogate pair, which UTF-8 cannot hold, stays an escape."""
    return _json_text(value).encode(errors="backslashreplace")
