"""A function app in the real Functions Python runtime, driven over standard input and output.

Run as a script in a process of its own: ``python worker.py APP_DIRECTORY``. It indexes the app as
the worker does, says what it found in one JSON line, and then answers one JSON line for each
invocation it is asked for; invocations overlap as they do in Azure.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import traceback
from types import SimpleNamespace
from typing import Any

import azure_functions_runtime as runtime  # type: ignore[import-not-found] # kept apart, see the Makefile
from azure_functions_runtime.bindings.datumdef import Datum  # type: ignore[import-not-found]
from azure_functions_runtime.native_invocation import invocation_request_native  # type: ignore[import-not-found]


class Protos:
    """Plain stand-ins for the protobuf classes that the runtime fills."""

    class StatusResult(SimpleNamespace):
        Success = "success"
        Failure = "failure"

    class BindingInfo(SimpleNamespace):
        out = 1
        inout = 2
        undefined = 0

    WorkerInitResponse = WorkerMetadata = RpcException = SimpleNamespace
    FunctionMetadataResponse = RpcFunctionMetadata = RpcRetryOptions = FunctionLoadResponse = SimpleNamespace


async def index(app_directory: str) -> list[Any]:
    """Import the app and load every function; whatever the runtime refuses is raised."""
    runtime.start_threadpool_executor()
    init = SimpleNamespace(capabilities={}, function_app_directory=app_directory)
    started = await runtime.worker_init_request(_message(worker_init_request=init))
    _check(started.result)
    listed = await runtime.functions_metadata_request(_message())
    _check(listed.result)
    for function in listed.function_metadata_results or []:
        request = SimpleNamespace(function_id=function.function_id)
        loaded = await runtime.function_load_request(_message(function_load_request=request))
        _check(loaded.result)
    return listed.function_metadata_results or []


async def invoke(function_id: str, request: dict[str, Any]) -> dict[str, Any]:
    """Invoke a function and tell how it went."""
    inputs = [(name, _datum(kind, value)) for name, (kind, value) in request["inputs"].items()]
    ok, returned, outputs, error, trace = await invocation_request_native(request["id"], function_id, inputs, {})
    return {
        "ok": ok,
        "returned": _plain(returned),
        "outputs": {name: _plain(value) for name, value in outputs},
        "error": error,
        "traceback": trace,
    }


def _message(**request: Any) -> Any:
    return SimpleNamespace(request=SimpleNamespace(**request), properties={"host": "127.0.0.1", "protos": Protos})


def _check(result: Any) -> None:
    if result.status != Protos.StatusResult.Success:
        raise RuntimeError(f"{result.exception.message}\n{result.exception.stack_trace}")


def _datum(kind: str, value: Any) -> Datum:
    if kind == "http":
        texts = {
            part: {name: Datum(text, "string") for name, text in value[part].items()}
            for part in ("headers", "params", "query")
        }
        plain = {"method": Datum(value["method"], "string"), "url": Datum(value["url"], "string")}
        return Datum({**texts, **plain, "body": Datum(value["body"].encode(), "bytes")}, "http")
    return Datum(json.dumps(value), "json") if kind == "json" else Datum(value, kind)


def _plain(value: Any) -> Any:
    if hasattr(value, "value"):  # a datum of the runtime or of the SDK
        return _plain(value.value)
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return value.decode() if isinstance(value, bytes) else value if _is_plain(value) else str(value)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool | list)


async def serve(app_directory: str, requests: asyncio.Queue[str | None]) -> None:
    """Index the app, then answer requests until there are no more."""
    functions = await index(app_directory)
    _say(functions=[{"name": f.name, "bindings": [json.loads(raw) for raw in f.raw_bindings]} for f in functions])
    ids = {function.name: function.function_id for function in functions}
    async with asyncio.TaskGroup() as running:
        while (line := await requests.get()) is not None:
            running.create_task(_answer(ids, json.loads(line)))


async def _answer(ids: dict[str, str], request: dict[str, Any]) -> None:
    _say(id=request["id"], **await invoke(ids[request["function"]], request))


def _say(**what: Any) -> None:
    _replies.write(json.dumps(what) + "\n")
    _replies.flush()


def _listen(loop: asyncio.AbstractEventLoop, requests: asyncio.Queue[str | None]) -> None:
    for line in sys.stdin:
        loop.call_soon_threadsafe(requests.put_nowait, line)
    loop.call_soon_threadsafe(requests.put_nowait, None)


async def main(app_directory: str) -> None:
    """Serve one app until standard input ends."""
    requests: asyncio.Queue[str | None] = asyncio.Queue()
    threading.Thread(target=_listen, args=(asyncio.get_running_loop(), requests), daemon=True).start()
    try:
        await serve(app_directory, requests)
    except Exception:  # noqa: BLE001 - told to the test that started us
        _say(failure=traceback.format_exc())


if __name__ == "__main__":
    # What the app prints goes to standard error: standard output is for replies.
    _replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, sys.argv[1])
    os.chdir(sys.argv[1])
    asyncio.run(main(sys.argv[1]))
