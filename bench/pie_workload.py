# SPDX-License-Identifier: Apache-2.0
"""Requests of Pie's evaluation: lengths as data sets have them, arrivals at random. The same ones for emulated and for real machines."""

import datetime
import itertools
import math
import random

from serve_workload import Shape, poisson_times, read_trace

# Mean tokens of prompts and answers, for log-normal lengths. None: the lengths of a trace, unchanged.
MEANS = {"sharegpt": (161, 338), "alpaca": (19, 58), "azure": None, "long-prompts": (1600, 120)}
SPREAD = 0.6


def draw_lengths(workload, count, draw, scale, most_tokens, trace=None):
    """[(prompt, answer)], `scale` times what the data set has, together at most `most_tokens`."""
    if MEANS[workload] is None:
        of = [(shape.prompt_tokens, shape.output_tokens) for shape in read_trace(trace, count=10 * count)]
        start = draw.randrange(len(of))
        pairs = [(scale * prompt, scale * answer) for prompt, answer in itertools.islice(itertools.cycle(of), start, start + count)]
    else:
        # The mean of a log-normal variable is e^(mu + sigma^2 / 2).
        pairs = [tuple(scale * mean * math.exp(draw.gauss(-SPREAD * SPREAD / 2, SPREAD)) for mean in MEANS[workload]) for _ in range(count)]
    answers = [min(max(1, round(answer)), most_tokens // 2) for _, answer in pairs]
    return [(min(max(1, round(prompt)), most_tokens - answer), answer) for (prompt, _), answer in zip(pairs, answers)]


def draw_requests(workload, rate, seconds, seed, scale=1.0, most_tokens=1000, trace=None, saturating=2000):
    """Shapes with `rate` arrivals a second in these seconds; rate 0: `saturating` requests, which all arrive at the start."""
    draw = random.Random(f"{workload} {seed}")
    # Some more requests than expected, in case the measurement begins late.
    count = math.ceil(1.2 * rate * (seconds + 5)) + 8 if rate else saturating
    times = poisson_times(rate, count, draw) if rate else [0.0] * count
    lengths = draw_lengths(workload, count, draw, scale, most_tokens, trace)
    return [Shape(at, prompt, answer) for at, (prompt, answer) in zip(times, lengths)]


def write_plain(shapes, path):
    """Writes the requests in pie_sweep's format."""
    path.write_text("".join(f"{of.due_s:.6f} {of.prompt_tokens} {of.output_tokens}\n" for of in shapes), encoding="utf-8")


def write_trace(shapes, path):
    """Writes the requests in serve_bench.py's format, with Azure's columns."""
    first = datetime.datetime(2023, 11, 16)
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for of in shapes:
        lines.append(f"{first + datetime.timedelta(seconds=of.due_s):%Y-%m-%d %H:%M:%S.%f},{of.prompt_tokens},{of.output_tokens}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
