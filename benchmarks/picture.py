"""The growth curves as an SVG picture, both axes logarithmic."""

from __future__ import annotations

import math
from dataclasses import dataclass

COLORS = {"floor": "#8c959f", "lango_store": "#0969da", "orm": "#cf222e"}
WIDTH, HEIGHT, LEFT, TOP = 380, 260, 64, 48


@dataclass(frozen=True)
class Curve:
    """The times of a measurement by the size of the session, one line for each contender."""

    title: str
    points: dict[str, list[tuple[int, float]]]


def draw(title: str, curves: list[Curve]) -> str:
    """Draw curves next to each other."""
    width = (WIDTH + LEFT + 20) * len(curves)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT + TOP + 48}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for place, curve in enumerate(curves):
        parts.append(f'<g transform="translate({place * (WIDTH + LEFT + 20) + LEFT},{TOP})">')
        parts += _panel(f"{title}: {curve.title}", curve)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


def _panel(title: str, curve: Curve) -> list[str]:
    sizes = sorted({size for points in curve.points.values() for size, _ in points})
    seconds = [each for points in curve.points.values() for _, each in points]
    low, high = math.floor(math.log10(min(seconds))), math.ceil(math.log10(max(seconds)))
    first, last = math.log10(sizes[0]), math.log10(sizes[-1])

    def x(size: float) -> float:
        return (math.log10(size) - first) / (last - first) * WIDTH

    def y(each: float) -> float:
        return HEIGHT - (math.log10(each) - low) / (high - low) * HEIGHT

    parts = [f'<text x="0" y="-24" font-size="14" font-weight="bold">{title}, by messages in the session</text>']
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f'<line x1="0" x2="{WIDTH}" y1="{at:.1f}" y2="{at:.1f}" stroke="#d0d7de"/>')
        parts.append(f'<text x="-8" y="{at + 4:.1f}" text-anchor="end">{_seconds(10.0**power)}</text>')
    for size in sizes:
        parts.append(f'<text x="{x(size):.1f}" y="{HEIGHT + 18}" text-anchor="middle">{size:,}</text>')
    for place, (name, points) in enumerate(curve.points.items()):
        line = " ".join(f"{x(size):.1f},{y(each):.1f}" for size, each in points)
        color = COLORS[name]
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(s):.1f}" cy="{y(e):.1f}" r="3" fill="{color}"/>' for s, e in points]
        parts.append(f'<text x="{place * 110}" y="{HEIGHT + 38}" fill="{color}">● {name}</text>')
    return parts


def _seconds(each: float) -> str:
    if each >= 1:
        return f"{each:g} s"
    return f"{each * 1e3:g} ms" if each >= 1e-3 else f"{each * 1e6:g} µs"
