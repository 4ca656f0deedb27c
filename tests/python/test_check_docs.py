# SPDX-License-Identifier: Apache-2.0
"""scripts/check_docs.py: a clean folder passes, and each rule fails when it is broken."""

import pytest

from script_checks import run_check

CLEAN = "A [link](docs/other.md#part), [another](https://example.org/x), `[no](link)`.\n```\n[in](a block)\n```\n" + "x" * 159 + "\n"


def check(root, text):
    other = "Back to [the top](../README.md).\n"
    return run_check("check_docs.py", root, {"docs/other.md": other, "README.md": text})


def test_clean_documents_pass(tmp_path):
    assert check(tmp_path, CLEAN) == (0, "2 documents: 0 findings\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [("y" * 160, "README.md:6: 160 characters"), ("See [it](docs/none.md).", "README.md:6: docs/none.md does not exist")],
)
def test_broken_rules_are_found(tmp_path, line, message):
    code, output = check(tmp_path, CLEAN + line + "\n")
    assert code == 1
    assert message in output
