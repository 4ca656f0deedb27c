# SPDX-License-Identifier: Apache-2.0
"""Python's jinja2, set up as Hugging Face's apply_chat_template does, beside Spillway's renderer."""

import copy
import datetime
import functools
import json
import os
import pathlib
import subprocess

import jinja2
import pytest
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = "2026-03-07T09:05:03"
ROOT = pathlib.Path(__file__).resolve().parents[2]


class Generation(Extension):
    """{% generation %}: the text between is what the assistant said; here it is just rendered."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def make_environment():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = datetime.datetime.fromisoformat(NOW).strftime
    return environment


ENVIRONMENT = make_environment()


@functools.lru_cache(maxsize=8)
def compiled(source):
    return ENVIRONMENT.from_string(source)


def reference(source, variables):
    """The text, or None where jinja2 raises."""
    try:
        # A copy: the filter `indent` changes a list that it is given.
        return compiled(source).render(**copy.deepcopy(variables))
    except Exception:  # whatever Python throws: types, keys, the template's own refusal
        return None


def renderer():
    """The program that renders with Spillway; skips where it is not built."""
    spillway = os.environ.get("SPILLWAY_BIN")
    folder = pathlib.Path(spillway).parent if spillway else ROOT / "build" / "release" / "bin"
    path = folder / "jinja_render"
    if not path.exists():
        pytest.skip(f"{path} is not built")
    return path


def answers(cases, trusted=()):
    """Spillway's results for [(source, variables)]: a list of {text, segments} or {error}."""
    lines = [
        json.dumps({"template": source, "variables": variables, "now": NOW, "trusted": list(trusted)})
        for source, variables in cases
    ]
    done = subprocess.run([renderer()], input="\n".join(lines) + "\n", capture_output=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    results = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(results) == len(cases)
    return results


def differences(cases):
    """The cases for which the two disagree: different texts, or an error of only one."""
    found = []
    for (source, variables), answer in zip(cases, answers(cases)):
        expected, actual = reference(source, variables), answer.get("text")
        if expected != actual:
            found.append(f"{source[:200]!r}\n  jinja2:   {expected!r}\n  spillway: {actual!r} {answer.get('error', '')}")
    return found
