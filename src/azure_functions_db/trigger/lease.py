"""The lease of one tick: had, kept alive, written under and given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure_functions_db.core.signals import LeaseRenewFailed
from azure_functions_db.trigger.heartbeat import Heartbeat
from azure_functions_db.trigger.tenure import Tenure

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure_functions_db.core.types import Checkpoint
    from azure_functions_db.trigger.claim import Claim
    from azure_functions_db.trigger.interruption import Interruption
    from azure_functions_db.trigger.stages import Stages


class Lease:
    """A claim with a heartbeat."""

    def __init__(
        self,
        claim: Claim,
        *,
        ttl_seconds: float,
        clock: Callable[[], float],
        interruption: Interruption,
        stages: Stages,
    ) -> None:
        self.claim = claim
        self._ttl = ttl_seconds
        self._clock = clock
        self._interruption = interruption
        self._stages = stages
        self._asked = clock()
        self._heartbeat: Heartbeat | None = None
        self.tenure: Tenure
        self.owner = ""

    @property
    def is_held(self) -> bool:
        """Tell whether the lease was taken and is kept alive."""
        return self._heartbeat is not None

    def approach(self) -> None:
        """Find out whether the lease can be had; a plain store takes it right here."""
        self._asked = self._clock()
        self.claim.approach()
        if self.claim.lease_id is not None:
            self.hold()  # from here on, or a long fetch would outlive it

    def hold(self) -> None:
        """Take the lease, unless the claim has it already, and keep it alive from now on."""
        if self.claim.lease_id is None:
            self._asked = self._clock()
        self.claim.hold()
        self.owner = _owner_of(self.claim.lease_id)
        self._keep_alive()

    def commit(self, checkpoint: Checkpoint, *, last: bool) -> None:
        """Write the checkpoint under the lease, with no renewal beside it."""
        if self._heartbeat is None:
            raise AssertionError("hold() comes before commit()")
        with self._heartbeat.quiet():
            self._interruption.check()
            self.claim.commit(checkpoint, last=last)
            if last:
                # What has been given back must not be renewed.
                self._heartbeat.end()

    def stop(self) -> None:
        """Renew no more."""
        if self._heartbeat is not None:
            self._heartbeat.stop()

    def _keep_alive(self) -> None:
        self.tenure = Tenure(self._ttl, self._asked, self._clock)
        self._interruption.follow(self.tenure)
        self._heartbeat = Heartbeat(
            renew=self.claim.renew,
            tenure=self.tenure,
            ttl_seconds=self._ttl,
            clock=self._clock,
            tell=lambda error, lost: self._stages.say(LeaseRenewFailed, lease_owner=self.owner, error=error, lost=lost),
        )
        self._heartbeat.start()


def _owner_of(lease_id: str | None) -> str:
    # Lease ids are "owner:token"; a foreign store may have a form of its own.
    owner, _, token = (lease_id or "").rpartition(":")
    return owner if token.isdigit() else lease_id or ""
