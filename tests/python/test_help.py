# SPDX-License-Identifier: Apache-2.0
"""What --help, --help-all and spillway help say of every command: few options first, all on request, lines that fit a terminal."""

import re

import pytest

MOST_COLUMNS = 80
MOST_OPTIONS = 12
# An entry of an option or an argument begins with two blanks; the lines of its text stand further right.
ENTRY = re.compile(r"^  ((?:-|[A-Z]{2,})\S*(?: .*)?\n(?:   .*\n)*)", re.MULTILINE)
COMMANDS = ["chat", "run", "serve", "batch", "plan", "profile", "bench", "eval", "list", "inspect", "convert", "tokenize",
            "predictor train", "predictor eval", "help", "logits", "predictor embed"]  # fmt: skip


def help_of(spillway, *words):
    done = spillway.run(*words)
    assert (done.code, done.err) == (0, "")
    wide = [line for line in done.out.splitlines() if len(line) > MOST_COLUMNS]
    assert not wide
    return done.out


def entries_of(text):
    """The entries of options and arguments, each on one line."""
    return [re.sub(r"\s+", " ", entry) for entry in ENTRY.findall(text)]


def flags_of(text):
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))


def test_the_commands_here_are_all_that_the_program_lists(spillway):
    listed = re.findall(r"^  ([a-z]+)  +\S", help_of(spillway, "--help"), re.MULTILINE)
    assert set(listed) == {command.split()[0] for command in COMMANDS} - {"logits"}
    assert "spillway chat smollm2" in help_of(spillway, "--help")
    listed = re.findall(r"^  ([a-z]+)  +\S", help_of(spillway, "predictor", "--help"), re.MULTILINE)
    assert listed == ["train", "eval"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_few_options_and_says_where_the_others_are(spillway, command):
    text = help_of(spillway, *command.split(), "--help")
    lines = text.splitlines()
    assert lines[0].startswith(f"Usage: spillway {command}")
    assert lines[1] == "" and lines[2].endswith(".")
    assert 1 <= len(entries_of(text)) <= MOST_OPTIONS
    assert lines[-1] == f"more: spillway {command} --help-all"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_all_has_what_help_has_and_more(spillway, command):
    short = help_of(spillway, *command.split(), "--help")
    full = help_of(spillway, *command.split(), "--help-all")
    assert set(entries_of(short)) < set(entries_of(full))
    assert flags_of(full) >= {"--help", "--help-all", "--verbose", "--without-cpu-features"}
    texts = [entry.split(" ", 1)[-1] for entry in entries_of(full)]
    assert all(re.search(r"[a-z]{2,} ", text) for text in texts), "an option has no text"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_command_says_what_the_flags_say(spillway, command):
    words = command.split()
    assert help_of(spillway, "help", *words) == help_of(spillway, *words, "--help")
    assert help_of(spillway, "help", "--all", *words) == help_of(spillway, *words, "--help-all")
    assert help_of(spillway, "help", *words, "--all") == help_of(spillway, *words, "--help-all")


def test_help_all_names_the_options_that_experts_need(spillway):
    experts = {"--weights", "--kv", "--micro-batch", "--schedule", "--cpu-linear", "--kv-expansion"}
    for command in ("serve", "batch", "bench", "plan"):
        assert experts <= flags_of(help_of(spillway, command, "--help-all"))
        assert not experts & flags_of(" ".join(entries_of(help_of(spillway, command, "--help"))))


def test_defaults_are_named(spillway):
    text = " ".join(entries_of(help_of(spillway, "run", "--help-all")))
    for option, default in (("--max-tokens N", "128"), ("--top-k N", "0"), ("--device NAME", "auto"), ("--draft off|lookup", "off")):
        assert re.search(rf"{re.escape(option)} [^;]*(; [^;]*)?; default: {default} ", text + " "), option


def test_a_misspelled_option_that_only_help_all_shows_is_suggested(spillway, tiny_model):
    done = spillway.run("run", tiny_model, "x", "--wieghts", "1,0,0")
    done.assert_one_line_error(2)
    assert "did you mean --weights?" in done.err


def test_help_families_lists_what_runs(spillway):
    text = help_of(spillway, "help", "families")
    assert all(len(line) <= 80 for line in text.splitlines())
    for word in ("gemma3_text", "chatglm", "falcon-7b", "gpt-j-6b"):
        assert word in text.split(), word
    assert "bloom-176b" not in text  # a shape for planning alone
