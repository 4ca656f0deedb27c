# SPDX-License-Identifier: Apache-2.0
"""Makes tables in Markdown of s3_engine.py's measurements."""

import statistics

from pie_tables import table

PART = "{:.2%}".format


def by_cell(runs):
    """{name: {round: result}} in the order in which cells were measured first."""
    found = {}
    for run in sorted(runs, key=lambda run: run["round"]):
        found.setdefault(run["cell"]["name"], {})[run["round"]] = run["result"]
    return found


def median(rounds, name):
    return statistics.median(result.get(name, 0.0) for result in rounds.values())


def ratio(rounds, others, name):
    """The median and the range of the ratios within each round, which drift over rounds does not affect."""
    of = [result[name] / others[number][name] for number, result in rounds.items() if others.get(number, {}).get(name)]
    if not of:
        return ""
    middle = f"{statistics.median(of):.3f}"
    return middle if len(of) == 1 else f"{middle} ({min(of):.3f} to {max(of):.3f})"


def lost(rounds):
    """Recomputed tokens per generated token, over all rounds, since they are few and come in bursts."""
    generated = sum(result["tokens_per_s"] * result["seconds"] for result in rounds.values())
    return sum(result["recomputed_tokens"] for result in rounds.values()) / max(1.0, generated)


def fewer(rounds, paging):
    if not paging or not lost(paging):
        return ""
    return "none" if not lost(rounds) else f"{lost(paging) / lost(rounds):.1f} times"


def note(result):
    return " (1)" if result.get("came_again") and result.get("learning_share") else ""


def saturated(cells):
    head = ["cell", "tokens/s", "by orca", "by paging", "by oracle", "at work", "preemptions", "computed again", "fewer than paging",
            "predicting, scheduling", "learning"]
    rows = []
    for name, rounds in cells.items():
        foresight = statistics.median(result["scheduling_share"] + result.get("predicting_share", 0.0) for result in rounds.values())
        beside = [ratio(rounds, cells.get(other, {}), "tokens_per_s") if other != name else "" for other in ("orca", "paging", "oracle")]
        rows.append([name + note(next(iter(rounds.values()))), f"{median(rounds, 'tokens_per_s'):.0f}", *beside, f"{median(rounds, 'sequences'):.1f}",
                     f"{sum(of['preemptions'] for of in rounds.values()):.0f}", f"{sum(of['recomputed_tokens'] for of in rounds.values()):.0f}",
                     fewer(rounds, cells.get("paging")) if name != "paging" else "", PART(foresight), PART(median(rounds, "learning_share"))])
    return table(head, rows)


def by_time(cells):
    first = cells.get("first", {})
    head = ["order", "tokens/s", "mean latency", "by first", "p99", "by first", "first token"]
    rows = [
        [name, f"{median(rounds, 'tokens_per_s'):.0f}", f"{median(rounds, 'mean_latency_s'):.3f} s", ratio(rounds, first, "mean_latency_s"),
         f"{median(rounds, 'p99_latency_s'):.3f} s", ratio(rounds, first, "p99_latency_s"), f"{median(rounds, 'mean_first_token_s'):.3f} s"]
        for name, rounds in cells.items()
    ]
    return table(head, rows)


def tables(runs):
    lines = []
    for setting in dict.fromkeys((run["cell"]["budget"], run["cell"]["context"], run["cell"]["rate"]) for run in runs):
        budget, context, rate = setting
        cells = by_cell([run for run in runs if (run["cell"]["budget"], run["cell"]["context"], run["cell"]["rate"]) == setting])
        rounds = {len(of) for of in cells.values()}
        told = f"{rate:g} requests a second" if rate else "always some waiting"
        lines += [f"{budget} of KV, at most {context} tokens, {told}; {'/'.join(map(str, sorted(rounds)))} rounds:", ""]
        lines += by_time(cells) if rate else saturated(cells)
        if any(note(result) for of in cells.values() for result in of.values()):
            lines += ["(1) Requests came again while it learned: it knew some answers.", ""]
    return lines
