"""The `azfdb` command: one file per command, each importing what it needs when it is called."""

from __future__ import annotations

import sys

try:
    import typer
except ModuleNotFoundError:
    sys.exit('azfdb needs a few more packages: pip install "azure-functions-db[cli]"')

from azure_functions_db.cli.demo import demo
from azure_functions_db.cli.exits import exit_of
from azure_functions_db.cli.output import complain
from azure_functions_db.cli.run import run
from azure_functions_db.core.errors import DbError

app = typer.Typer(
    name="azfdb",
    help="Run, watch and repair database pollers of Azure Functions apps.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich would double the time it takes
)
app.command()(demo)
app.command()(run)


@app.callback()
def commands() -> None:
    """Run, watch and repair database pollers of Azure Functions apps.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 wrong configuration, 4 unreachable, 5 lease held, 130 interrupted.
    """


def main() -> None:
    """Run the command line; an error of the library is a line on standard error and an exit code."""
    try:
        app()
    except DbError as error:
        complain(str(error), as_json="--json" in sys.argv, error_type=type(error).__name__)
        sys.exit(exit_of(error))
