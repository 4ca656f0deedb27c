# SPDX-License-Identifier: Apache-2.0
"""Lines and bars as SVG, panels side by side: the pictures of pie_figures.py."""

import html

WIDTH, HEIGHT = 420, 280  # size of a panel
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 36, 40
COLOURS = ("#0b6e99", "#d9480f", "#5f3dc4", "#2b8a3e", "#a61e4d", "#495057")


def frame(title, x, most_y):
    """The beginning of every panel; the caller closes it with `</g>`."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [f'<g transform="translate({x},0)">', f'<text x="{LEFT}" y="20" class="title">{html.escape(title)}</text>']
    for i in range(5):
        y = bottom - i / 4 * (bottom - TOP)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{most_y * i / 4:.3g}</text>')
    return parts


def legend(number, name, colour, at_top=False):
    y = TOP + 12 + 15 * number if at_top else HEIGHT - BOTTOM - 8 - 15 * number
    return f'<text x="{WIDTH - RIGHT - 4}" y="{y}" text-anchor="end" fill="{colour}">{html.escape(name)}</text>'


def lines_panel(title, series, x, x_label):
    """series: [(name, [(x, y)], whether dots alone)], y from 0 on."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    points = [point for _, line, _ in series for point in line]
    most_x, most_y = max(p[0] for p in points), 1.1 * max(max(p[1] for p in points), 1e-9)
    least_x = min(p[0] for p in points)
    span = (most_x - least_x) or 1

    def at(point):
        return LEFT + (point[0] - least_x) / span * (right - LEFT), bottom - point[1] / most_y * (bottom - TOP)

    parts = frame(title, x, most_y)
    for i in range(5):
        value = least_x + span * i / 4
        parts.append(f'<text x="{LEFT + i / 4 * (right - LEFT):.1f}" y="{bottom + 16}" text-anchor="middle">{value:.3g}</text>')
    parts.append(f'<text x="{right}" y="{bottom + 32}" text-anchor="end">{html.escape(x_label)}</text>')
    for number, (name, line, dots) in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        where = [at(point) for point in line]
        if not dots:
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in where)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        for a, b in where if dots or len(where) < 40 else []:
            parts.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.2" fill="{colour}"/>')
        parts.append(legend(number, name, colour))
    return "\n".join(parts + ["</g>"])


def bars_panel(title, bars, names, x, x_label):
    """bars: [(label, values from the bottom up)], one for each of `names`."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    most_y = 1.1 * max(max(sum(values) for _, values in bars), 1e-9)
    each = (right - LEFT) / len(bars)
    parts = frame(title, x, most_y)
    for number, (label, values) in enumerate(bars):
        y, at = float(bottom), LEFT + (number + 0.15) * each
        for value, colour in zip(values, COLOURS):
            height = value / most_y * (bottom - TOP)
            y -= height
            parts.append(f'<rect x="{at:.1f}" y="{y:.1f}" width="{0.7 * each:.1f}" height="{height:.1f}" fill="{colour}"/>')
        parts.append(f'<text x="{at + 0.35 * each:.1f}" y="{bottom + 16}" text-anchor="middle">{html.escape(label)}</text>')
    parts.append(f'<text x="{right}" y="{bottom + 32}" text-anchor="end">{html.escape(x_label)}</text>')
    parts += [legend(number, name, COLOURS[number], at_top=True) for number, name in enumerate(names)]
    return "\n".join(parts + ["</g>"])


def draw(panels):
    """Draws the panels, which are functions of their position."""
    width = WIDTH * len(panels)
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" viewBox="0 0 {width} {HEIGHT}">',
        "<style>text{font:12px sans-serif}.title{font-weight:bold}.grid{stroke:#dee2e6;fill:none}</style>",
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
    ]
    return "\n".join(head + [panel(i * WIDTH) for i, panel in enumerate(panels)] + ["</svg>"]) + "\n"
