"""How long `azfdb --help` takes from start to end, beside a process that only imports SQLAlchemy."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from common import as_installed, compare

HELP = [str(Path(sys.prefix) / "bin" / "azfdb"), "--help"]
IMPORT = [sys.executable, "-c", "import sqlalchemy"]

if __name__ == "__main__":
    run = partial(subprocess.run, check=True, capture_output=True, env=as_installed())
    compare("cli_help", "beside `import sqlalchemy`", partial(run, HELP), partial(run, IMPORT), target=0.5, rounds=15)
