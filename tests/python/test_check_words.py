# SPDX-License-Identifier: Apache-2.0
"""scripts/check_words.py: plain documents pass, banned words are found, and counts of allowed ones only go down."""

import pytest

from script_checks import run_check

CLEAN = "Layers are swapped, and two programs take turns. `spillway run`\n\n    at work, in a block of code\n"
HELP = '#include "cli/kv_turns.h"\n// somebody, in a comment\ncommand.add_flag("--x", "requests that run");\n'


def check(root, text="", help_text="", allowed="", *options):
    files = {"README.md": CLEAN + text, "src/cli/x_flags.cc": HELP + help_text, "scripts/words_allowed.txt": "# why\n" + allowed}
    return run_check("check_words.py", root, files, "--areas", "docs,help", *options)


def test_plain_words_pass(tmp_path):
    assert check(tmp_path) == (0, "docs, help: 0 words too often, 0 places allowed\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Some layers take turns there.\n", "README.md:4: take turns: say swapped layers"),
        ("A request gives way.\n", "README.md:4: give way: say is preempted"),
        ("`KvTurns` moves them.\n", "README.md:4: turns: say swapped layers, LayerSwapper"),
        ("    kv_turns.h\n", "README.md:4: turns: say swapped layers, LayerSwapper"),
    ],
)
def test_a_banned_word_in_a_document_is_found(tmp_path, line, message):
    code, output = check(tmp_path, line)
    assert code == 1
    assert message in output


def test_a_banned_word_in_a_help_text_is_found(tmp_path):
    code, output = check(tmp_path, "", 'command.add_flag("--y", "requests at work");\n')
    assert code == 1
    assert "src/cli/x_flags.cc:4: at work: say running, concurrent" in output


def test_prose_is_not_looked_for_in_code(tmp_path):
    assert check(tmp_path, "`somebody` is a name.\n")[0] == 0


def test_counts_of_allowed_words_only_go_down(tmp_path):
    assert check(tmp_path, "nobody, somebody\n", "", "docs somebody 1\n")[0] == 1
    assert check(tmp_path, "nobody, somebody\n", "", "docs somebody 2\n")[0] == 0
    code, output = check(tmp_path, "nobody\n", "", "docs somebody 2\n")
    assert code == 0
    assert "docs somebody is 1 by now, not 2" in output
    check(tmp_path, "nobody\n", "", "docs somebody 2\n", "--lower")
    assert (tmp_path / "scripts" / "words_allowed.txt").read_text() == "# why\ndocs somebody 1\n"


def test_all_areas_are_looked_at_unless_some_are_named(tmp_path):
    files = {"README.md": CLEAN, "src/kv/x.h": "int shared_buffers = 2;\n", "scripts/words_allowed.txt": ""}
    assert run_check("check_words.py", tmp_path, files) == (0, "docs, help, src: 0 words too often, 0 places allowed\n")


@pytest.mark.parametrize("line", ["int takes_turns(int layer);", "bool is_coming = false;", "void send_what_is_read();", "bool rows_away;"])
def test_a_banned_name_in_a_source_is_found(tmp_path, line):
    code, output = check(tmp_path, "", line + "\n", "src somebody 1\nsrc turns 1\n", "--areas", "src")
    assert code == 1
    assert "src/cli/x_flags.cc:4: " in output


def test_sources_are_an_area_of_their_own(tmp_path):
    assert check(tmp_path, "", "", "", "--areas", "src")[0] == 1
    code, output = check(tmp_path, "", "// Of a step's time.\n", "src somebody 1\nsrc turns 1\n", "--areas", "src")
    assert code == 1
    assert "src/cli/x_flags.cc:4: Of: say a sentence with a subject" in output
    assert "src: Of: 1 places, 0 allowed" in output
