# SPDX-License-Identifier: Apache-2.0
"""Computes figures from the outcomes of requests."""

import collections
import statistics

PERCENTILES = (50, 90, 95, 99)
FEWEST_STEADY_TOKENS = 4  # tokens that each stream must have


def percentile(values, share):
    """A percentile of sorted values, linearly interpolated; None without any."""
    if not values:
        return None
    at = (len(values) - 1) * share / 100
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def spread(values):
    """Count, mean, percentiles and largest of values in any order."""
    values = sorted(values)
    figures = {"count": len(values), "mean": statistics.fmean(values) if values else None}
    figures |= {f"p{share}": percentile(values, share) for share in PERCENTILES}
    return figures | {"max": values[-1] if values else None}


def steady(outcomes):
    """Decoding while all streams decode: from the last one's first token to the first one's last.

    The sum of the streams' own rates over the tokens between, so that it does not matter where in a step the interval begins
    and ends. None where some stream has too few tokens in it.
    """
    streams = [outcome for outcome in outcomes if not outcome.error]
    if not streams:
        return None
    start = max(stream.token_times[0] for stream in streams)
    end = min(stream.token_times[-1] for stream in streams)
    rate = tokens = 0.0
    for stream in streams:
        times = [at for at in stream.token_times if start <= at <= end]
        if len(times) < FEWEST_STEADY_TOKENS or times[-1] <= times[0]:
            return None
        rate += (len(times) - 1) / (times[-1] - times[0]) * stream.tokens_per_event
        tokens += len(times) * stream.tokens_per_event
    return {"streams": len(streams), "seconds": end - start, "tokens": round(tokens), "tokens_per_s": rate}


def round_figures(outcomes, cpu_s):
    """The figures of one run against one endpoint."""
    good = [outcome for outcome in outcomes if not outcome.error]
    errors = collections.Counter(outcome.error for outcome in outcomes if outcome.error)
    seconds = max(o.done_at for o in outcomes) - min(o.sent_at for o in outcomes) if outcomes else 0.0
    prompt, output = sum(o.prompt_tokens for o in good), sum(o.output_tokens for o in good)
    return {
        "requests": len(outcomes),
        "errors": dict(errors),
        "seconds": seconds,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "requests_per_s": len(good) / seconds if seconds else 0.0,
        "output_tokens_per_s": output / seconds if seconds else 0.0,
        "total_tokens_per_s": (prompt + output) / seconds if seconds else 0.0,
        "started_late_s": max((o.sent_at - o.due_at for o in outcomes), default=0.0),
        "client_share_of_a_core": cpu_s / seconds if seconds else 0.0,
    }


def endpoint_figures(rounds):
    """The figures of all rounds, [(outcomes, cpu seconds)]: medians of rates, and percentiles over all requests."""
    each = [round_figures(outcomes, cpu_s) for outcomes, cpu_s in rounds]
    good = [outcome for outcomes, _ in rounds for outcome in outcomes if not outcome.error]
    errors = collections.Counter()
    for figures in each:
        errors.update(figures["errors"])
    result = {"requests": sum(f["requests"] for f in each), "errors": dict(errors)}
    for name in ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s"):
        result[name] = statistics.median(f[name] for f in each) if each else None
    for name in ("started_late_s", "client_share_of_a_core"):
        result[name] = max((f[name] for f in each), default=0.0)
    result["ttft_s"] = spread([o.ttft_s for o in good])
    result["inter_token_s"] = spread([gap for o in good for gap in o.gaps_s])
    result["end_to_end_s"] = spread([o.done_at - o.sent_at for o in good])
    result["prompt_tokens"] = spread([o.prompt_tokens for o in good])
    result["output_tokens"] = spread([o.output_tokens for o in good])
    return result | {"rounds": each}
