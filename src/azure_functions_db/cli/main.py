"""The `azfdb` command: one file per command, each imported when it is called."""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated

# What a command loads stays to its end: to look for garbage in it at Python's pace took a seventh of `status`.
_OBJECTS_PER_COLLECTION = 50_000
_INTERRUPTED = 130  # Exit.INTERRUPTED: what --help has no use for is imported when something goes wrong

try:
    import typer

    from azure_functions_db.cli.options import PLAIN, Commands
except ModuleNotFoundError:
    sys.exit('azfdb needs a few more packages: pip install "azure-functions-db[cli]"')
except KeyboardInterrupt:
    sys.exit(_INTERRUPTED)

app = typer.Typer(name="azfdb", cls=Commands, **PLAIN)


def _tell_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"azfdb {version('azure-functions-db')}")
        raise typer.Exit


@app.callback()
def commands(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and end.", callback=_tell_version, is_eager=True)
    ] = False,
) -> None:
    """Run, watch and repair database pollers of Azure Functions apps.

    Exit codes: 0 done, 1 failed or something is wrong, 2 wrong usage, 3 wrong configuration or unknown poller,
    4 unreachable, 5 lease held, 130 interrupted.
    """


def main() -> None:
    """Run the command line; an error of the library is a line on standard error and an exit code."""
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # what does not fit is told here, not when Python ends
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - what is not for people is raised again
        sys.exit(_told(error))


def _told(error: Exception) -> int:
    """Say what went wrong and return the exit code; what is nobody's mistake but ours is raised again."""
    from azure_functions_db.cli.drawing import complain
    from azure_functions_db.cli.options import exit_of
    from azure_functions_db.core.errors import DbError

    as_json = "--json" in sys.argv
    if isinstance(error, DbError):
        complain(error, as_json=as_json)
    elif isinstance(error, OSError):
        complain(": ".join(filter(None, (error.filename, error.strerror))), as_json=as_json)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left and cannot be written either
    else:
        raise error
    return exit_of(error)
