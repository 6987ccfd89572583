"""The `azfdb` command: one file per command, each importing what it needs when it is called."""

from __future__ import annotations

import sys

try:
    import typer
except ModuleNotFoundError:
    sys.exit('azfdb needs a few more packages: pip install "azure-functions-db[cli]"')

from azure_functions_db.cli.backfill import backfill
from azure_functions_db.cli.clone import clone
from azure_functions_db.cli.demo import demo
from azure_functions_db.cli.doctor import doctor
from azure_functions_db.cli.exits import Exit, exit_of
from azure_functions_db.cli.export import export
from azure_functions_db.cli.inspect import inspect
from azure_functions_db.cli.lease import lease
from azure_functions_db.cli.output import complain
from azure_functions_db.cli.quarantine import quarantine
from azure_functions_db.cli.reset import reset
from azure_functions_db.cli.run import run
from azure_functions_db.cli.status import status
from azure_functions_db.cli.tail import tail
from azure_functions_db.cli.verify import verify
from azure_functions_db.core.errors import DbError

app = typer.Typer(
    name="azfdb",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich would double the time it takes
)
for command in (demo, run, status, inspect, doctor, tail, reset, clone, export, backfill, verify):
    app.command()(command)
app.add_typer(lease)
app.add_typer(quarantine)


@app.callback()
def commands() -> None:
    """Run, watch and repair database pollers of Azure Functions apps.

    Exit codes: 0 done, 1 failed or something is wrong, 2 wrong usage, 3 wrong configuration or unknown poller,
    4 unreachable, 5 lease held, 130 interrupted.
    """


def main() -> None:
    """Run the command line; an error of the library is a line on standard error and an exit code."""
    try:
        app()
    except DbError as error:
        complain(str(error), as_json="--json" in sys.argv, error_type=type(error).__name__)
        sys.exit(exit_of(error))
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
