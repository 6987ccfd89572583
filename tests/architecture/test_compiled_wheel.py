"""A wheel has compiled loops where that was asked for, and serves every platform where it was not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

CHECKOUT = Path(__file__).resolve().parents[2]
AN_ID = """
from azure_functions_db.core.speedups import speedups
from azure_functions_db.core.types import SourceDescriptor
from azure_functions_db.trigger.events import RowChange
source = SourceDescriptor("orders", "sqlalchemy", "sha256:0")
print(speedups is not None, RowChange(None, "insert", source, 7, {"id": 1}).event_id)
"""


def build(folder: Path, **said: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AZFDB_")}
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    return subprocess.run(command, cwd=CHECKOUT, env=kept | said, capture_output=True, text=True, check=False)


def used(wheel: Path, folder: Path) -> list[str]:
    """Return what a process prints that has this wheel and no other."""
    with ZipFile(wheel) as opened:
        opened.extractall(folder)
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}){AN_ID}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout.split()


def test_ids_are_the_same_with_a_compiled_wheel_and_with_one_for_every_platform(tmp_path: Path) -> None:
    for name, said in {"plain": {}, "compiled": {"AZFDB_COMPILED": "1"}}.items():
        done = build(tmp_path / name, **said)
        assert done.returncode == 0, done.stderr
    [plain], [compiled] = (list((tmp_path / name).glob("*.whl")) for name in ("plain", "compiled"))
    assert plain.name.endswith("-py3-none-any.whl")
    assert f"-cp{sys.version_info.major}{sys.version_info.minor}-" in compiled.name
    [without, plain_id], [with_it, compiled_id] = used(plain, tmp_path / "a"), used(compiled, tmp_path / "b")
    assert (without, with_it) == ("False", "True")
    assert plain_id == compiled_id


def test_a_wheel_that_was_to_be_compiled_and_cannot_be_is_none(tmp_path: Path) -> None:
    done = build(tmp_path, AZFDB_COMPILED="1", CC="no-such-compiler")
    assert done.returncode
    assert "no-such-compiler" in done.stdout + done.stderr
    assert not list(tmp_path.glob("*.whl"))
