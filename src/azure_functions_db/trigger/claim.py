"""The way to the lease and the checkpoint, for each kind of store."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from azure_functions_db.core.errors import ConfigurationError, LeaseConflictError
from azure_functions_db.core.ports import LookingStateStore, StateStore, TransactionalStateStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from azure_functions_db.core.types import Checkpoint, Glance, LeaseView


class Claim(Protocol):
    """One tick's claim on a poller's state."""

    lease_id: str | None
    rival: LeaseView | None

    def approach(self) -> None:
        """Find out whether the lease can be had; `LeaseConflictError` when somebody holds it."""

    def load(self) -> Checkpoint:
        """Return the checkpoint."""

    def hold(self) -> None:
        """Hold the lease from here on; `LeaseConflictError` when somebody was faster."""

    def renew(self) -> None:
        """Push the expiry of the lease."""

    def commit(self, checkpoint: Checkpoint, *, last: bool) -> None:
        """Write the checkpoint; the last write may give the lease back as well."""

    def release(self) -> None:
        """Give the lease back, if it is still held."""

    def transaction(self) -> AbstractContextManager[object]:
        """Open the transaction that the handler and the next commit share."""


def check_store(store: object, *, transactional: bool) -> None:
    """Refuse what cannot keep a poller's state as it is wanted."""
    if not isinstance(store, StateStore):
        raise ConfigurationError(
            f"{type(store).__name__} is no state store: it needs acquire_lease, renew_lease, release_lease, "
            "load_checkpoint and commit_checkpoint"
        )
    if transactional and not isinstance(store, TransactionalStateStore):
        raise ConfigurationError(
            f"transactional=True needs a store in the handler's own database (SqlStateStore), "
            f"not {type(store).__name__}"
        )


def claim_on(
    store: StateStore,
    poller_name: str,
    *,
    fingerprint: str,
    ttl_seconds: float,
    transactional: bool,
    may_steal: Callable[[], bool],
) -> Claim:
    """Return the claim that suits the store."""
    if isinstance(store, LookingStateStore):
        return LookingClaim(store, poller_name, ttl_seconds, fingerprint, may_steal, transactional=transactional)
    return PlainClaim(store, poller_name, ttl_seconds)


class PlainClaim:
    """Lock first, then read: for stores with just the five methods."""

    def __init__(self, store: StateStore, poller_name: str, ttl_seconds: float) -> None:
        self._store = store
        self._poller = poller_name
        self._ttl = ttl_seconds
        self.lease_id: str | None = None
        self.rival: LeaseView | None = None

    def approach(self) -> None:
        self.lease_id = self._store.acquire_lease(self._poller, self._ttl)

    def load(self) -> Checkpoint:
        return self._store.load_checkpoint(self._poller)

    def hold(self) -> None:
        """Do nothing: `approach` has taken the lease."""

    def renew(self) -> None:
        self._store.renew_lease(self._poller, _held(self.lease_id), self._ttl)

    def commit(self, checkpoint: Checkpoint, *, last: bool) -> None:  # noqa: ARG002 - releasing is a call of its own here
        self._store.commit_checkpoint(self._poller, checkpoint, _held(self.lease_id))

    def release(self) -> None:
        if self.lease_id is not None:
            lease_id, self.lease_id = self.lease_id, None
            self._store.release_lease(self._poller, lease_id)

    def transaction(self) -> AbstractContextManager[object]:
        return nullcontext()


class LookingClaim(PlainClaim):
    """Look first, lock when there is work, release in the last commit: three requests, not five."""

    _store: LookingStateStore
    _glance: Glance

    def __init__(
        self,
        store: LookingStateStore,
        poller_name: str,
        ttl_seconds: float,
        fingerprint: str,
        may_steal: Callable[[], bool],
        *,
        transactional: bool,
    ) -> None:
        super().__init__(store, poller_name, ttl_seconds)
        self._fingerprint = fingerprint
        self._may_steal = may_steal
        self._transactional = transactional
        self._joined: Callable[[], AbstractContextManager[object]] = nullcontext
        self._open: object | None = None
        if transactional and isinstance(store, TransactionalStateStore):
            self._joined = store.transaction

    def approach(self) -> None:
        self._glance = self._store.look(self._poller, self._fingerprint)
        self._give_way_to(self._glance.lease)

    def load(self) -> Checkpoint:
        # Before the lease is held this is what was looked at; afterwards the store knows better.
        return self._glance.checkpoint if self.lease_id is None else super().load()

    def hold(self) -> None:
        if self.lease_id is None:
            # Only asked when there is work: an idle poller's old lease uses up nobody's one steal.
            if self._glance.abandoned is not None and not self._may_steal():
                self._give_way_to(self._glance.abandoned)
            self.lease_id = self._store.take_lease(self._glance, self._ttl)

    def commit(self, checkpoint: Checkpoint, *, last: bool) -> None:
        if last and not self._transactional:
            self._store.commit_and_release(self._poller, checkpoint, _held(self.lease_id))
            self.lease_id = None
        else:
            super().commit(checkpoint, last=last)

    def _give_way_to(self, rival: LeaseView | None) -> None:
        self.rival = rival
        if rival is not None:
            raise LeaseConflictError("The lease is held", poller_name=self._poller, owner_id=rival.owner_id)

    def renew(self) -> None:
        # One's own transaction may lock the state: then a renewal would wait for it, and so must any other taker.
        locks_out_others = getattr(self._store, "locks_out_others", None)
        if self._open is None or locks_out_others is None or not locks_out_others(self._open):
            super().renew()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._joined() as opened:
            self._open = opened
            try:
                yield
            finally:
                self._open = None


def _held(lease_id: str | None) -> str:
    if lease_id is None:
        raise LeaseConflictError("The lease is not held")
    return lease_id
