"""Renews a lease in the background while its holder works."""

from __future__ import annotations

import contextvars
import threading
from typing import TYPE_CHECKING

from azure_functions_db.core.errors import LeaseConflictError, LostLeaseError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from azure_functions_db.trigger.tenure import Tenure


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
        tenure: Tenure,
        ttl_seconds: float,
        clock: Callable[[], float],
        tell: Callable[[Exception, bool], None],
    ) -> None:
        self._renew = renew
        self._tenure = tenure
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
            if self._stopped.is_set() or self._tenure.is_set():
                return
            began = self._clock()
            try:
                self._renew()
            except (LostLeaseError, LeaseConflictError) as lost:
                self._lose(lost)
            except Exception as error:  # noqa: BLE001 - whatever a store raises, the clock decides
                self._fail(error)
            else:
                self._failing = False
                self._tenure.extend(began)

    def _run(self) -> None:
        while not self._stopped.wait(self._pause()) and not self._tenure.is_set():
            self.beat()

    def _pause(self) -> float:
        wanted = self._retry_interval if self._failing else self._interval - self._tenure.age()
        return max(0.0, min(wanted, self._tenure.remaining()))

    def _fail(self, error: Exception) -> None:
        self._failing = True
        self._tell(error, self._tenure.is_set())

    def _lose(self, error: Exception) -> None:
        self._tenure.lose()
        self._tell(error, True)
