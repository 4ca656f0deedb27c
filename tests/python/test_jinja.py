# SPDX-License-Identifier: Apache-2.0
"""Small templates, compared with Python's jinja2: expressions, statements, and random combinations of them."""

import random
import re

import pytest

pytest.importorskip("jinja2")
import jinja_cases  # noqa: E402
import jinja_reference  # noqa: E402


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # escapes that Python will refuse one day
@pytest.mark.parametrize("topic", jinja_cases.EXPRESSIONS)
def test_expressions(topic):
    sources = [f"{{{{ {expression} }}}}" for expression in jinja_cases.expressions_of(topic)]
    found = jinja_reference.differences([(source, jinja_cases.VARIABLES) for source in sources])
    assert not found, "\n".join(found)


def test_statements():
    found = jinja_reference.differences([(source, jinja_cases.VARIABLES) for source in jinja_cases.STATEMENTS])
    assert not found, "\n".join(found)


def same_but_for_addresses(text):
    """Whether the text shows functions, generators or other objects, which Python prints with their addresses."""
    return text is not None and re.search(r"object at 0x|<generator|<function|<reversed|<Macro", text)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("seed", range(8))
def test_random_expressions(seed):
    maker = jinja_cases.RandomExpressions(random.Random(seed))
    sources = [f"{{{{ {maker.expression(4)} }}}}" for _ in range(500)]
    cases = [(source, jinja_cases.VARIABLES) for source in sources]
    found = []
    for (source, variables), answer in zip(cases, jinja_reference.answers(cases)):
        expected = jinja_reference.reference(source, variables)
        # Exceptions: Python's integers are unbounded, and jinja2 can slice constants of types whose variables it cannot.
        ours_alone = re.search("64 bits|cannot be sliced", answer.get("error", ""))
        if ours_alone or same_but_for_addresses(expected):
            continue
        if expected != answer.get("text"):
            found.append(f"{source}\n  jinja2:   {expected!r}\n  spillway: {answer}")
    assert not found, f"{len(found)}:\n" + "\n".join(found[:5])
