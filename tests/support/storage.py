"""Storage clients whose requests fail in every way in which requests fail."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
from azure.core.exceptions import ServiceRequestTimeoutError, ServiceResponseError
from azure.core.pipeline.transport import RequestsTransport, RequestsTransportResponse

from azure_functions_db.core.errors import DbError
from azure_functions_db.trigger.poll import PollTrigger
from tests.unit.trigger.poller import Collected, ListSource, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure_functions_db.core.ports import StateStore
    from azure_functions_db.trigger.events import RowChange

FAULTS = ["error", "timeout", "reply lost", "refused"]


class FaultyTransport(RequestsTransport):  # type: ignore[misc]
    """Sends requests, except for those that `next_fault` has something else in mind for."""

    def next_fault(self) -> str | None:
        raise NotImplementedError

    def send(self, request: Any, **options: Any) -> Any:
        match self.next_fault():
            case None:
                return super().send(request, **options)
            case "timeout":
                raise ServiceRequestTimeoutError("timed out")
            case "reply lost":
                super().send(request, **options)
                raise ServiceResponseError("connection reset")
            case fault:
                return self.answer(request, fault)

    def answer(self, request: Any, fault: str) -> Any:
        """Return what the service answers to a request that it has not served."""
        status, code = {"error": (500, "InternalError"), "refused": (412, "ConditionNotMet")}[fault]
        return answer(request, status, code)


class Refusing(RequestsTransport):  # type: ignore[misc]
    """Has an answer of its own to some requests, and sends the others."""

    def __init__(self, is_refused: Callable[[Any], bool], status: int, code: str = "") -> None:
        super().__init__()
        self._is_refused, self._status, self._code = is_refused, status, code
        self.requests: list[str] = []

    def send(self, request: Any, **options: Any) -> Any:
        self.requests.append(f"{request.method} {urlsplit(request.url).path.rpartition('/')[2]}")
        if self._is_refused(request):
            return answer(request, self._status, self._code)
        return super().send(request, **options)


class PlannedFaults(FaultyTransport):
    """Counts requests, and fails those whose turn it is."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0
        self.fault = ""
        self.failing = range(0)

    def plan(self, fault: str, failing: range) -> None:
        self.requests, self.fault, self.failing = 0, fault, failing

    def next_fault(self) -> str | None:
        self.requests += 1
        return self.fault if self.requests in self.failing else None


class Scene:
    """One poller that works through a faulty client, and a competitor with a good one."""

    def __init__(self, transport: PlannedFaults, mine: StateStore, theirs: StateStore, rows: int = 25) -> None:
        self.name = uuid.uuid4().hex
        self.transport = transport
        self.source = ListSource(rows)
        self.collected, self.intruder = Collected(), Collected()
        self.mine, self.theirs = self._poller(mine), self._poller(theirs)

    def _poller(self, store: StateStore) -> PollTrigger:
        return PollTrigger(
            name=self.name,
            source=self.source,
            checkpoint_store=store,
            batch_size=10,
            max_batches_per_tick=2,
            lease_ttl_seconds=60,
        )

    def handler(self, events: list[RowChange]) -> None:
        assert run(self.theirs, self.intruder) == 0, "two holders at once"
        self.collected(events)

    def tick(self) -> int:
        return run(self.mine, self.handler)

    def check_after(self, fault: str, failing: range) -> None:
        """Let requests of a tick fail; no row may be lost by that, and no later tick held up."""
        self.transport.plan(fault, failing)
        with suppress(DbError):
            self.tick()
        self.transport.plan("", range(0))
        for _ in range(3):
            self.tick()
        assert sorted(set(self.collected.ids)) == list(range(25)), f"requests {failing}"
        assert self.intruder.batches == []
        assert run(self.theirs, self.intruder) == 0, "the competitor finds nothing left and nothing held"


def answer(request: Any, status: int, code: str) -> RequestsTransportResponse:
    """Return what a storage service answers that has not done what it was asked for."""
    response = requests.Response()
    response.status_code, response.raw, response._content = status, None, b""
    response.headers["x-ms-error-code"] = code
    return RequestsTransportResponse(request, response)
