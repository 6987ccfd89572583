"""`azfdb dashboard`: for one browser on this machine."""

from __future__ import annotations

import http.client
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from azure_functions_db import FileStateStore

if TYPE_CHECKING:
    from collections.abc import Iterator

AZFDB = Path(sys.executable).with_name("azfdb")


@contextmanager
def running(*options: str) -> Iterator[str]:
    process = subprocess.Popen(
        [AZFDB, "dashboard", "--no-browser", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.communicate()


def ask(url: str, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


@pytest.fixture
def store(tmp_path: Path) -> str:
    FileStateStore(tmp_path / "state").acquire_lease("orders", 30)
    return f"file://{tmp_path / 'state'}"


def test_the_url_lets_one_browser_in_and_nobody_else(store: str) -> None:
    with running("--store", store) as url:
        token = urlsplit(url).query
        assert ask(url, "/").status == 403
        assert ask(url, "/?token=guess").status == 403
        first = ask(url, f"/?{token}")
        cookie = (first.getheader("Set-Cookie") or "").partition(";")[0]
        assert (first.status, ask(url, f"/?{token}").status) == (303, 403)
        assert ask(url, "/", Cookie=cookie).status == 200
        assert ask(url, "/", Cookie=cookie, Host="evil.example").status == 403
        assert ask(url, "/", Cookie="azfdb=guess").status == 403


def test_a_store_that_is_not_there_is_told(tmp_path: Path) -> None:
    done = subprocess.run(
        [AZFDB, "dashboard", "--no-browser", "--app", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert "There is no function app at" in done.stderr
