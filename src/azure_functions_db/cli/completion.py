"""What a shell completes: the pollers that the app in question defines."""

from __future__ import annotations

import contextlib
import io

import typer  # noqa: TC002 - Typer reads the annotation


def poller_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the pollers, whose names begin so, of the app that --app or AZFDB_APP names; nothing is contacted."""
    app = ctx.params.get("app")
    if app is None or ctx.params.get("store"):
        return []  # a key pressed in some folder must not run the code that lies there
    from azure_functions_db.cli.targets import Targets

    aside = io.StringIO()
    with contextlib.redirect_stdout(aside), contextlib.redirect_stderr(aside):
        try:
            names = Targets(app).names()
        except Exception:  # noqa: BLE001 - whatever an app may raise: there is nobody to tell
            return []
    return [name for name in names if name.startswith(incomplete)]
