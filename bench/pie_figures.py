#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What layers whose KV takes turns bring (Pie, figures 6 to 9): tables and an SVG of what pie_sweep prints.

    bin/pie_sweep --auto > runs.jsonl
    bin/pie_sweep --turning 0 --blocks 192 --workloads sharegpt >> runs.jsonl   # more memory without turns
    bin/pie_sweep --turning 0 --auto --disturbed --seconds 24 --workloads sharegpt >> runs.jsonl
    pie_figures.py runs.jsonl --svg pie.svg
"""

import argparse
import collections
import html
import json
import pathlib

WIDTH, HEIGHT = 420, 280  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 36, 40
COLOURS = ("#0b6e99", "#d9480f", "#5f3dc4")


def read_runs(paths):
    for path in paths:
        for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
            if line.strip():
                yield json.loads(line)


def without_turns(runs):
    return [run for run in runs if run["kind"] == "fixed" and run["turning"] == 0]


def sweep_table(workload, runs):
    """Throughput by expansion, the last line what was found online."""
    none = without_turns(runs)
    base = none[0]["tokens_per_s"] if none else None
    lines = [f"### {workload}", "", "| layers | expansion | tokens/s | by none | sequences | step, ms | waits |", "|---|---|---|---|---|---|---|"]
    for run in sorted(runs, key=lambda run: (run["kind"] == "auto", run["turning"])):
        gain = f"{run['tokens_per_s'] / base:.2f}" if base else ""
        name = f"auto: {run['turning']}" if run["kind"] == "auto" else str(run["turning"])
        lines.append(
            f"| {name} | {run['expansion']:.2f} | {run['tokens_per_s']:.0f} | {gain} | {run['sequences']:.1f} "
            f"| {run['step_ms']:.1f} | {run['waited_share']:.1%} |"
        )
    fixed = [run for run in runs if run["kind"] == "fixed"]
    found = [run for run in runs if run["kind"] == "auto"]
    if fixed and found:
        best = max(fixed, key=lambda run: run["tokens_per_s"])
        share = found[0]["tokens_per_s"] / best["tokens_per_s"]
        lines += ["", f"Found online: {share:.1%} of the best fixed number ({best['turning']})."]
    return lines + [""]


def memory_table(runs):
    """What memory without turns gives what turns give with less."""
    lines = ["### GPU memory for the same throughput", "", "| blocks | layers | tokens/s |", "|---|---|---|"]
    for run in sorted(runs, key=lambda run: (run["kind"] == "auto", run["blocks"])):
        name = f"auto: {run['turning']}" if run["kind"] == "auto" else str(run["turning"])
        lines.append(f"| {run['blocks']} | {name} | {run['tokens_per_s']:.0f} |")
    return lines + [""]


def disturbance_lines(runs):
    """How long what was found online stays below none."""
    base, found = without_turns(runs), [run for run in runs if run["kind"] == "auto"]
    if not base or not found:
        return []
    level = base[0]["tokens_per_s"]
    longest, begun, last = 0.0, None, 0.0
    for point in found[0]["series"]:
        if point["tokens_per_s"] < level:
            begun = last if begun is None else begun
            longest = max(longest, point["s"] - begun)
        else:
            begun = None
        last = point["s"]
    share = found[0]["tokens_per_s"] / level
    return [
        "### Half of the link gone in every other quarter of the time",
        "",
        f"{share:.2f} times the throughput of no turns over all of it; longest time below it: {longest:.2f} s.",
        "",
    ]


def panel(title, series, x, x_label):
    """Lines of (x, y) points by name, from 0 on."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    points = [point for _, line, _ in series for point in line]
    most_x, most_y = max(p[0] for p in points), 1.1 * max(p[1] for p in points)
    least_x = min(p[0] for p in points)
    span = (most_x - least_x) or 1

    def at(point):
        return LEFT + (point[0] - least_x) / span * (right - LEFT), bottom - point[1] / most_y * (bottom - TOP)

    parts = [f'<g transform="translate({x},0)">', f'<text x="{LEFT}" y="20" class="title">{html.escape(title)}</text>']
    for i in range(5):
        y = bottom - i / 4 * (bottom - TOP)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{most_y * i / 4:.0f}</text>')
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
        parts.append(f'<text x="{right - 4}" y="{bottom - 8 - 15 * number}" text-anchor="end" fill="{colour}">{html.escape(name)}</text>')
    return "\n".join(parts + ["</g>"])


def draw(panels):
    width, height = WIDTH * len(panels), HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        "<style>text{font:12px sans-serif}.title{font-weight:bold}.grid{stroke:#dee2e6;fill:none}</style>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    return "\n".join(lines + [panel(*of[:2], i * WIDTH, of[2]) for i, of in enumerate(panels)] + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="what pie_sweep printed")
    parser.add_argument("--svg", help="write the pictures here")
    options = parser.parse_args()
    runs = list(read_runs(options.runs))
    usual = min(run["blocks"] for run in runs)
    sweeps, memory, disturbed = collections.defaultdict(list), [], []
    for run in runs:
        if run["disturbed"]:
            disturbed.append(run)
        elif run["blocks"] == usual:
            sweeps[run["workload"]].append(run)
        else:
            memory.append(run)
    lines, panels = [], []
    for workload, of in sweeps.items():
        lines += sweep_table(workload, of)
        line = sorted((run["expansion"], run["tokens_per_s"]) for run in of if run["kind"] == "fixed")
        found = [(run["expansion"], run["tokens_per_s"]) for run in of if run["kind"] == "auto"]
        series = [("fixed", line, False)] + ([("found online", found, True)] if found else [])
        panels.append((f"{workload}: tokens/s", series, "expansion"))
    if memory:
        beside = [run for run in sweeps[memory[0]["workload"]] if run["kind"] == "auto" or run["turning"] == 0]
        lines += memory_table(memory + beside)
    if disturbed:
        lines += disturbance_lines(disturbed)
        series = [
            ("found online" if run["kind"] == "auto" else f"{run['turning']} layers", [(p["s"], p["tokens_per_s"]) for p in run["series"]], False)
            for run in disturbed
        ]
        panels.append(("half of the link, on and off: tokens/s", series, "seconds"))
    print("\n".join(lines))
    if options.svg:
        pathlib.Path(options.svg).write_text(draw(panels), encoding="utf-8")


if __name__ == "__main__":
    main()
