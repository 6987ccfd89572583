"""Draws the plots of the benchmarks page from `benchmarks/results.jsonl`, which `make bench` writes.

A bar is the ratio of our time to the time of what it is compared with; the line at 1 is that other's own time.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from tools.site import measured, slug

CHECKOUT = Path(__file__).resolve().parents[1]
ASSETS = CHECKOUT / "docs" / "assets"
WIDTH, LABEL, BAR, TOP = 860, 330, 22, 64
STYLE = (
    "text{fill:#1f2937}.quiet{fill:#6b7280}.ground{fill:#fff}.better{fill:#2b8a3e}.worse{fill:#e67700}"
    ".one{stroke:#1f2937}.value{stroke:#fff;stroke-width:4;paint-order:stroke}"
    "@media (prefers-color-scheme: dark){text{fill:#e4e7ee}.quiet{fill:#a2a9b8}.ground{fill:#1b1d24}"
    ".better{fill:#51cf66}.worse{fill:#ffa94d}.one{stroke:#c3c8d4}.value{stroke:#1b1d24}}"
)


def plot(name: str, measurements: list[dict[str, Any]]) -> str:
    """Return one benchmark as a bar for each case."""
    longest = max(1.2, *(line["ratio"] for line in measurements))
    scale = (WIDTH - LABEL - 90) / longest
    height = TOP + len(measurements) * (BAR + 10) + 14
    one = LABEL + scale
    fonts = 'font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif" font-size="13"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" {fonts}>',
        f"<title>{escape(name)}: our time as a multiple of the other's</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{height}" rx="10"/>',
        f'<text x="20" y="28" font-size="16" font-weight="600">{escape(name)}</text>',
        f'<text class="quiet" x="{one:.0f}" y="50" text-anchor="middle">1 = the other</text>',
        f'<line class="one" x1="{one:.0f}" y1="{TOP - 8}" x2="{one:.0f}" y2="{height - 10}" stroke-dasharray="4 3"/>',
        *(_bar(number, line, scale) for number, line in enumerate(measurements)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _bar(number: int, line: dict[str, Any], scale: float) -> str:
    y, ratio = TOP + number * (BAR + 10), line["ratio"]
    kind = "better" if ratio <= 1 else "worse"
    width = max(2, ratio * scale)
    return (
        f'<text x="{LABEL - 12}" y="{y + 15}" text-anchor="end">{escape(str(line.get("case", "")))}</text>'
        f'<rect class="{kind}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3"/>'
        f'<text class="value" x="{LABEL + width + 8:.1f}" y="{y + 15}">{ratio:.3g}</text>'
    )


def main() -> None:
    for name, measurements in measured().items():
        (ASSETS / f"benchmark-{slug(name)}.svg").write_text(plot(name, measurements))


if __name__ == "__main__":
    main()
