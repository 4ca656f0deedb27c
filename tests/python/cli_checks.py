# SPDX-License-Identifier: Apache-2.0
"""Checks that the tests of several commands share."""

import array
import math
import re
import sys

FAILED = 1
WRONG_USAGE = 2
TEXT = "The river was wide, and in the morning he said: there is a café on the other side of it. "
UNKNOWN_FLAG = re.compile("not expected|following argument|unknown|unrecognized", re.IGNORECASE)


def assert_bad_value(done):
    """Checks that a value is refused, and not the flag itself: an unknown flag would be wrong usage too."""
    done.assert_one_line_error(WRONG_USAGE)
    assert not UNKNOWN_FLAG.search(done.err), f"the flag itself is unknown: {done.err}"


def has_terminal_codes(text):
    return "\x1b" in text or "\r" in text or "\b" in text


def read_logits(spillway, model, ids, path):
    """[len(ids)][vocabulary]"""
    done = spillway.run("logits", model, "--ids", ",".join(map(str, ids)), "-o", path)
    assert done.code == 0, done.err
    values = array.array("f", path.read_bytes())
    if sys.byteorder == "big":
        values.byteswap()
    width = len(values) // len(ids)
    return [values[start : start + width] for start in range(0, len(values), width)]


def logprob(row, token):
    largest = max(row)
    return row[token] - largest - math.log(sum(math.exp(value - largest) for value in row))
