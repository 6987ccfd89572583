"""Microsoft's own parser of T-SQL, asked over the language server protocol; `make venv` installs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HOME = Path(sys.prefix) / "tsql-parser"
PROGRAM = HOME / "mssqlcli" / "mssqltoolsservice" / "bin" / "MicrosoftSqlToolsServiceLayer"
SETTINGS = {
    "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1",  # there is no ICU of its age
    "COMPlus_EnableDiagnostics": "0",
    "LD_LIBRARY_PATH": str(HOME / "psycopg2_binary.libs"),
}
BETWEEN = "\nGO\n"


def complaints(statements: Sequence[str], log: Path) -> dict[int, list[str]]:
    """Return what the parser says about statements, by their place; all of them are one script of many batches."""
    process = subprocess.Popen(
        [PROGRAM, "--log-file", str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | SETTINGS
    )
    try:
        diagnostics = _diagnostics(process, BETWEEN.join(statements))
    finally:
        process.kill()
        process.communicate()
    found: dict[int, list[str]] = {}
    for diagnostic in diagnostics:
        place = _place(statements, diagnostic["range"]["start"]["line"])
        found.setdefault(place, []).append(diagnostic["message"])
    return found


def _diagnostics(process: subprocess.Popen[bytes], script: str) -> list[dict[str, Any]]:
    document = {"uri": "file:///script.sql", "languageId": "sql", "version": 1, "text": script}
    _send(process, "textDocument/didOpen", {"textDocument": document})
    nothing = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 0}}
    change = {"range": nothing, "rangeLength": 0, "text": ""}
    changed = {"uri": document["uri"], "version": 2}
    _send(process, "textDocument/didChange", {"textDocument": changed, "contentChanges": [change]})
    while True:
        message = _received(process)
        if message.get("method") == "textDocument/publishDiagnostics":
            return list(message["params"]["diagnostics"])


def _send(process: subprocess.Popen[bytes], method: str, parameters: dict[str, Any]) -> None:
    assert process.stdin is not None
    body = json.dumps({"jsonrpc": "2.0", "method": method, "params": parameters}).encode()
    process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    process.stdin.flush()


def _received(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    length = 0
    while line := process.stdout.readline().strip():
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    if not length:
        raise RuntimeError("the parser has ended by itself")
    message: dict[str, Any] = json.loads(process.stdout.read(length))
    return message


def _place(statements: Sequence[str], line: int) -> int:
    """Return the place of the statement that has a line of the script."""
    first = 0
    for place, statement in enumerate(statements):
        first += statement.count("\n") + BETWEEN.count("\n")
        if line < first:
            return place
    return len(statements) - 1
