# SPDX-License-Identifier: Apache-2.0
"""Alpaca's questions and answers, and which of them a predictor may learn from."""

import hashlib
import json
import lzma


def read_alpaca(path):
    """[(question, answer)] of its JSON (.xz, too)."""
    opened = lzma.open(path) if str(path).endswith(".xz") else open(path, "rb")
    with opened as file:
        entries = json.load(file)
    return [
        ("\n\n".join(filter(None, [entry["instruction"], entry.get("input")])), entry.get("output", ""))
        for entry in entries
        if entry.get("instruction", "").strip()
    ]


def is_for_learning(question):
    """Decides by a hash, so that no predictor learns from questions that it is asked later."""
    return int(hashlib.sha256(question.encode()).hexdigest(), 16) % 2 == 0
