"""What an experiment writes: a table in Markdown, and lines or points as an SVG that any browser opens, light or dark."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 900, 380, 70, 60, 50
COLOURS = ("#1b6ca8", "#c4521b", "#2a8c4a", "#7a3fa0", "#a8871b", "#b03060", "#4a7c7c", "#777777")
Points = Sequence[tuple[float, float]]


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def lines(title: str, series: Mapping[str, Points], *, x: str, y: str, marks: bool = False) -> str:
    """SVG text. Args: series by their names; marks: points and not lines."""
    every = [point for points in series.values() for point in points]
    (x0, x1), (y0, y1) = ((min(values), max(values)) for values in zip(*every, strict=True))

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across = (point[0] - x0) / ((x1 - x0) or 1)
        up = (point[1] - y0) / ((y1 - y0) or 1)
        return LEFT + across * (WIDTH - LEFT - 20), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
        "<style>text{fill:#222}.paper{fill:#fff}@media(prefers-color-scheme:dark){text{fill:#ddd}.paper{fill:#16181c}}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text x="{LEFT}" y="20" font-size="15">{html.escape(title)}</text>',
        f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT - 8}">{html.escape(x)}</text><text x="4" y="{TOP - 8}">{html.escape(y)}</text>',
    ]
    for value in (y0, (y0 + y1) / 2, y1):
        height = place((x0, value))[1]
        parts.append(f'<text x="4" y="{height + 4:.0f}">{value:.4g}</text>')
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{height:.1f}" y2="{height:.1f}" stroke="#8884"/>')
    parts += [f'<text x="{place((value, y0))[0] - 8:.0f}" y="{HEIGHT - 28}">{value:g}</text>' for value in (x0, x1)]
    across = LEFT
    for number, (name, points) in enumerate(series.items()):
        colour, placed = COLOURS[number % len(COLOURS)], [place(point) for point in points]
        if marks:
            parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="{colour}"/>' for a, b in placed]
        else:
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in placed)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        parts.append(f'<text x="{across}" y="40" style="fill:{colour}">{html.escape(name)}</text>')
        across += 18 + 7 * len(name)
    return "\n".join([*parts, "</svg>", ""])


def write(out: Path, name: str, text: str, picture: str) -> None:
    """``name.md`` and ``name.svg``; the text is printed too."""
    print(text)
    (out / f"{name}.md").write_text(text + "\n")
    (out / f"{name}.svg").write_text(picture)
