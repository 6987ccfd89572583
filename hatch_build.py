"""What is done when the package is built: its addresses are found out, and its hottest loops compiled."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
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


COMPILED = "azure_functions_db.core._speedups"
C_FILE = "src/azure_functions_db/core/_speedups.c"


class CompiledLoops(BuildHookInterface[Any]):
    """Compiles the extension: beside its source for an editable install, into the wheel with AZFDB_COMPILED set.

    Without it a wheel is the same for every platform and Python: an app is often built on another than it runs on.
    """

    @property
    def _is_wanted(self) -> bool:
        return self.target_name == "wheel" and bool(os.environ.get("AZFDB_COMPILED"))

    def dependencies(self) -> list[str]:
        """Return what a wheel is compiled with."""
        return ["setuptools"] if self._is_wanted else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the compiled module to what is built."""
        if version == "editable":
            self._compile(Path(self.root, "src"), optional=True)
        elif self._is_wanted:
            self._scratch = TemporaryDirectory(prefix="azfdb-wheel-")
            built = self._compile(Path(self._scratch.name), optional=False)
            build_data["force_include"][str(built)] = str(Path(*COMPILED.split(".")[:-1], built.name))
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what has gone into the wheel."""
        if self._is_wanted:
            self._scratch.cleanup()

    def _compile(self, folder: Path, *, optional: bool) -> Path:
        """Return where the module is below a folder; who has no compiler is only warned where it is optional."""
        from setuptools import Distribution, Extension  # type: ignore[import-untyped]  # it has no types

        distribution = Distribution({"ext_modules": [Extension(COMPILED, [C_FILE], optional=optional)]})
        command: Any = distribution.get_command_obj("build_ext")
        with contextlib.chdir(self.root), TemporaryDirectory(prefix="azfdb-objects-") as objects:
            command.build_lib, command.build_temp = str(folder), objects
            command.ensure_finalized()
            command.run()
        return Path(command.get_ext_fullpath(COMPILED))
