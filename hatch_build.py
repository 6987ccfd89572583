"""What hatchling asks when the package is built."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# How a repository is cloned: https://host/path, ssh://host/path or host:path. Who logs in, and with what, stands before
# the @. An alias of ~/.ssh/config, a drive, an IP address and a host for ssh only have no pages to show.
REMOTE = re.compile(
    r"(?:(?P<scheme>https|ssh)://)?(?:[^/]*@)?"
    r"(?P<host>(?![\w-]*ssh\.)[\w-]+(?:\.[\w-]+)*\.[a-z][\w-]*)(?P<port>:\d+)?"
    r"(?(scheme)/|:)(?P<path>[\w.~%-]+(?:/[\w.~%-]+?)+?)(?:\.git)?/?"
)


class AddressesHook(MetadataHookInterface):
    """Gives ``[project.urls]`` by where the code is published; none where nobody says so."""

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["urls"] = addresses_of(repository_of(Path(self.root)))


def repository_of(root: Path) -> str | None:
    """Return the address of the repository's page."""
    if (root / "PKG-INFO").exists():  # an unpacked sdist keeps the addresses that it was given
        return None
    if given := os.environ.get("AZFDB_REPOSITORY_URL"):
        if page := page_of(given):
            return page
        raise ValueError("AZFDB_REPOSITORY_URL must be a repository's address, such as https://github.com/OWNER/NAME")
    return page_of(_workflow(root)) or page_of(_origin(root))


def page_of(remote: str) -> str | None:
    """Return the address of a repository for people, by one from which it is cloned."""
    if (found := REMOTE.fullmatch(remote.strip())) is None:
        return None
    port = found["port"] if found["scheme"] == "https" else None
    return f"https://{found['host']}{port or ''}/{found['path']}"


def addresses_of(repository: str | None) -> dict[str, str]:
    """Return the addresses by their labels, in the order in which they are shown."""
    if repository is None:
        return {}
    files = f"{repository}/-" if "gitlab" in repository.split("/")[2] else repository
    ours = re.fullmatch(r"https://github\.com/([^/]+)/([^/]+)", repository)
    return {
        "Homepage": repository,
        "Documentation": f"https://{ours[1].lower()}.github.io/{ours[2]}/" if ours else f"{files}/tree/HEAD/docs",
        "Source": repository,
        "Changelog": f"{files}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{files}/issues",
    }


def _workflow(root: Path) -> str:
    """Return the repository whose workflow runs, unless it only installs this package."""
    said = os.environ
    if "GITHUB_REPOSITORY" not in said or Path(said.get("GITHUB_WORKSPACE", root)).resolve() != root.resolve():
        return ""
    return f"{said.get('GITHUB_SERVER_URL', 'https://github.com')}/{said['GITHUB_REPOSITORY']}"


def _origin(root: Path) -> str:
    if not (root / ".git").exists():  # git would answer for a repository around this folder
        return ""
    asked = ["git", "-C", str(root), "config", "--get", "remote.origin.url"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    except OSError:  # no git on this machine
        return ""
