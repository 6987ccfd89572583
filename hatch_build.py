"""What is done when the package is built: the hottest loops are compiled where that is wanted."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "azure_functions_db.core._speedups"
SOURCE = "src/azure_functions_db/core/_speedups.c"


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
            build_data["force_include"][str(built)] = str(Path(*NAME.split(".")[:-1], built.name))
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what has gone into the wheel."""
        if self._is_wanted:
            self._scratch.cleanup()

    def _compile(self, folder: Path, *, optional: bool) -> Path:
        """Return where the module is below a folder; who has no compiler is only warned where it is optional."""
        from setuptools import Distribution, Extension

        distribution = Distribution({"ext_modules": [Extension(NAME, [SOURCE], optional=optional)]})
        command: Any = distribution.get_command_obj("build_ext")
        with contextlib.chdir(self.root), TemporaryDirectory(prefix="azfdb-objects-") as objects:
            command.build_lib, command.build_temp = str(folder), objects
            command.ensure_finalized()
            command.run()
        return Path(command.get_ext_fullpath(NAME))
