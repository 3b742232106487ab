"""The loss of a run as an SVG, each leg in its own colour over the reference: a file that any browser opens."""

from __future__ import annotations

from collections.abc import Sequence

from zephon.report.legs import Row, legs

_WIDTH, _HEIGHT, _MARGIN = 900, 360, 56
_COLOURS = ("#1b6ca8", "#c4521b", "#2a8c4a", "#7a3fa0", "#a8871b")


def loss_picture(steps: Sequence[Row]) -> str:
    """SVG text. The reference is a wide grey line; legs that follow it exactly lie on it."""
    losses = [row.loss for row in steps] + [float(row.reference.rest["loss"]) for row in steps if row.reference]
    low, high = min(losses), max(losses)
    last = max(row.step for row in steps)

    def place(step: int, loss: float) -> str:
        x = _MARGIN + (step / max(last, 1)) * (_WIDTH - 2 * _MARGIN)
        y = _HEIGHT - _MARGIN - ((loss - low) / ((high - low) or 1)) * (_HEIGHT - 2 * _MARGIN)
        return f"{x:.1f},{y:.1f}"

    expected = " ".join(place(row.step, float(row.reference.rest["loss"])) for row in steps if row.reference)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<polyline points="{expected}" fill="none" stroke="#cccccc" stroke-width="7" stroke-linejoin="round"/>',
        f'<text x="{_MARGIN}" y="24">loss by step: legs of one run over the uninterrupted run (grey)</text>',
        f'<text x="8" y="{_MARGIN}">{high:.2f}</text><text x="8" y="{_HEIGHT - _MARGIN}">{low:.2f}</text>',
    ]
    for i, leg in enumerate(legs(steps)):
        colour = _COLOURS[i % len(_COLOURS)]
        points = " ".join(place(row.step, row.loss) for row in leg)
        x, y = place(leg[0].step, low).split(",")
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<line x1="{x}" x2="{x}" y1="{_MARGIN - 16}" y2="{y}" stroke="{colour}" stroke-dasharray="3 4"/>')
        label = f"from step {leg[0].step}: {leg[0].world_size} ranks"
        parts.append(f'<text x="{float(x) + 4:.0f}" y="{_HEIGHT - 16}" fill="{colour}">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])
