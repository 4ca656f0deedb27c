# SPDX-License-Identifier: Apache-2.0
"""The requests to a server and their times: arrivals by a trace, at random or when a client is free; prompts from a file or of words."""

import csv
import dataclasses
import datetime
import json
import lzma
import random

WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand part "
    "place case week company system program question work government number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father power hour "
    "game line end member law car city community name president team minute idea body information back parent face others "
    "level office door health person art war history party result change morning reason research girl guy moment air teacher"
).split()
POOL_WORDS = 20_000


@dataclasses.dataclass
class Shape:
    """One request: when it comes (None: when a client is free), and its tokens (prompt 0: as long as the text is)."""

    due_s: float | None
    prompt_tokens: int
    output_tokens: int


def parse_range(text):
    """`512` or `100-900` as (low, high)."""
    low, _, high = text.partition("-")
    bounds = int(low), int(high or low)
    if not 0 < bounds[0] <= bounds[1]:
        raise ValueError(f"{text}: give N or LOW-HIGH")
    return bounds


def seconds_of(timestamp):
    """The seconds of an Azure timestamp, which has seven digits after the point."""
    whole, _, fraction = timestamp.strip().partition(".")
    return datetime.datetime.fromisoformat(whole + "+00:00").timestamp() + float(f"0.{fraction or 0}")


def read_trace(path, count, speed_up=1.0, most_tokens=0):
    """Shapes of the first `count` requests that have both tokens, and together at most `most_tokens` (0: any number).

    Those left out leave no gap in the numbering, but their time passes.
    """
    shapes, first = [], None
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            at, prompt, output = seconds_of(row["TIMESTAMP"]), int(row["ContextTokens"]), int(row["GeneratedTokens"])
            if min(prompt, output) < 1 or (most_tokens and prompt + output > most_tokens):
                continue
            first = at if first is None else first
            shapes.append(Shape((at - first) / speed_up, prompt, output))
            if len(shapes) == count:
                break
    return shapes


def poisson_times(rate, count, draw):
    """Arrivals of `rate` a second on average; the first comes at once."""
    times, at = [], 0.0
    for _ in range(count):
        times.append(at)
        at += draw.expovariate(rate)
    return times


def read_prompts(path):
    """Texts of a JSON file: ShareGPT's first human turns, Alpaca's instructions, or strings."""
    opened = lzma.open(path) if str(path).endswith(".xz") else open(path, "rb")
    with opened as file:
        entries = json.load(file)
    texts = []
    for entry in entries:
        if isinstance(entry, str):
            texts.append(entry)
        elif "conversations" in entry:
            texts += [turn["value"] for turn in entry["conversations"] if turn.get("from") in ("human", "user")][:1]
        elif "instruction" in entry:
            texts.append("\n\n".join(filter(None, [entry["instruction"], entry.get("input")])))
        elif "prompt" in entry:
            texts.append(entry["prompt"])
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise ValueError(f"{path}: no prompts")
    return texts


class RandomPrompts:
    """Prompts of exact lengths in tokens where the server has /tokenize, else of as many words. No two begin alike."""

    def __init__(self, try_tokenize, seed, vocabulary=0):
        """With a `vocabulary`, prompts are random ids below it."""
        self.draw = random.Random(seed)
        self.words = self.draw.choices(WORDS, k=POOL_WORDS)
        self.ids = self.draw.choices(range(vocabulary), k=POOL_WORDS) if vocabulary else try_tokenize(" ".join(self.words))

    def cut(self, pool, length):
        longer = pool * (1 + 2 * length // len(pool))
        start = self.draw.randrange(len(longer) - length + 1)
        return longer[start : start + length]

    def fields(self, route, length):
        if route.endswith("/chat/completions"):
            return {"messages": [{"role": "user", "content": " ".join(self.cut(self.words, length))}]}
        if self.ids is None:
            return {"prompt": " ".join(self.cut(self.words, length))}
        return {"prompt": self.cut(self.ids, length)}


class FilePrompts:
    """The texts of a file in a shuffled order, each once until all were used."""

    def __init__(self, texts, seed):
        self.texts = random.Random(seed).sample(texts, len(texts))
        self.at = 0

    def fields(self, route, _):
        text = self.texts[self.at % len(self.texts)]
        self.at += 1
        if route.endswith("/chat/completions"):
            return {"messages": [{"role": "user", "content": text}]}
        return {"prompt": text}
