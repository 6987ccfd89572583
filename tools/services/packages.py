"""Installs what is missing: Debian packages for databases and browser, npm's pinned packages for the emulators."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tools.services import mariadb, postgres
from tools.services.server import CHECKOUT, run_quietly

INSTALLED_LOCK = CHECKOUT / "node_modules" / ".installed-lock"

# Our install must not leave a system-wide server running, and two checkouts must not install at once.
APT_INSTALL = """
set -e
exec 9>/run/lock/azfdb-install
flock 9
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\\nexit 101\\n' > "$policy"
    chmod +x "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -qq -o DPkg::Lock::Timeout=600 update
apt-get -qq -o DPkg::Lock::Timeout=600 install --yes --no-install-recommends "$@"
"""


def install_missing() -> None:
    """Install the servers that this machine or this checkout lacks; a second call does nothing."""
    packages = missing_debian_packages()
    if packages:
        install_debian_packages(packages)
    if not emulators_are_current():
        install_emulators()


def missing_debian_packages() -> list[str]:
    found = {
        "postgresql": postgres.programs(),
        "mariadb-server": mariadb.program("mariadbd"),
        "chromium": shutil.which("chromium"),
        "pgbouncer": mariadb.program("pgbouncer"),
    }
    missing = [package for package, program in found.items() if program is None]
    # pyodbc brings no driver: tests reach the stand-in of SQL Server by FreeTDS.
    return missing if list(Path("/usr/lib").glob("*/odbc/libtdsodbc.so")) else [*missing, "tdsodbc", "unixodbc"]


def install_debian_packages(packages: list[str]) -> None:
    print(f"installing {' and '.join(packages)} …", flush=True)
    if shutil.which("apt-get") is None:
        raise RuntimeError(f"please install {' and '.join(packages)}: there is no apt-get here to do it")
    as_root = [] if os.geteuid() == 0 else ["sudo"]
    run_quietly([*as_root, "sh", "-c", APT_INSTALL, "install", *packages])


def emulators_are_current() -> bool:
    return INSTALLED_LOCK.is_file() and INSTALLED_LOCK.read_text() == wanted_lock()


def install_emulators() -> None:
    print("installing Azurite, a Cosmos DB server and two linters …", flush=True)
    subprocess.run(["npm", "ci", "--omit=dev", "--prefer-offline", "--silent"], cwd=CHECKOUT, check=True)
    INSTALLED_LOCK.write_text(wanted_lock())


def wanted_lock() -> str:
    return hashlib.sha256((CHECKOUT / "package-lock.json").read_bytes()).hexdigest()
