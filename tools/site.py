"""Writes what pages of the site say about the code, and `llms.txt`; `--check` says what is out of date.

A page marks the place with `<!-- made of: NAME -->` and `<!-- end -->`; NAME is a function below.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from azure_functions_db import __version__
from azure_functions_db.operations import doctor
from azure_functions_db.operations.run import parsed_schedule
from azure_functions_db.trigger.poll import PollOptions, all_options

CHECKOUT = Path(__file__).resolve().parents[1]
DOCS = CHECKOUT / "docs"
PLACE = re.compile(r"(<!-- made of: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
SCHEDULES = {
    "*/10 * * * * *": "every ten seconds",
    "*/30 * * * * *": "every thirty seconds",
    "0 * * * * *": "every minute",
    "0 */5 * * * *": "every five minutes",
    "0 0 * * * *": "every hour",
}
# A schedule, and for how long its ticks linger.
LINGERING = [("0 * * * * *", 55), ("*/30 * * * * *", 25), ("* * * * * *", None), ("*/10 * * * * *", None)]


def version() -> str:
    return f"This documentation is that of version **{__version__}**; [what has changed](changelog.md).\n"


def options() -> str:
    """Return the options of a trigger, from where they are written once."""
    hints = get_type_hints(PollOptions, include_extras=True)
    rows = [
        f"| `{name}` | `{_type_name(get_args(hints[name])[0])}` | `{option.default!r}` | {option.text} |"
        for name, option in all_options().items()
        if name in PollOptions.__annotations__
    ]
    return "\n".join(["| option | type | default | |", "|---|---|---|---|", *rows]) + "\n"


def _type_name(hint: Any) -> str:
    name = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", name).replace("|", "\\|")


def cost() -> str:
    """Return what schedules ask of the storage account in thirty days, by the counts that a test holds."""
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    rows = []
    for expression, words in SCHEDULES.items():
        ticks = doctor.ticks_per_month(parsed_schedule(expression), now)
        counts = (ticks, *doctor.requests(ticks))
        rows.append(f"| `{expression}`, {words} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    head = "| schedule | ticks | storage requests, nothing changed | storage requests, a batch at every tick |"
    return "\n".join([head, "|---|---|---|---|", *rows]) + "\n"


def capacity() -> str:
    """Return what the simulation of many partitions has counted."""
    rows = [json.loads(line) for line in (CHECKOUT / "benchmarks" / "capacity.json").read_text().splitlines()]
    head = (
        "| scene | half handled | 95 % | all | storage requests a second, at the peak | skipped ticks | lost races |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(
        f"| {row['scene']} | {row['half']} s | {row['most']} s | {row['all']} s | {row['requests']:,}, {row['peak']:,} "
        f"| {row['skipped']:.1%} | {row['lost_races']:.2%} |\n"
        for row in rows
    )


def linger() -> str:
    """Return what it takes to be told within a second, by lingering and by a schedule, in thirty days."""
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    head = "| schedule | `linger_seconds` | executions | storage requests, idle | GB-s, Consumption | GB-s, Flex |"
    rows = [_linger_row(*each, now=now) for each in LINGERING]
    return "\n".join([head, "|---|---|---|---|---|---|", *rows]) + "\n"


def _linger_row(expression: str, seconds: float | None, *, now: dt.datetime) -> str:
    ticks = doctor.ticks_per_month(parsed_schedule(expression), now)
    idle, _ = doctor.requests_of_tick(seconds, lease_ttl_seconds=120)
    consumption, flex = doctor.gigabyte_seconds(ticks, seconds)
    counts = " | ".join(f"{count:,.0f}" for count in (ticks, ticks * idle, consumption, flex))
    return f"| `{expression}` | {seconds or '-'} | {counts} |"


def examples() -> str:
    """Return the example apps with the first sentence of each."""
    rows = []
    for readme in sorted((CHECKOUT / "examples").glob("*/README.md")):
        heading, _, text = readme.read_text().partition("\n\n")
        rows.append(f"| `{readme.parent.name}` | **{heading.removeprefix('# ')}**: {_first_sentence(text)} |")
    return "\n".join(["| folder of `examples` | shows |", "|---|---|", *rows]) + "\n"


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n", 1)[0].split())
    if text.startswith("    "):  # it begins with commands
        return _first_sentence(text.partition("\n\n")[2])
    return re.split(r"(?<=[.]) (?=[A-Z`])", re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", paragraph))[0]


def alerts() -> str:
    """Return the alert rules as people read them."""
    parts = []
    for alert in json.loads((CHECKOUT / "deploy" / "monitor" / "alerts.json").read_text()):
        query = "\n".join(alert["query"])
        parts.append(f"### {alert['title']}\n\n{alert['meaning']}\n\n```kusto\n{query}\n```\n")
    return "\n".join(parts)


def glossary() -> str:
    """Return the words of the project, from the place where contributors keep them."""
    contributing = (CHECKOUT / "CONTRIBUTING.md").read_text()
    return contributing.partition("## Glossary")[2].partition("\n\n")[2].partition("\n\n")[2].strip() + "\n"


def benchmarks() -> str:
    """Return the plots that were drawn of the measurements, with the day of the measurement."""
    plots = measured()
    days = sorted({line["measured"] for lines in plots.values() for line in lines})
    pictures = [f"![{name}: our time beside the other's](../assets/benchmark-{slug(name)}.svg)\n" for name in plots]
    return "\n".join([f"Measured on {' and '.join(days)}.\n", *pictures])


def measured() -> dict[str, list[dict[str, Any]]]:
    """Return the ratios that were measured, by what was done; what stands behind its name tells beside whom."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in (CHECKOUT / "benchmarks" / "results.jsonl").read_text().splitlines():
        measurement = json.loads(line)
        name, beside, other = measurement["benchmark"].partition(", beside ")
        if measurement.get("ratio") is not None:
            found.setdefault(name, []).append({**measurement, "case": measurement["case"] + beside + other})
    return found


def slug(name: str) -> str:
    return re.sub(r"\W+", "-", name).strip("-").replace("_", "-")


MAKERS = {
    made.__name__: made for made in (version, options, cost, capacity, linger, examples, alerts, glossary, benchmarks)
}


def filled(page: str) -> str:
    """Return a page with all its places filled anew."""
    return PLACE.sub(lambda place: f"{place[1]}\n{MAKERS[place[2]]()}\n{place[3]}", page)


def llms() -> str:
    """Return the table of contents for readers that are programs: each page with its first sentence."""
    config = yaml.safe_load((CHECKOUT / "mkdocs.yml").read_text())
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    lines += [f"Version {__version__}. Each page's source is Markdown, at its path under docs/."]
    for section in config["nav"]:
        [(title, inside)] = section.items()
        lines += ["", f"## {title}", ""]
        for page in [{title: inside}] if isinstance(inside, str) else inside:
            [(name, path)] = page.items()
            lines.append(f"- [{name}]({path}): {_opening(DOCS / path)}")
    return "\n".join(lines) + "\n"


def _opening(page: Path) -> str:
    """Return the first sentence of a page that is one."""
    paragraphs = [part.strip() for part in page.read_text().split("\n\n")]
    told = [part for part in paragraphs if re.match(r"[A-Z`*\[]", part) and not part.startswith("```")]
    return _first_sentence(told[0]) if told else page.stem


def wanted() -> dict[Path, str]:
    """Return every page with such places, with what it should hold."""
    pages = {page: page.read_text() for page in sorted(DOCS.rglob("*.md"))}
    return {page: filled(text) for page, text in pages.items() if PLACE.search(text)}


def stale() -> list[Path]:
    """Return the pages that do not say what they should."""
    return [path for path, text in wanted().items() if path.read_text() != text]


def main() -> int:
    if "--check" in sys.argv:
        for path in stale():
            print(f"{path.relative_to(CHECKOUT)} is out of date: run `make docs`")
        return 1 if stale() else 0
    for path, text in wanted().items():
        path.write_text(text)
    (DOCS / "llms.txt").write_text(llms())
    return 0


if __name__ == "__main__":
    sys.exit(main())
