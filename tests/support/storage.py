"""Storage clients whose requests fail in every way in which requests fail."""

from __future__ import annotations

from typing import Any

import requests
from azure.core.exceptions import ServiceRequestTimeoutError, ServiceResponseError
from azure.core.pipeline.transport import RequestsTransport, RequestsTransportResponse

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
        return _answer(request, status, code)


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


def _answer(request: Any, status: int, code: str) -> RequestsTransportResponse:
    response = requests.Response()
    response.status_code, response.raw, response._content = status, None, b""
    response.headers["x-ms-error-code"] = code
    return RequestsTransportResponse(request, response)
