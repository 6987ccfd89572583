"""The test's side of a function app in the real runtime: `FunctionApp` starts it and invokes its functions."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

_WORKER = Path(__file__).with_name("worker.py")
_RUNTIME = Path(sys.prefix) / "functions-runtime"


class AppRefusedError(Exception):
    """The runtime could not index or load the app; the text is its own."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """How one invocation ended."""

    ok: bool
    returned: Any
    outputs: dict[str, Any]
    error: str | None
    traceback: str | None

    @property
    def status(self) -> int:
        """The HTTP status of the response."""
        return int(self.returned["status_code"])

    @property
    def json(self) -> Any:
        """The JSON body of the response."""
        return json.loads(self.returned["body"])


@dataclass
class FunctionApp:
    """A function app that runs in a worker process of its own."""

    directory: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable

    def __enter__(self) -> Self:
        assert _RUNTIME.is_dir(), "the Functions runtime is not installed: run `make test`"
        path = os.pathsep.join(filter(None, [str(_RUNTIME), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, **self.settings}
        self._process = subprocess.Popen(
            [self.python, str(_WORKER), str(self.directory)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._numbers = itertools.count(1)
        self._waiting: dict[str, Future[Invocation]] = {}
        self._lock = threading.Lock()
        self.log: list[str] = []
        self._heard = threading.Condition()
        self._threads = [threading.Thread(target=self._keep_log, daemon=True)]
        self._threads[0].start()
        self.functions = self._introduction()
        self._threads.append(threading.Thread(target=self._take_replies, daemon=True))
        self._threads[1].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close()

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    def kill(self) -> None:
        """End the worker as a crash would."""
        self._process.kill()
        self._process.wait()

    def invoke(self, function: str, **inputs: tuple[str, Any]) -> Invocation:
        """Invoke a function and wait for its end."""
        return self.start(function, **inputs).result(timeout=60)

    def start(self, function: str, **inputs: tuple[str, Any]) -> Future[Invocation]:
        """Invoke a function without waiting."""
        number = f"invocation-{next(self._numbers)}"
        waiting: Future[Invocation] = Future()
        self._waiting[number] = waiting
        request = {"id": number, "function": function, "inputs": inputs}
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return waiting

    def _introduction(self) -> dict[str, list[dict[str, Any]]]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        told: dict[str, Any] = json.loads(line) if line else {"failure": "the worker ended without a word"}
        if "failure" in told:
            self._process.wait()
            self._close()
            raise AppRefusedError(told["failure"] + "\n".join(self.log))
        return {function["name"]: function["bindings"] for function in told["functions"]}

    def _take_replies(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            reply = json.loads(line)
            self._waiting.pop(reply.pop("id")).set_result(Invocation(**reply))
        for lost in self._waiting.values():
            lost.set_exception(ConnectionError("the worker is gone"))

    def says(self, words: str, within: float = 30.0) -> bool:
        """Tell whether a line of the log has these words; what was said before a reply may arrive behind it."""
        with self._heard:
            return self._heard.wait_for(lambda: any(words in line for line in self.log), within)

    def _keep_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._heard:
                self.log.append(line.rstrip())
                self._heard.notify_all()

    def _close(self) -> None:
        for thread in self._threads:
            thread.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


def http(
    method: str = "GET",
    *,
    query: Mapping[str, str] | None = None,
    route: Mapping[str, str] | None = None,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[str, Any]:
    """An HTTP request as the host passes it."""
    return "http", {
        "method": method,
        "url": "http://localhost/api",
        "headers": {"content-type": "application/json", **(headers or {})},
        "params": dict(route or {}),
        "query": dict(query or {}),
        "body": "" if body is None else json.dumps(body),
    }


@contextmanager
def served(app: FunctionApp) -> Iterator[str]:
    """Serve an app's functions over HTTP at an address, as `func start` does: its routes, and the way to start any."""

    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = _answered(app, self.command, self.path, self._body())
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - as the server calls them

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def log_message(self, *_: Any) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _answered(app: FunctionApp, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    url = urlsplit(path)
    if url.path.startswith("/admin/functions/"):
        return _started(app, url.path.rpartition("/")[2], json.loads(body)["input"])
    for name, bindings in app.functions.items():
        entry = next((binding for binding in bindings if binding["type"] == "httpTrigger"), None)
        route = entry and re.fullmatch(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", f"/api/{entry['route']}"), url.path)
        if entry and route and method in entry["methods"]:
            request = http(
                method, query=dict(parse_qsl(url.query)), route=route.groupdict(), body=json.loads(body or "null")
            )
            done = app.invoke(name, **{entry["name"]: request})
            return (done.status, done.returned["body"].encode()) if done.ok else (500, b"")
    return 404, b""


def _started(app: FunctionApp, name: str, message: str) -> tuple[int, bytes]:
    [entry] = [binding for binding in app.functions[name] if binding["type"] == "queueTrigger"]
    done = app.invoke(name, **{entry["name"]: queue_message(message)})
    return (202 if done.ok else 500), (done.traceback or "").encode()


def timer(*, past_due: bool = False) -> tuple[str, Any]:
    """A timer's tick as the host passes it."""
    return "json", {"Schedule": {"AdjustForDST": True}, "ScheduleStatus": None, "IsPastDue": past_due}


def queue_message(text: str) -> tuple[str, Any]:
    """A queue message as the host passes it."""
    return "string", text
