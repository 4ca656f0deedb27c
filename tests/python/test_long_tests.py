# SPDX-License-Identifier: Apache-2.0
"""long_tests.txt names tests that exist: a renamed one would silently run in every build, or in none."""

import pathlib
import re

FOLDER = pathlib.Path(__file__).parent


def test_every_pattern_names_a_test_that_exists():
    patterns = [line for line in (FOLDER / "long_tests.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert patterns
    for pattern in patterns:
        file, _, test = pattern.partition("::")
        text = (FOLDER / file).read_text()
        name = re.match(r"\w*", test).group()
        assert not name or f"def {name}" in text, pattern
