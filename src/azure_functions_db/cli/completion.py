"""What a shell completes: the pollers that the app in question defines."""

from __future__ import annotations

import contextlib
import io

import typer  # noqa: TC002 - Typer reads the annotation


def poller_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the app's pollers whose names begin so; nothing is contacted, and no app means no names."""
    if ctx.params.get("store"):
        return []
    from azure_functions_db.cli.targets import Targets

    aside = io.StringIO()
    with contextlib.redirect_stdout(aside), contextlib.redirect_stderr(aside):
        try:
            names = Targets(ctx.params.get("app")).names()
        except Exception:  # noqa: BLE001 - whatever an app may raise: there is nobody to tell
            return []
    return [name for name in names if name.startswith(incomplete)]
