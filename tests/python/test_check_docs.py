# SPDX-License-Identifier: Apache-2.0
"""scripts/check_docs.py: a clean folder passes, and each rule fails when it is broken."""

import pytest

from script_checks import run_check

CLEAN = "A [link](docs/other.md#a-part-and-more), [another](https://example.org/x), `[no](link)`.\n```\n[in](a block)\n```\n" + "x" * 159 + "\n"


def check(root, text):
    other = "Back to [the top](../README.md).\n\n## A `part`, and more\n"
    return run_check("check_docs.py", root, {"docs/other.md": other, "README.md": text})


def test_clean_documents_pass(tmp_path):
    assert check(tmp_path, CLEAN) == (0, "2 documents: 0 findings\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [("y" * 160, "README.md:6: 160 characters"), ("See [it](docs/none.md).", "README.md:6: docs/none.md does not exist"),
     ("See [it](docs/other.md#none).", "README.md:6: docs/other.md has no heading #none")],
)
def test_broken_rules_are_found(tmp_path, line, message):
    code, output = check(tmp_path, CLEAN + line + "\n")
    assert code == 1
    assert message in output


def test_a_readme_and_a_guide_that_are_too_long_are_found(tmp_path):
    code, output = check(tmp_path, "line\n" * 151)
    assert code == 1
    assert "README.md:151: 151 lines; at most 150" in output
    files = {"docs/other.md": "word " * 30 + "\n", "docs/guide.md": ("word " * 30 + "\n") * 51, "docs/notes/note.md": ("word " * 30 + "\n") * 51}
    (tmp_path / "guides").mkdir()
    code, output = run_check("check_docs.py", tmp_path / "guides", files)
    assert (code, "docs/guide.md:1: 1530 words; at most 1500" in output, "note.md" in output) == (1, True, False)
