"""`azfdb dashboard`: every poller in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from azure_functions_db.cli.options import BACKUPS, BackupFolder, Target, targeted


@targeted
def dashboard(
    target: Target,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="A free one otherwise.")] = 0,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let pollers be paused, reset and replayed from the page.")
    ] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open it.")] = True,
    backups: BackupFolder = BACKUPS,
) -> None:
    """Serve the dashboard to this machine until Ctrl-C; the URL that is printed lets one browser in."""
    from azure_functions_db.dashboard.board import Board
    from azure_functions_db.dashboard.server import DashboardServer
    from azure_functions_db.dashboard.site import Site
    from azure_functions_db.operations.reset import operator

    pollers = target.pollers()
    permission = (lambda _request: operator()) if allow_changes else None
    site = Site(Board(lambda: pollers), base="", permission=permission, backups=backups)
    site.prepare()
    with DashboardServer(site, port) as server:
        print(server.url, flush=True)
        if browser:
            import webbrowser

            webbrowser.open(server.url)
        server.serve_forever()
