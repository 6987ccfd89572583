"""The pytest plugin: the fixture ``failure_drills``, and a summary of what the drills have shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure_functions_db.testing.drills import Report

_PROPERTY = "azfdb_failure_drills"


@pytest.fixture
def failure_drills(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """Run the failure drills on a handler; the test fails when it does not survive one of them.

    Takes what `azure_functions_db.testing.drills.run_drills` takes, and returns its report.
    """

    def run(handler: Callable[..., Any], **options: Any) -> Report:
        from azure_functions_db.testing.drills import run_drills

        report = run_drills(handler, **options)
        # A property travels with the test's report, from a worker of pytest-xdist too.
        request.node.user_properties.append((_PROPERTY, _summary(report)))
        if report.failures:
            pytest.fail(str(report), pytrace=False)
        return report

    return run


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in one line for each handler what it survives."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    lines = [line for report in reports for name, line in report.user_properties if name == _PROPERTY]
    if lines:
        terminalreporter.section("failure drills")
        for line in sorted(lines):
            terminalreporter.write_line(line)


def _summary(report: Report) -> str:
    verdicts: dict[str, list[str]] = {}
    for finding in report.findings:
        verdicts.setdefault(finding.verdict.value, []).append(finding.drill.value)
    return f"{report.handler}: " + "; ".join(f"{verdict} {', '.join(drills)}" for verdict, drills in verdicts.items())
