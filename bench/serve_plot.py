# SPDX-License-Identifier: Apache-2.0
"""Distributions as an SVG: what share of requests or tokens came within so many seconds, all endpoints in one picture."""

import html
import math

from serve_figures import percentile

WIDTH, HEIGHT = 460, 300  # size of a panel
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 40, 44
COLOURS = ("#0b6e99", "#d9480f", "#5f3dc4", "#2b8a3e", "#a61e4d", "#495057")
POINTS = 200
MARKS = (50, 95)


def in_words(seconds):
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def decades(low, high):
    """The exponents of the powers of ten around both values."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return first, max(last, first + 1)


def panel(title, series, x):
    """One picture at `x`: series is [(name, sorted seconds)]."""
    parts = [f'<g transform="translate({x},0)">', f'<text x="{LEFT}" y="22" class="title">{html.escape(title)}</text>']
    known = [(name, [max(value, 1e-6) for value in values]) for name, values in series if values]
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    if not known:
        return "\n".join(parts + [f'<text x="{LEFT}" y="{TOP + 20}">nothing was measured</text>', "</g>"])
    first, last = decades(min(v[0] for _, v in known), max(v[-1] for _, v in known))

    def to_x(seconds):
        return LEFT + (math.log10(seconds) - first) / (last - first) * (right - LEFT)

    def to_y(share):
        return bottom - share / 100 * (bottom - TOP)

    for share in (0, 25, 50, 75, 100):
        y = to_y(share)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share}%</text>')
    for power in range(first, last + 1):
        at = to_x(10.0**power)
        parts.append(f'<path d="M{at:.1f} {TOP}V{bottom}" class="grid"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{in_words(10.0**power)}</text>')
    for number, (name, values) in enumerate(series):
        if not values:
            continue
        values = [max(value, 1e-6) for value in values]
        colour = COLOURS[number % len(COLOURS)]
        shares = [100 * i / POINTS for i in range(POINTS + 1)]
        line = " ".join(f"{to_x(percentile(values, share)):.1f},{to_y(share):.1f}" for share in shares)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        for share in MARKS:
            value = percentile(values, share)
            told = html.escape(f"{name}: {share}% within {in_words(value)}")
            parts.append(f'<circle cx="{to_x(value):.1f}" cy="{to_y(share):.1f}" r="3.2" fill="{colour}"><title>{told}</title></circle>')
        middle, late = (in_words(percentile(values, share)) for share in MARKS)
        parts.append(
            f'<text x="{right - 4}" y="{bottom - 10 - 15 * (len(series) - 1 - number)}" text-anchor="end" fill="{colour}">'
            f"{html.escape(name)}: p50 {middle}, p95 {late}</text>"
        )
    return "\n".join(parts + ["</g>"])


def draw(panels, title):
    """The SVG's text; panels is [(title, [(name, seconds in any order)])], side by side."""
    width = WIDTH * len(panels)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT + 24}" viewBox="0 0 {width} {HEIGHT + 24}">',
        "<style>text{font:12px sans-serif}.title{font-weight:bold}"
        ".grid{stroke:#dee2e6;fill:none}</style>",
        f'<rect width="{width}" height="{HEIGHT + 24}" fill="white"/>',
    ]
    lines += [panel(name, [(n, sorted(values)) for n, values in series], i * WIDTH) for i, (name, series) in enumerate(panels)]
    lines.append(f'<text x="{LEFT}" y="{HEIGHT + 12}">{html.escape(title)}</text>')
    return "\n".join(lines + ["</svg>"]) + "\n"
