# SPDX-License-Identifier: Apache-2.0
"""Makes tables in Markdown, and the panels of pictures, of pie_figures.py's measurements."""

import functools

from pie_draw import bars_panel, lines_panel

MS = "{:.1f}".format
WHOLE = "{:.0f}".format
PART = "{:.1%}".format


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(map(str, row)) + " |" for row in rows] + [""]


def of(measured, about, **wanted):
    """The [(cell, result)] about a figure, by their number of swapped layers; "auto" comes last."""
    found = [(cell, result) for cell, result in measured if cell.about == about and all(getattr(cell, k) == v for k, v in wanted.items())]
    return sorted(found, key=lambda pair: (pair[0].turning == "auto", pair[1]["turning"], pair[0].rate))


def ordered(values):
    return list(dict.fromkeys(values))


def name_of(cell, result):
    return f"auto: {result['turning']:.0f}" if cell.turning == "auto" else cell.turning


def budget_number(text):
    """`66GiB` as 66."""
    return float("".join(c for c in text if c.isdigit() or c == ".") or 0)


def expansion_figure(measured):
    """Throughput by expansion, beside that of loading layers on demand (figures 6, 9b and 10)."""
    lines, panels = ["## Throughput by expansion (figures 6 and 9b)", ""], []
    for workload in ordered(cell.workload for cell, _ in measured if cell.about == "expansion"):
        found = of(measured, "expansion", workload=workload)
        fixed = [(cell, result) for cell, result in found if cell.turning != "auto"]
        online = [result for cell, result in found if cell.turning == "auto"]
        late = of(measured, "on-demand", workload=workload)
        base = next((result["tokens_per_s"] for cell, result in fixed if cell.turning == "0"), None)
        rows = []
        for cell, result in found + late:
            gain = f"{result['tokens_per_s'] / base:.2f}" if base else ""
            kind = "on demand" if cell.on_demand else "ahead"
            rows.append([name_of(cell, result), kind, f"{result['expansion']:.2f}", WHOLE(result["tokens_per_s"]), gain, PART(result["spread"]),
                         f"{result['sequences']:.1f}", MS(result["step_ms"]), PART(result["waited_share"])])
        head = ["layers", "come", "expansion", "tokens/s", "by none", "spread", "sequences", "step, ms", "waits"]
        lines += [f"### {workload}", ""] + table(head, rows)
        if fixed and online:
            best_cell, best = max(fixed, key=lambda pair: pair[1]["tokens_per_s"])
            rate = online[0]["tokens_per_s"]
            told = f"Found online: {rate / best['tokens_per_s']:.1%} of the best fixed number ({best_cell.turning})"
            lines += [told + (f", {rate / base:.2f} times none." if base else "."), ""]
        series = [("ahead", sorted((r["expansion"], r["tokens_per_s"]) for _, r in fixed), False)]
        series += [("found online", [(r["expansion"], r["tokens_per_s"]) for r in online], True)] if online else []
        series += [("on demand", sorted((r["expansion"], r["tokens_per_s"]) for _, r in late), False)] if late else []
        panels.append(functools.partial(lines_panel, f"{workload}: tokens/s", series, x_label="expansion"))
    return lines, panels


def memory_for(rate, curve):
    """The budget that reaches `rate`, interpolated in the sorted [(budget, tokens/s)]; None beyond the last."""
    for (low, before), (high, after) in zip(curve, curve[1:]):
        if before <= rate <= after and after > before:
            return low + (high - low) * (rate - before) / (after - before)
    return None


def budget_figure(measured):
    """Throughput by KV memory (figure 7), and the memory that the same throughput takes (5.2)."""
    lines, panels = ["## Throughput by KV memory (figure 7), and memory for the same throughput", ""], []
    for workload in ordered(cell.workload for cell, _ in measured if cell.about == "budget"):
        # The expansion figure's cells have measured both kinds at the usual budget.
        both = [pair for about in ("budget", "expansion") for pair in of(measured, about, workload=workload)]
        none = sorted((budget_number(cell.budget), r["tokens_per_s"]) for cell, r in both if cell.turning == "0")
        online = sorted((budget_number(cell.budget), r["tokens_per_s"], r["expansion"]) for cell, r in both if cell.turning == "auto")
        rows = []
        for budget, rate, expansion in online:
            without = dict(none).get(budget)
            same = memory_for(rate, none)
            rows.append([f"{budget:g}", WHOLE(without) if without else "", WHOLE(rate), f"{rate / without:.2f}" if without else "", f"{expansion:.2f}",
                         f"{same:.0f}" if same else "more than measured", f"{same / budget:.2f}" if same else ""])
        head = ["KV memory", "tokens/s, none", "found online", "ratio", "expansion", "memory that none takes for it", "times"]
        lines += [f"### {workload}", ""] + table(head, rows)
        series = [("none", none, False), ("found online", [point[:2] for point in online], False)]
        panels.append(functools.partial(lines_panel, f"{workload}: tokens/s", series, x_label="KV memory"))
    return lines, panels


def rate_figure(measured):
    """Throughput by request rate (figure 8)."""
    lines, panels = ["## Throughput by request rate (figure 8)", ""], []
    for workload in ordered(cell.workload for cell, _ in measured if cell.about == "rate"):
        found = of(measured, "rate", workload=workload)
        kinds = ordered(cell.turning for cell, _ in found)
        rates = sorted({cell.rate for cell, _ in found})
        by = {(cell.turning, cell.rate): result for cell, result in found}
        rows = []
        for rate in rates:
            row = [f"{rate:g}"]
            for kind in kinds:
                result = by.get((kind, rate))
                row.append(f"{result['tokens_per_s']:.0f} ({result['expansion']:.2f})" if result else "")
            rows.append(row)
        lines += [f"### {workload}: tokens/s (expansion)", ""] + table(["requests/s"] + [f"{kind} layers" for kind in kinds], rows)
        series = [(f"{kind} layers", [(rate, by[kind, rate]["tokens_per_s"]) for rate in rates if (kind, rate) in by], False) for kind in kinds]
        panels.append(functools.partial(lines_panel, f"{workload}: tokens/s", series, x_label="requests/s"))
    return lines, panels


def latency_figure(measured):
    """Time per token, in the queue and running (figure 9c)."""
    lines, panels = ["## Latency: time of requests by tokens, in the queue and at work (figure 9c)", ""], []
    pairs = ordered((cell.workload, cell.rate) for cell, _ in measured if cell.about == "latency")
    for workload, rate in pairs:
        found = of(measured, "latency", workload=workload, rate=rate)
        rows, bars = [], []
        for cell, result in found:
            queueing, compute = result["queueing_ms_per_token"], result["compute_ms_per_token"]
            rows.append([name_of(cell, result), f"{result['expansion']:.2f}", WHOLE(result["tokens_per_s"]), MS(queueing), MS(compute), MS(result["step_ms"])])
            bars.append(("auto" if cell.turning == "auto" else f"{result['expansion']:.2f}", (compute, queueing)))
        head = ["layers", "expansion", "tokens/s", "queueing, ms by token", "compute, ms by token", "step, ms"]
        lines += [f"### {workload}, {rate:g} requests/s", ""] + table(head, rows)
        panels.append(functools.partial(bars_panel, f"{workload}: ms by token", bars, ("compute", "queueing"), x_label="expansion"))
    return lines, panels


def series_of(result):
    return [(point["s"], point["tokens_per_s"]) for point in result["series"]]


def timeline_figure(measured):
    """How fast the number of swapped layers is found (figure 9a)."""
    lines, panels = [], []
    for cell, result in of(measured, "timeline"):
        if cell.turning != "auto":
            continue
        last = result["series"][-1]["turning"]
        reached = next((point["s"] for point in result["series"] if point["turning"] >= 0.9 * last), None)
        lines = ["## From the start (figure 9a)", "", f"{cell.workload}: {last:.0f} layers in the end, nine tenths of them after {reached:.1f} s.", ""]
        none = [r["tokens_per_s"] for c, r in of(measured, "timeline", workload=cell.workload) if c.turning == "0"]
        series = [("tokens/s, found online", series_of(result), False)]
        series += [("none, on average", [(0.0, none[0]), (result["series"][-1]["s"], none[0])], False)] if none else []
        panels.append(functools.partial(lines_panel, f"{cell.workload}: tokens/s", series, x_label="seconds"))
        layers = [("layers that take turns", [(point["s"], point["turning"]) for point in result["series"]], False)]
        panels.append(functools.partial(lines_panel, f"{cell.workload}: layers", layers, x_label="seconds"))
    return lines, panels


def longest_below(series, level):
    """The longest time in seconds in which the rate stays below `level`."""
    longest, begun, last = 0.0, None, 0.0
    for at, rate in series:
        if rate < level:
            begun = last if begun is None else begun
            longest = max(longest, at - begun)
        else:
            begun = None
        last = at
    return longest


def disturbed_figure(measured):
    """Throughput with half of the link gone on and off, with the number of layers found online, and the longest time below that without swapping."""
    lines, panels = [], []
    found = of(measured, "disturbed")
    base = [result for cell, result in found if cell.turning == "0"]
    online = [result for cell, result in found if cell.turning == "auto"]
    if base and online:
        level = base[0]["tokens_per_s"]
        each = [longest_below(series_of(result), level) for result in online[0]["all"]]
        told = ", ".join(f"{seconds:.1f}" for seconds in each)
        lines = ["## Half of the link gone in every other quarter of the time", "",
                 f"{online[0]['tokens_per_s'] / level:.2f} times the throughput of none over all of it; longest time below it, in each round: {told} s.", ""]
        series = [("found online", series_of(online[0]), False), ("none, on average", [(0.0, level), (online[0]["seconds"], level)], False)]
        panels.append(functools.partial(lines_panel, "half of the link, on and off: tokens/s", series, x_label="seconds"))
    return lines, panels


def step_figure(measured):
    """The time of a step with swapped layers, beside the same batch with room for all layers."""
    rows = []
    for workload, real_time in ordered((cell.workload, cell.real_time) for cell, _ in measured if cell.about == "step"):
        found = of(measured, "step", workload=workload, real_time=real_time)
        none = [result for cell, result in found if cell.turning == "0"]
        turns = [(cell, result) for cell, result in found if cell.turning != "0"]
        if not none or not turns:
            continue
        cell, result = turns[0]
        rows.append([workload, "the machine's" if real_time else "its own", cell.turning, f"{none[0]['sequences']:.1f}", f"{result['sequences']:.1f}",
                     f"{none[0]['step_ms']:.2f}", f"{result['step_ms']:.2f}", f"{result['step_ms'] / none[0]['step_ms'] - 1:+.1%}",
                     f"{result['median_step_ms'] / none[0]['median_step_ms'] - 1:+.1%}"])
    if not rows:
        return [], []
    head = ["workload", "clock", "layers", "sequences, none", "sequences", "step, none, ms", "step, ms", "more", "more, medians"]
    return ["## A step of the same batch, beside one with room for all layers", ""] + table(head, rows), []


FIGURES = {"expansion": expansion_figure, "budget": budget_figure, "rate": rate_figure, "latency": latency_figure,
           "timeline": timeline_figure, "disturbed": disturbed_figure, "step": step_figure}
