"""Alerts, workbook and dashboard ask for what is really sent, in queries that their own parsers accept."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import promql_parser
import pytest

from tests.conftest import temporary_database
from tests.deploy.telemetry import Sent, everything_sent
from tests.docs.pages import CHECKOUT

MONITOR = CHECKOUT / "deploy" / "monitor"
# Of the tables of a workspace, the columns that Azure fills and our queries may use.
COMMON = "TimeGenerated: datetime, AppRoleName: string, Properties: dynamic"
SCHEMAS = {
    "AppTraces": f"({COMMON}, Message: string, SeverityLevel: int)",
    "AppExceptions": f"({COMMON}, ExceptionType: string, OuterMessage: string, SeverityLevel: int)",
    "AppMetrics": f"({COMMON}, Name: string, Sum: real, Min: real, Max: real, ItemCount: int)",
}
NAMED_BY = {"AppTraces": "Message", "AppExceptions": "Properties.event", "AppMetrics": "Name"}
WRONG = [
    "AppMetrics | where Name == 'azfdb_evnts_total'",
    "AppMetrics | where Name == 'azfdb_events_total' | project Properties.stage",
    "AppMetrics | where Name == 'azfdb_events_total' | project Propertys.source",
    "AppMetrics | where Name == 'azfdb_events_total' | project Properties['source']",
    "AppTraces | where Message in ('row_quarantined', 'row_lost')",
    "AppTraces | where Message == 'handler_failed'",  # what has an exception is in AppExceptions
    "AppMetrics | where Name ==",
]


def read(name: str) -> Any:
    return json.loads((MONITOR / name).read_text())


def kql_queries() -> dict[str, str]:
    alerts = {alert["name"]: "\n".join(alert["query"]) for alert in read("alerts.json")}
    items = {item["name"]: item["content"] for item in read("workbook.json")["items"]}
    return alerts | {f"workbook {name}": content["query"] for name, content in items.items() if "query" in content}


def promql_queries() -> dict[str, str]:
    panels = read("grafana.json")["panels"]
    return {f"{panel['title']} {each['refId']}": each["expr"] for panel in panels for each in panel["targets"]}


def told_by_kusto(*queries: str) -> list[dict[str, Any]]:
    question = json.dumps({"schemas": SCHEMAS, "queries": queries})
    command = ["node", "tests/deploy/kql.js"]
    done = subprocess.run(command, cwd=CHECKOUT, input=question, stdout=subprocess.PIPE, text=True, check=True)
    return list(json.loads(done.stdout))


def kql_mistakes(told: dict[str, Any], sent: Sent) -> list[str]:
    """Return what a query asks for that is never sent."""
    mistakes = [*told["errors"], *(f"{element}: write a path instead" for element in told["elements"])]
    for table in set(told["tables"]):
        names = {text for column, text in told["compared"] if column == NAMED_BY[table]} or set(sent.tables[table])
        mistakes += [f"{name} is never in {table}" for name in names - set(sent.tables[table])]
        fields = set[str]().union(*(sent.tables[table][name] for name in names & set(sent.tables[table])))
        mistakes += [f"Properties.{name} is never in {table}" for name in set(told["fields"]) - fields]
    return mistakes


def promql_mistakes(query: str, sent: Sent) -> list[str]:
    try:
        tree = promql_parser.parse(query.replace("$__rate_interval", "5m"))
    except ValueError as error:
        return [str(error)]
    names, labels = selected(tree)
    mistakes = [f"{name} is never sent" for name in names - set(sent.prometheus)]
    known = set.intersection(*(sent.prometheus[name] for name in names)) if names else set[str]()
    return mistakes + [f"{label} is no label of {names}" for label in labels - known]


def selected(tree: Any) -> tuple[set[str], set[str]]:
    """Return the metrics that an expression reads, and the labels it selects or groups by."""
    names, labels = set[str](), set[str]()
    for part in parts_of(tree):
        if isinstance(part, promql_parser.VectorSelector):
            names.add(str(part.name))
            labels |= {matcher.name for matcher in part.matchers.matchers}
        if isinstance(part, promql_parser.AggregateExpr) and part.modifier is not None:
            labels |= set(part.modifier.labels)
    return names, labels


def parts_of(tree: Any) -> list[Any]:
    below = [getattr(tree, name, None) for name in ("expr", "lhs", "rhs", "param", "vector_selector", "vs")]
    below += list(getattr(tree, "args", None) or [])
    return [tree, *(each for part in below if part is not None for each in parts_of(part))]


@pytest.fixture(scope="module")
def sent(postgres_url: str) -> Sent:
    with temporary_database(postgres_url, "DROP DATABASE {name} WITH (FORCE)") as database:
        return everything_sent(database)


@pytest.fixture(scope="module")
def told() -> dict[str, dict[str, Any]]:
    queries = kql_queries() | {query: query for query in WRONG}
    return dict(zip(queries, told_by_kusto(*queries.values()), strict=True))


@pytest.mark.parametrize("name", kql_queries())
def test_a_query_of_azure_monitor_asks_for_what_is_sent(name: str, told: dict[str, dict[str, Any]], sent: Sent) -> None:
    assert kql_mistakes(told[name], sent) == []


@pytest.mark.parametrize("name", promql_queries())
def test_a_query_of_grafana_asks_for_what_is_sent(name: str, sent: Sent) -> None:
    assert promql_mistakes(promql_queries()[name], sent) == []


def test_the_choice_of_pollers_in_grafana_is_a_label_that_is_sent(sent: Sent) -> None:
    [poller] = [each for each in read("grafana.json")["templating"]["list"] if each["name"] == "poller"]
    [(metric, label)] = re.findall(r"^label_values\((\w+), (\w+)\)$", poller["definition"])
    assert label in sent.prometheus[metric]


@pytest.mark.parametrize("query", WRONG)
def test_a_query_for_what_is_never_sent_is_noticed(query: str, told: dict[str, dict[str, Any]], sent: Sent) -> None:
    assert kql_mistakes(told[query], sent)


@pytest.mark.parametrize(
    "query",
    [
        "sum(azfdb_evnts_total)",
        "sum by (stage) (azfdb_events_total)",
        'azfdb_events_total{stage="fetch"}',
        "sum by (le) (rate(azfdb_events_total[5m]))",
        "sum(azfdb_events_total",
    ],
)
def test_an_expression_for_what_is_never_sent_is_noticed(query: str, sent: Sent) -> None:
    assert promql_mistakes(query, sent)


def test_every_metric_of_the_documentation_was_sent(sent: Sent) -> None:
    page = (CHECKOUT / "docs" / "operations" / "metrics-and-logs.md").read_text()
    told = {name for name in re.findall(r"`(azfdb_\w+)`", page) if not name.startswith("azfdb_stream_")}
    # Those of logs are seen where there are logs, in tests/integration/postgres_log.
    assert told == {name for name in sent.tables["AppMetrics"] if not name.startswith("azfdb_stream_")}


def test_alerts_have_what_a_rule_needs() -> None:
    wanted = {"name", "title", "severity", "every", "window", "meaning", "query"}
    alerts = read("alerts.json")
    assert all(set(alert) == wanted and alert["severity"] in range(5) for alert in alerts)
    assert all(re.search(r"\| summarize .* by (?:Name, )?poller\n", "\n".join(alert["query"])) for alert in alerts)


def test_panels_of_grafana_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in read("grafana.json")["panels"]]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
