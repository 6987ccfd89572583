"""The lease of one tick: looked for, held, kept alive, written under and given back; and what ends a tick early."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.clocks import lease_margin
from azure_functions_db.core.errors import ConfigurationError, LeaseConflictError, LostLeaseError
from azure_functions_db.core.ports import (
    LookingStateStore,
    NotingStateStore,
    StateStore,
    TellsPause,
    TransactionalStateStore,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from azure_functions_db.core.bridge import LoopCall
    from azure_functions_db.core.ports import HeldLease
    from azure_functions_db.core.types import CheckpointJson, LeaseView, Pause, PollerState


class TickCancelled(BaseException):
    """The host no longer wants the tick; nothing was committed since."""


class Lease:
    """One tick's lease on its poller.

    From the moment it is held, a heartbeat renews it. Every step of the tick asks `check` whether
    it may still go on: not once the lease is lost, by the store's word or by our own clock, nor
    once the host has cancelled the tick.
    """

    def __init__(
        self,
        store: StateStore,
        poller_name: str,
        *,
        ttl_seconds: float,
        transactional: bool,
        may_steal: Callable[[], bool],
        clock: Callable[[], float],
        tell: Callable[[Exception, bool], None],
    ) -> None:
        self.lost: Expiry = Expiry(ttl_seconds, clock(), clock)
        """What a handler may ask whether the lease is lost."""
        self.owner = ""
        self.is_held = False
        """Whether the lease was taken and is kept alive."""
        self.rival: LeaseView | None = None
        """The lease of whoever was found to hold it instead, where the store shows it."""
        self.paused: Pause | None = None
        """The mark of an operator who does not want the poller to run."""
        self._store = store
        self._poller = poller_name
        self._ttl = ttl_seconds
        self._transactional = transactional
        self._may_steal = may_steal
        self._clock = clock
        self._tell = tell
        self._asked = clock()
        self._state: PollerState | None = None
        self._held: HeldLease | None = None
        self._stopped = threading.Event()
        self._woken = threading.Event()
        self._cancelled = False
        self._call: LoopCall[Any] | None = None
        self._heartbeat: Heartbeat | None = None

    def approach(self, *fingerprints: str) -> None:
        """Look whether the lease can be had; a store that cannot be looked at takes it right here."""
        store, self._asked = self._store, self._clock()
        if isinstance(store, LookingStateStore):
            self._state = store.look(self._poller, *fingerprints)
            self.paused = self._state.paused
            self._give_way_to(self._state.lease)
        else:
            lease_id = store.acquire_lease(self._poller, self._ttl)
            self._keep(LeaseById(store, self._poller, lease_id))  # from here on, or a long fetch would outlive it

    def load(self) -> CheckpointJson:
        """Return the checkpoint that was looked at, until the lease is held; from then on the store knows better."""
        if self._state is None and self._held is None:
            self.approach()  # what is noted beside a checkpoint must be held against the look that showed it
        if self._state is not None and self._held is None:
            return self._state.checkpoint
        return self._store.load_checkpoint(self._poller)

    def hold(self) -> None:
        """Take the lease by a write that proves that nothing has changed since the look, and keep it alive."""
        store, state = self._store, self._state
        if state is None or not isinstance(store, LookingStateStore):
            raise AssertionError("approach() comes before hold()")
        self.check()
        # Only asked when there is work: an idle poller's old lease uses up nobody's one steal.
        if state.abandoned is not None and not self._may_steal():
            self._give_way_to(state.abandoned)
        self._asked = self._clock()
        self._keep(store.take(state, self._ttl))

    def commit(self, checkpoint: CheckpointJson, *, last: bool) -> None:
        """Write the checkpoint under the lease, with no renewal beside it; the last write may give it back."""
        if self._heartbeat is None or self._held is None:
            raise AssertionError("hold() comes before commit()")
        # A transaction that fails at its end takes the checkpoint back, and must not have given back the lease.
        release = last and not self._transactional
        with self._heartbeat.quiet():
            self.check()
            if self._held.commit(checkpoint, release=release):
                self._held = self._state = None  # what was looked at is long past
            if last:
                self._heartbeat.end()  # What has been given back must not be renewed.

    def note(self, checkpoint: CheckpointJson) -> None:
        """Write something beside the unmoved position, as the tick's last write.

        Under the lease where it is held, which this gives back; else without taking it, where the store can do that.
        """
        if self._state is None and self._held is None:
            self.approach()
        if self._held is None and self._state is not None and isinstance(self._store, NotingStateStore):
            self._store.note(self._state, checkpoint)
            return
        if self._held is None:
            self.hold()
        self.commit(checkpoint, last=True)

    def transaction(self) -> AbstractContextManager[object]:
        """Open the transaction that the handler and the next commit share, where that is wanted."""
        return self._held.transaction() if self._held is not None and self._transactional else nullcontext()

    @property
    def is_paused(self) -> bool:
        """Tell whether an operator has paused the poller since, as far as the last write or renewal has shown it."""
        return isinstance(self._held, TellsPause) and self._held.paused is not None

    @property
    def is_to_release(self) -> bool:
        """Tell whether the lease has still to be given back."""
        return self._held is not None

    def stop(self) -> None:
        """Renew no more."""
        if self._heartbeat is not None:
            self._heartbeat.stop()

    def release(self) -> None:
        """Give the lease back, if it is still held."""
        held, self._held = self._held, None
        if held is not None:
            with suppress(LostLeaseError):  # there is nothing left to give back
                held.release()

    def cancel(self) -> None:
        """End the tick: the host has cancelled it; callable from any thread."""
        self._cancelled = True
        self._stop()

    def check(self) -> None:
        """Raise when the tick must not go on."""
        if self._cancelled:
            raise TickCancelled
        if self.is_held and self.lost.is_set():
            raise LostLeaseError("The lease was lost; nothing was committed since, and the batch comes again")

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Run work that counts for nothing once the tick is interrupted, whatever it returns or raises."""
        self.check()
        try:
            yield
        except Exception:
            self.check()
            raise
        self.check()

    def pause(self, seconds: float) -> None:
        """Sleep, but not through an interruption."""
        self._woken.wait(seconds)
        if not self._stopped.is_set():
            self._woken.clear()

    def wake(self) -> None:
        """End the pause that is under way, or else the next one; callable from any thread."""
        self._woken.set()

    def watch(self, call: LoopCall[Any]) -> Any:
        """Wait for a coroutine on the loop and return its result; cancel it when the tick is interrupted."""
        self._call = call
        if self._stopped.is_set():
            call.cancel()
        try:
            return self._wait_for(call)
        except asyncio.CancelledError as cancelled:
            self.check()
            raise RuntimeError("The handler's task was cancelled") from cancelled
        finally:
            self._call = None

    def _wait_for(self, call: LoopCall[Any]) -> Any:
        # A renewal that hangs tells nobody; so this thread looks at the clock itself.
        while self.is_held and not self.lost.is_set():
            try:
                return call.result(self.lost.remaining())
            except TimeoutError:
                if call.done():
                    raise
        return call.result()

    def _keep(self, held: HeldLease) -> None:
        """Take note that the lease is held, and keep it alive from now on."""
        self._held, self.is_held = held, True
        self.owner = _owner_of(held.lease_id)
        self.lost.extend(self._asked)
        self.lost.on_loss(self._stop)
        self._heartbeat = Heartbeat(
            renew=lambda: held.renew(self._ttl),
            expiry=self.lost,
            ttl_seconds=self._ttl,
            clock=self._clock,
            tell=self._tell,
        )
        self._heartbeat.start()

    def _give_way_to(self, rival: LeaseView | None) -> None:
        self.rival = rival
        if rival is not None:
            raise LeaseConflictError("The lease is held", poller_name=self._poller, owner_id=rival.owner_id)

    def _stop(self) -> None:
        self._stopped.set()
        self._woken.set()
        if self._call is not None:
            self._call.cancel()


class Expiry:
    """Is set once the lease is lost: told so, or not renewed in time by our own clock.

    It asks the clock itself, so a renewal that hangs cannot keep a lost lease alive.
    """

    def __init__(self, ttl_seconds: float, began: float, clock: Callable[[], float]) -> None:
        self._length = ttl_seconds - lease_margin(ttl_seconds)
        self._clock = clock
        self._began = began
        self._lost = threading.Event()
        self._listeners: list[Callable[[], None]] = []

    def extend(self, began: float) -> None:
        """Count the ttl anew from the moment at which the lease was asked for."""
        self._began = began

    def lose(self) -> None:
        """Take note that the lease is gone."""
        if not self._lost.is_set():
            self._lost.set()
            for listener in tuple(self._listeners):
                listener()

    def on_loss(self, listener: Callable[[], None]) -> None:
        """Call the listener when the lease is told lost; at once when it already is."""
        self._listeners.append(listener)
        if self._lost.is_set():
            listener()

    def age(self) -> float:
        """Return the seconds since the lease was last asked for."""
        return self._clock() - self._began

    def remaining(self) -> float:
        """Return the seconds that are left unless the lease is renewed."""
        return max(0.0, self._length - self.age())

    def is_set(self) -> bool:
        """Tell whether the lease is lost by now."""
        if not self._lost.is_set() and self._clock() - self._began >= self._length:
            self.lose()
        return self._lost.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost or the time is up; tell which."""
        until = None if timeout is None else self._clock() + timeout
        while not self.is_set():
            left = None if until is None else until - self._clock()
            if left is not None and left <= 0:
                return False
            self._lost.wait(self.remaining() if left is None else min(left, self.remaining()))
        return True


class Heartbeat:
    """A thread that renews well before half of the ttl is over, until it is stopped.

    A storage error in between is only told: the lease stays ours until our own clock says
    otherwise. The thread runs in a copy of the starter's context, so that its logs carry the
    invocation's id.
    """

    def __init__(
        self,
        *,
        renew: Callable[[], None],
        expiry: Expiry,
        ttl_seconds: float,
        clock: Callable[[], float],
        tell: Callable[[Exception, bool], None],
    ) -> None:
        self._renew = renew
        self._expiry = expiry
        self._clock = clock
        self._tell = tell
        self._interval = ttl_seconds / 3
        self._retry_interval = ttl_seconds / 20
        self._failing = False
        self._stopped = threading.Event()
        self._turn = threading.Lock()

    def start(self) -> None:
        """Begin to renew."""
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run,), name="azfdb-heartbeat", daemon=True).start()

    def quiet(self) -> AbstractContextManager[object]:
        """Keep renewals off while the holder itself writes; waits for one that is under way."""
        return self._turn

    def end(self) -> None:
        """Renew no more."""
        self._stopped.set()

    def stop(self) -> None:
        """Renew no more, and wait for a renewal that is under way."""
        self.end()
        with self._turn:
            pass

    def beat(self) -> None:
        """Renew once, unless it is too late or no longer wanted."""
        with self._turn:
            if self._stopped.is_set() or self._expiry.is_set():
                return
            began = self._clock()
            try:
                self._renew()
            except (LostLeaseError, LeaseConflictError) as lost:
                self._expiry.lose()
                self._tell(lost, True)
            except Exception as error:  # noqa: BLE001 - whatever a store raises, the clock decides
                self._failing = True
                self._tell(error, self._expiry.is_set())
            else:
                self._failing = False
                self._expiry.extend(began)

    def _run(self) -> None:
        while not self._stopped.wait(self._pause()) and not self._expiry.is_set():
            self.beat()

    def _pause(self) -> float:
        wanted = self._retry_interval if self._failing else self._interval - self._expiry.age()
        return max(0.0, min(wanted, self._expiry.remaining()))


class LeaseById:
    """A lease held in a store with just the five methods, which knows it by its id."""

    def __init__(self, store: StateStore, poller_name: str, lease_id: str) -> None:
        self.lease_id = lease_id
        self._store = store
        self._poller = poller_name

    def renew(self, ttl_seconds: float) -> None:
        """Push the expiry of the lease."""
        self._store.renew_lease(self._poller, self.lease_id, ttl_seconds)

    def commit(self, checkpoint: CheckpointJson, *, release: bool = False) -> bool:  # noqa: ARG002 - releasing is a call of its own here
        """Write the checkpoint; the lease stays held."""
        self._store.commit_checkpoint(self._poller, checkpoint, self.lease_id)
        return False

    def release(self) -> None:
        """Give the lease back."""
        self._store.release_lease(self._poller, self.lease_id)

    def transaction(self) -> AbstractContextManager[object]:
        """Open no transaction: such a store shares none."""
        return nullcontext()


def check_store(store: object, *, transactional: bool) -> None:
    """Refuse what cannot keep a poller's state as it is wanted."""
    if not isinstance(store, StateStore):
        raise ConfigurationError(
            f"{type(store).__name__} is no state store: it needs acquire_lease, renew_lease, release_lease, "
            'load_checkpoint and commit_checkpoint; give one, such as BlobCheckpointStore() or FileStateStore("state")'
        )
    if transactional and not isinstance(store, TransactionalStateStore):
        raise ConfigurationError(
            f"transactional=True needs a store in the handler's own database (SqlStateStore), "
            f"not {type(store).__name__}"
        )


def _owner_of(lease_id: str) -> str:
    # Lease ids are "owner:token"; a foreign store may have a form of its own.
    owner, _, token = lease_id.rpartition(":")
    return owner if owner and token.isdigit() else lease_id
