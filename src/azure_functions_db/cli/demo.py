"""`azfdb demo`: the change trigger at work on this machine, with a crash and a poison row."""

from __future__ import annotations

import typer


def demo() -> None:
    """Change rows in SQLite, poll them, crash in the middle, resume: nothing is lost.

    Exit code 0 when every row was delivered and the poison row is in quarantine, else 1.
    """
    import tempfile
    from pathlib import Path

    from azure_functions_db.cli.shop import Demo

    with tempfile.TemporaryDirectory(prefix="azfdb-demo-") as folder:
        report = Demo(Path(folder)).run()
    print(f"\n{report}")
    raise typer.Exit(1 if report.lost or report.quarantined != 1 else 0)
