#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of the documents into docs/figures.

usage: scripts/draw_figures.py [--out DIR] [tiers folders request]
       scripts/draw_figures.py [--out DIR] --trace FILE [--from MS] [--to MS] step
`step` draws the trace that `spillway plan ... --trace FILE` wrote. Every picture has a background of its own, so that it
can be read on light and dark pages.
"""

import argparse
import json
import pathlib
import sys
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
INK, PALE, LINE = "#1f2933", "#52606d", "#7b8794"
FILLS = {"gpu": "#d3f0dd", "host": "#d6e8fa", "disk": "#f3e6d0", "plain": "#eef1f4", "cuda": "#a5dcb8", "cpu": "#a9cdf2", "link": "#f0b35f",
         "copy": "#f0b35f", "back": "#c79be0"}  # fmt: skip


class Picture:
    """An SVG that is put together shape by shape."""

    def __init__(self, width, height, title):
        self.width, self.height = width, height
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
            f'<path d="M0 0L10 5L0 10z" fill="{INK}"/></marker></defs>',
            f"<style>text{{font:13px sans-serif;fill:{INK}}}.bold{{font-weight:bold}}.small{{font-size:11.5px;fill:{PALE}}}</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        ]

    def box(self, x, y, width, height, fill="plain", lines=(), title=None, align="start"):
        """A rectangle with a bold title and small lines of text."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{FILLS.get(fill, fill)}" stroke="{LINE}"/>'
        )
        at = x + 10 if align == "start" else x + width / 2
        top = y + 20
        if title:
            self.text(at, top, title, "bold", align)
            top += 18
        for line in lines:
            self.text(at, top, line, "small", align)
            top += 15.5

    def text(self, x, y, text, kind="", align="start"):
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{align}">{escape(text)}</text>')

    def arrow(self, x1, y1, x2, y2, both=False, dashed=False):
        start = ' marker-start="url(#tip)"' if both else ""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{INK}" stroke-width="1.6" fill="none" marker-end="url(#tip)"{start}{dash}/>'
        )

    def line(self, x1, y1, x2, y2, colour=LINE, dashed=False):
        dash = ' stroke-dasharray="3 4"' if dashed else ""
        self.parts.append(f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{colour}"{dash} fill="none"/>')

    def bar(self, x, y, width, height, fill):
        self.parts.append(f'<rect x="{x:.2f}" y="{y:g}" width="{max(width, 0.4):.2f}" height="{height}" fill="{FILLS.get(fill, fill)}"/>')

    def svg(self):
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def tiers():
    picture = Picture(900, 318, "Disk, host memory and GPU memory, what lives there, and who computes")
    columns = [
        (20, "disk", "Disk", "largest, slowest", ["weights that fit nowhere else", "KV that fits nowhere else", "KV that is kept for later", "  (--kv-dir)"]),
        (320, "host", "Host memory", "10 to 1,000 GB", ["weights that do not fit on the GPU", "KV of more or longer requests", "KV of swapped layers", "KV of prefixes, to be found again"]),
        (640, "gpu", "GPU memory", "smallest, fastest", ["as many weights as fit", "KV of running requests", "hidden states of the step", "slots that streamed weights pass"]),
    ]  # fmt: skip
    for x, fill, title, size, lines in columns:
        picture.box(x, 40, 240, 128, fill, [size, "", *lines], title)
    for x, rate in ((260, "1-10 GB/s"), (560, "10-60 GB/s")):
        picture.arrow(x + 3, 104, x + (57 if x == 260 else 77), 104, both=True)
        picture.text(x + (30 if x == 260 else 40), 94, rate, "small", "middle")
    picture.text(290, 122, "reads", "small", "middle")
    picture.text(600, 122, "link, such as", "small", "middle")
    picture.text(600, 136, "PCIe", "small", "middle")
    picture.box(320, 214, 240, 84, "cpu", ["multiplies its share of the weights", "attends to KV in host memory", "where they lie: nothing is copied"], "CPU")
    picture.box(640, 214, 240, 84, "cuda", ["multiplies what is here and what", "is copied in, a few layers ahead", "attends to KV, samples tokens"], "GPU")
    picture.arrow(440, 170, 440, 211, both=True)
    picture.arrow(760, 170, 760, 211, both=True)
    picture.arrow(562, 256, 637, 256, both=True)
    picture.text(600, 246, "a few KiB", "small", "middle")
    picture.text(600, 274, "per token", "small", "middle")
    picture.text(20, 24, "Everything has a home in one of three tiers; the planner finds which", "bold")
    picture.text(20, 232, "Without a GPU: two tiers,", "small")
    picture.text(20, 248, "and the CPU computes all.", "small")
    return picture.svg()


FOLDERS = [
    [("cli", "commands, options, terminal")],
    [("serve", "HTTP, OpenAI's API, batch jobs")],
    [("engine", "the loop: schedule, step, sample; sessions, drafts")],
    [("schedule", "which tokens come next"), ("predict", "lengths of answers"), ("measure", "rates of this machine")],
    [("runtime", "weights, decoder, copies: runs a step")],
    [("plan", "what goes where, prices, events"), ("kv", "KV blocks, stores, swapped layers")],
    [("model", "families, layers as data"), ("memory", "pinned, mapped, spilled bytes"), ("text", "tokens, templates")],
    [("cpu", "the host's ops"), ("cuda", "the GPU's ops"), ("storage", "files, asynchronous I/O")],
    [("device", "the seam: Device, Ops")],
    [("tensor", "types and layouts of numbers"), ("base", "errors, threads, logging")],
]


def folders():
    row, gap = 52, 10
    picture = Picture(760, 48 + len(FOLDERS) * (row + gap), "The folders of src/, each above those that it may include")
    picture.text(20, 26, "src/: a folder includes only what is below it (folders.txt has the exact table)", "bold")
    for index, names in enumerate(FOLDERS):
        y = 40 + index * (row + gap)
        width = (720 - (len(names) - 1) * 10) / len(names)
        for place, (name, what) in enumerate(names):
            fill = {"cuda": "gpu", "cpu": "host", "storage": "disk"}.get(name, "plain")
            picture.box(20 + place * (width + 10), y, width, row, fill, [what], name + "/", "middle")
    return picture.svg()


LANES = ["client", "I/O thread", "reader thread", "engine thread", "devices\n(GPU, CPU, copies)", "writer thread"]
CALLS = [
    (0, 1, "POST /v1/chat/completions"),
    (1, 2, "body, within limits"),
    (2, 2, "JSON, template, tokens; predicts the length"),
    (2, 3, "typed request (mailbox)"),
    (3, 3, "waits; prefix found; admitted"),
    (3, 4, "step: prefill in chunks"),
    (4, 3, "logits, or sampled tokens"),
    (3, 5, "events of the step"),
    (5, 5, "JSON"),
    (5, 1, "piece of the answer"),
    (1, 0, "first token"),
    (3, 4, "step: decode, one token"),
    (4, 3, "a token of each sequence"),
    (3, 5, "events of the step"),
    (5, 1, "piece of the answer"),
    (1, 0, "next tokens, then the end"),
]


def request():
    lane, top, row = 158, 74, 31
    height = top + len(CALLS) * row + 34
    picture = Picture(20 + lane * len(LANES), height, "One request over HTTP: which thread does what")
    for index, name in enumerate(LANES):
        x = 10 + index * lane + lane / 2
        lines = name.split("\n")
        picture.box(x - 66, 14, 132, 42, "plain")
        for place, text in enumerate(lines):
            picture.text(x, (40 if len(lines) == 1 else 32) + place * 16, text, "small" if place else "bold", "middle")
        picture.line(x, 56, x, height - 14, dashed=True)
    for index, (start, end, text) in enumerate(CALLS):
        y = top + 18 + index * row
        x1, x2 = (10 + place * lane + lane / 2 for place in (start, end))
        if start == end:
            width = max(len(text) * 6.3 + 16, 96)
            picture.box(x1 - width / 2, y - 17, width, 23, "host")
            picture.text(x1, y - 1, text, "small", "middle")
            continue
        step = 4 if end > start else -4
        picture.arrow(x1 + step, y, x2 - step, y)
        middle = (x1 + x2) / 2 if abs(start - end) == 1 else (min(x1, x2) + lane / 2)
        width = len(text) * 6.1
        picture.parts.append(f'<rect x="{middle - width / 2 - 2:g}" y="{y - 17:g}" width="{width + 4:g}" height="13" fill="#ffffff" opacity="0.85"/>')
        picture.text(middle, y - 6, text, "small", "middle")
    picture.line(6, top + 18 + 10 * row + 12, picture.width - 6, top + 18 + 10 * row + 12, "#cbd2d9")
    picture.text(14, top + 18 + 11 * row + 2, "repeats:", "small")
    return picture.svg()


# The main work of each worker of a trace.
WORKERS = {"GPU": "computes", "CPU": "computes its share", "to GPU": "copies of weights", "to host": "copies of KV"}


def step(trace, start_ms, end_ms):
    """The workers of a step as lanes, with one bar for each event of the trace."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event.get("name") == "thread_name"}
    lanes = [tid for tid in sorted(names) if any(event["tid"] == tid for event in events)]
    start_ms = min(event["ts"] for event in events) / 1e3 if start_ms is None else start_ms
    end_ms = max(event["ts"] + event["dur"] for event in events) / 1e3 if end_ms is None else end_ms
    left, width, row = 206, 680, 46
    picture = Picture(left + width + 34, 66 + row * len(lanes) + 20, "A step as a timeline")
    layers = {event["args"]["layer"] for event in events
              if event["tid"] == lanes[0] and "layer" in event["args"] and start_ms * 1e3 <= event["ts"] < end_ms * 1e3}  # fmt: skip
    picture.text(20, 26, f"{(end_ms - start_ms):.0f} ms of a step, {len(layers)} layers: what each worker does", "bold")
    fills = {"gpu": "cuda", "cpu": "cpu"}
    for index, tid in enumerate(lanes):
        y = 46 + index * row
        mine = [event for event in events if event["tid"] == tid]
        shown = [event for event in mine if event["ts"] + event["dur"] > start_ms * 1e3 and event["ts"] < end_ms * 1e3]
        fill = fills.get(names[tid].lower(), "back" if "host" in names[tid] else "copy")
        picture.text(20, y + 18, names[tid], "bold")
        busy = 0
        picture.box(left, y, width, 32, "#f5f7fa")
        for event in shown:
            begin = max(event["ts"] / 1e3, start_ms)
            end = min((event["ts"] + event["dur"]) / 1e3, end_ms)
            busy += end - begin
            x = left + (begin - start_ms) / (end_ms - start_ms) * width
            picture.bar(x, y + 3, (end - begin) / (end_ms - start_ms) * width - 0.5, 26, fill)
        what = WORKERS.get(names[tid], "")
        picture.text(20, y + 32, f"{what}{', ' if what else ''}{busy / (end_ms - start_ms) * 100:.0f}% busy", "small")
    base = 46 + row * len(lanes)
    for place in range(6):
        x = left + width * place / 5
        picture.line(x, base - 8, x, base - 2)
        picture.text(x, base + 12, f"{(end_ms - start_ms) * place / 5:.0f} ms", "small", "middle")
    return picture.svg()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "figures")
    parser.add_argument("--trace", type=pathlib.Path)
    parser.add_argument("--from", dest="start", type=float, help="milliseconds of the trace to begin with")
    parser.add_argument("--to", dest="end", type=float, help="milliseconds of the trace to end with")
    parser.add_argument("figures", nargs="*", default=["tiers", "folders", "request"])
    options = parser.parse_args()
    known = {"tiers": tiers, "folders": folders, "request": request}
    for name in options.figures:
        if name == "step":
            if options.trace is None:
                parser.error("step needs --trace FILE")
            text = step(json.loads(options.trace.read_text()), options.start, options.end)
        elif name in known:
            text = known[name]()
        else:
            parser.error(f"no picture {name}")
        (options.out / f"{name}.svg").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
