"""The list of commands, which is written down, and the commands themselves."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from azure_functions_db.cli.main import app
from azure_functions_db.cli.options import SUMMARIES

RUNNER = CliRunner()


def test_the_help_lists_every_command() -> None:
    shown = RUNNER.invoke(app, ["--help"], prog_name="azfdb").output
    for name, summary in SUMMARIES.items():
        assert f"{name} " in shown
        assert summary in shown


@pytest.mark.parametrize("name", SUMMARIES)
def test_every_listed_command_is_there(name: str) -> None:
    shown = RUNNER.invoke(app, [name, "--help"], prog_name="azfdb")
    assert shown.exit_code == 0
    assert shown.output.startswith(f"Usage: azfdb {name} ")


@pytest.mark.parametrize(
    ("typed", "told"), [("satus", "No such command 'satus'; did you mean 'status'?"), ("nosuch", "command 'nosuch'\n")]
)
def test_an_unknown_command_is_wrong_usage(typed: str, told: str) -> None:
    refused = RUNNER.invoke(app, [typed])
    assert (refused.exit_code, told in refused.output) == (2, True)
