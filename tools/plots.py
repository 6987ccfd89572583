"""Draws the plots of the benchmarks page from `benchmarks/results.jsonl`, which `make bench` writes.

A bar is the ratio of our time to the time of what it is compared with; the line at 1 is that other's own time.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any

from tools.site import measured, slug

CHECKOUT = Path(__file__).resolve().parents[1]
ASSETS = CHECKOUT / "docs" / "assets"
WIDTH, LABEL, BAR, TOP = 860, 330, 22, 64
LINE, LETTERS = 15, 40  # how far apart the lines of a label are, and how many letters of a wide font fit into one
STYLE = (
    "text{fill:#1f2937}.quiet{fill:#6b7280}.ground{fill:#fff}.better{fill:#2b8a3e}.worse{fill:#e67700}"
    ".line{stroke:#1971c2;fill:none;stroke-width:2}.axis{stroke:#9ca3af;fill:none}.one{stroke:#1f2937}.value{stroke:#fff;stroke-width:4;paint-order:stroke}"
    "@media (prefers-color-scheme: dark){text{fill:#e4e7ee}.quiet{fill:#a2a9b8}.ground{fill:#1b1d24}"
    ".line{stroke:#74c0fc}.axis{stroke:#4b5563}.better{fill:#51cf66}.worse{fill:#ffa94d}.one{stroke:#c3c8d4}.value{stroke:#1b1d24}}"
)


def plot(name: str, measurements: list[dict[str, Any]]) -> str:
    """Return one benchmark as a bar for each case."""
    longest = max(1.2, *(line["ratio"] for line in measurements))
    scale = (WIDTH - LABEL - 90) / longest
    height = TOP + len(measurements) * (BAR + 10) + 14
    one = LABEL + scale
    parts = [
        *_ground(WIDTH, height, name, f"{name}: our time as a multiple of the other's"),
        f'<text class="quiet" x="{one:.0f}" y="50" text-anchor="middle">1 = the other</text>',
        f'<line class="one" x1="{one:.0f}" y1="{TOP - 8}" x2="{one:.0f}" y2="{height - 10}" stroke-dasharray="4 3"/>',
        *(_bar(number, line, scale) for number, line in enumerate(measurements)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def curve(title: str, points: list[tuple[float, float]], across: str, up: str) -> str:
    """Return a line through points, with what the axes count."""
    width, height, left, top = 640, 300, 64, 48
    widest, highest = max(x for x, _ in points) or 1, max(y for _, y in points) or 1
    scaled = " ".join(
        f"{left + x / widest * (width - left - 24):.1f},{height - 44 - y / highest * (height - top - 48):.1f}"
        for x, y in points
    )
    end = f'x="{width - 24}" y="{height - 22}" text-anchor="end"'
    parts = [
        *_ground(width, height, title, f"{title}: {up}"),
        f'<path class="axis" d="M{left} {top}V{height - 44}H{width - 24}"/>',
        f'<text class="quiet" x="{left - 8}" y="{top + 8}" text-anchor="end">{highest:,.0f}</text>',
        f'<text class="quiet" x="{left - 8}" y="{height - 44}" text-anchor="end">0</text>',
        f'<text class="quiet" x="{left + 8}" y="{top + 8}">{escape(up)}</text>',
        f'<text class="quiet" {end}>{widest:,.0f} {escape(across)}</text>',
        f'<polyline class="line" points="{scaled}"/>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _ground(width: int, height: int, heading: str, title: str) -> list[str]:
    fonts = 'font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif" font-size="13"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" {fonts}>',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{width}" height="{height}" rx="10"/>',
        f'<text x="20" y="28" font-size="16" font-weight="600">{escape(heading)}</text>',
    ]


def _bar(number: int, line: dict[str, Any], scale: float) -> str:
    y, ratio = TOP + number * (BAR + 10), line["ratio"]
    kind = "better" if ratio <= 1 else "worse"
    width = max(2, ratio * scale)
    return (
        f"{_label(str(line.get('case', '')), y + 15)}"
        f'<rect class="{kind}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3"/>'
        f'<text class="value" x="{LABEL + width + 8:.1f}" y="{y + 15}">{ratio:.3g}</text>'
    )


def _label(words: str, y: int) -> str:
    """Return words beside a bar, in lines that are short enough."""
    lines = wrap(words, LETTERS)
    top = y - (len(lines) - 1) * LINE // 2
    return "".join(
        f'<text x="{LABEL - 12}" y="{top + number * LINE}" text-anchor="end">{escape(line)}</text>'
        for number, line in enumerate(lines)
    )


def main() -> None:
    for name, measurements in measured().items():
        (ASSETS / f"benchmark-{slug(name)}.svg").write_text(plot(name, measurements))


if __name__ == "__main__":
    main()
