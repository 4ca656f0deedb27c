# SPDX-License-Identifier: Apache-2.0
"""README's commands, and those of docs/. README's blocks are run as they stand, with the files that they name and a bound
on what they generate; a command that is added there needs an entry here. Some blocks of docs/ are run, too. All other
commands and flags, in texts, in docs/ and in the examples of --help-all, are looked up in --help-all.

What `spillway plan` answers is shown as it is: blocks, and the refusal in planning.md; so is the code of families.md.
SPILLWAY_WRITE_EXAMPLES=1 writes today's answers into the blocks instead, for `git diff` to be read."""

import json
import os
import re
import shlex
import subprocess
import urllib.request

import conftest
import pytest

README = (conftest.ROOT / "README.md").read_text()
GUIDES = {path.name: path.read_text() for path in sorted((conftest.ROOT / "docs").glob("*.md"))}
NOTES = [path.read_text() for path in sorted((conftest.ROOT / "docs" / "notes").glob("*.md"))]
CODE = re.compile(r"`([^`]+)`")
# Commands in blocks that belong to the repository rather than to the program.
NOT_RUN = ("scripts/quickstart.sh", "export PATH=$PWD/build/product/bin:$PATH")
# Flags in the texts that other programs have, and one that the program has itself.
FOREIGN_FLAGS = {"--preset", "--install", "--build", "--prefix", "--help", "--version", "--cell", "--raw-reads"}


def block_lines(text):
    return [line[4:] for line in text.splitlines() if line.startswith("    ") and line[4:5].strip()]


def block_commands():
    """The lines of README's indented blocks, without comments."""
    return [" ".join(shlex.split(line, comments=True, posix=False)) for line in block_lines(README)]


def guide_commands():
    """The commands of the indented blocks of docs/, without comments."""
    lines = [line for text in GUIDES.values() for line in block_lines(text) if line.startswith("spillway ")]
    return [" ".join(shlex.split(line, comments=True, posix=False)) for line in lines]


def text_commands():
    """Commands in the text: "spillway run MODEL TEXT"."""
    texts = [text.replace("\n", " ") for text in (README, *GUIDES.values())]
    found = [code for text in texts for code in CODE.findall(text) if re.search(r"(^|\| )spillway \S", code)]
    return sorted({re.sub(r"^.*\| ", "", code) for code in found})


@pytest.fixture(scope="module")
def help_of(spillway):
    """help_of("run") and help_of("predictor train") return the text of --help-all; an unknown command fails the test."""
    known = {}

    def look_up(command):
        if command not in known:
            done = spillway.run(*command.split(), "--help-all")
            assert done.code == 0, f"spillway {command}: {done.err}"
            known[command] = done.out
        return known[command]

    return look_up


def commands_in(text):
    """The names of the commands that help lists."""
    return re.findall(r"^  ([a-z]+)  +\S", text, re.MULTILINE)


def command_of(words, help_of):
    """The command that a line's words name: ["predictor", "train"]."""
    names = []
    while words and words[0] in commands_in(help_of(" ".join(names))):
        names.append(words.pop(0))
    return " ".join(names)


def flags_of(text):
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))


def required_flags(text):
    """[{"-m", "--model"}]: the options that cannot be left out, without those that are positional arguments, too."""
    entries = re.findall(r"^  (-.*\n(?:   .*\n)*)", text, re.MULTILINE)
    return [flags_of(entry.splitlines()[0].split("  ")[0]) for entry in entries if "; required" in re.sub(r"\s+", " ", entry)]


def check_flags(line, help_of):
    """Checks that a command line names a command, and only flags that it has; returns the command, "" for a placeholder."""
    words = line.split()[1:]
    while words and words[0].startswith("-"):  # flags of the program, such as --without-cpu-features LIST
        assert words[0] in flags_of(help_of(""))
        words = words[2:]
    if not words or words[0] == "COMMAND":
        return ""
    command = command_of(words, help_of)
    assert command, f"no such command: {line}"
    missing = flags_of(" ".join(words)) - flags_of(help_of(command))
    assert not missing, f"spillway {command} has no {missing}"
    return command


@pytest.mark.parametrize("line", text_commands())
def test_a_command_in_the_text_exists_with_its_flags(line, help_of):
    command = check_flags(line, help_of)
    if command and re.search(r"\b[A-Z]{4,}\b", line):  # shown as a whole, not only mentioned
        needed = required_flags(help_of(command))
        assert all(names & set(line.split()) for names in needed), f"spillway {command} needs {needed}"


def test_commands_in_the_documents_exist_with_their_flags(help_of):
    lines = re.findall(r"^    (?:.*\| )?(spillway [^#\n|]*)", "".join([*GUIDES.values(), *NOTES]), re.MULTILINE)
    assert len(lines) > 10
    for line in lines:
        check_flags(line, help_of)


def test_examples_of_help_exist_with_their_flags(help_of):
    for command in [*commands_in(help_of("")), "predictor train", "predictor eval"]:
        text = re.sub(r" \\\n +", " ", help_of(command))
        for line in re.findall(r"^  (?:.*\| )?(spillway [^#\n|(]*)", text, re.MULTILINE):
            check_flags(line, help_of)


def test_every_flag_in_the_text_is_one_of_some_command(help_of):
    top = help_of("")
    commands = [*commands_in(top), "predictor train", "predictor eval"]
    known = flags_of(top).union(*(flags_of(help_of(command)) for command in commands)) | FOREIGN_FLAGS
    for name, text in {"README.md": README, **GUIDES}.items():
        text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
        named = set().union(*(re.findall(r"(?<![\w-])--[a-z][a-z-]*", code) for code in CODE.findall(text)))
        assert named <= known, f"{name} names flags that no command has: {named - known}"


@pytest.fixture
def folder(tmp_path, chat_model, tiny_model, tiny_folder):
    """A folder with the files that README's commands read, and a cache with smollm2."""
    models = tmp_path / "cache" / "spillway" / "models"
    models.mkdir(parents=True)
    (models / conftest.SMOLLM2).symlink_to(chat_model)
    (tmp_path / "llama-2-13b-chat.Q4_K_M.gguf").symlink_to(chat_model)
    (tmp_path / "model.gguf").symlink_to(tiny_model)
    (tmp_path / "model-F16.gguf").symlink_to(tiny_model)
    (tmp_path / "Llama-3.2-1B").symlink_to(tiny_folder)
    (tmp_path / "prompt.txt").write_text("The river was wide.")
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n1,12,4\n2,8,3\n3,5,6\n")
    request = re.search(r'^`(\{"custom_id".*?\})`', GUIDES["batch.md"], re.MULTILINE).group(1)
    message = json.dumps([{"role": "user", "content": "Name a river."}])
    (tmp_path / "requests.jsonl").write_text(request.replace("[...]", message) + "\n")
    return tmp_path


class Here:
    """Runs a command line of README in the folder."""

    def __init__(self, spillway, folder):
        self.spillway = spillway
        self.folder = folder
        self.env = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}

    def run(self, line, *bounds, stdin=""):
        arguments = [argument for argument in shlex.split(line)[1:]]
        done = self.spillway.run(*arguments, *bounds, stdin=stdin, env=self.env, cwd=self.folder)
        assert done.code == 0, f"{line}: {done.err}"
        return done.out

    def serve(self, line):
        process = self.spillway.start(*shlex.split(line)[1:], "--port", "0", env=self.env, cwd=self.folder, stdout=subprocess.PIPE)
        try:
            address = re.search(rb"http://\S+", process.stdout.readline()).group().decode()
            with urllib.request.urlopen(address + "/v1/models", timeout=30) as answer:
                return json.load(answer)["data"][0]["id"]
        finally:
            process.terminate()
            process.communicate(timeout=30)


PAGES = [conftest.ROOT / "README.md", *sorted((conftest.ROOT / "docs").glob("*.md"))]
WRITE_EXAMPLES = bool(os.environ.get("SPILLWAY_WRITE_EXAMPLES"))


def prints_what_is_shown(here, line):
    """The fenced block below the command is what it prints, but for the line of the machine where the page has none. A block
    that ends with a line "..." shows the first lines alone."""
    for page in PAGES:
        text = page.read_text()
        found = re.search(rf"^    {re.escape(line)}\n\n```\n(.*?)```", text, re.MULTILINE | re.DOTALL)
        if not found:
            continue
        printed = here.run(line)
        if not re.search("^machine ", found.group(1), re.MULTILINE):
            printed = re.sub("^machine .*\n", "", printed, flags=re.MULTILINE)
        if found.group(1).endswith("\n...\n"):
            first = found.group(1).count("\n") - 1
            printed = "".join(printed.splitlines(keepends=True)[:first]) + "...\n"
        if WRITE_EXAMPLES:
            page.write_text(text[: found.start(1)] + printed + text[found.end(1) :])
        return WRITE_EXAMPLES or printed == found.group(1)
    return False


# The check of each command's output or files.
RUN = {
    "spillway plan smollm2": lambda here, line: "weights" in here.run(line),
    "spillway plan dummy:llama-2-13b:q4_0 --hardware laptop --gpu-memory 8GiB --prompt-len 3584 --gen-len 512": prints_what_is_shown,
    "spillway plan dummy:llama-2-13b:q8_0 --hardware laptop --gpu-memory 8GiB": prints_what_is_shown,
    "spillway plan dummy:opt-30b --hardware h200 --gpu-memory 16GiB --host-memory 100GiB --requests 64": prints_what_is_shown,
    "spillway plan llama-2-13b-chat.Q4_K_M.gguf": lambda here, line: "weights" in here.run(line),
    "spillway chat llama-2-13b-chat.Q4_K_M.gguf": lambda here, line: here.run(line, "-n", "8", stdin="Name three rivers.\n").strip(),
    "spillway serve llama-2-13b-chat.Q4_K_M.gguf": lambda here, line: here.serve(line) == "llama-2-13b-chat.Q4_K_M",
    "spillway chat smollm2": lambda here, line: here.run(line, "-n", "8", stdin="Name three rivers.\n").strip(),
    "spillway run smollm2 --chat 'Tell me about rivers.'": lambda here, line: here.run(line, "-n", "8").strip(),
    "spillway run smollm2 'The capital of France is' -n 16": lambda here, line: "Paris" in here.run(line),
    "spillway run model.gguf -f prompt.txt --temp 0.8 --seed 7": lambda here, line: here.run(line, "-n", "4"),
    "spillway serve smollm2": lambda here, line: here.serve(line) == "smollm2",
    "spillway convert Llama-3.2-1B/ llama.gguf --type q4_k_m": lambda here, line: [
        here.run(line), here.run("spillway inspect llama.gguf")
    ],
    "spillway convert model-F16.gguf model-Q8_0.gguf --type q8_0": lambda here, line: [
        here.run(line), here.run("spillway inspect model-Q8_0.gguf")
    ],
    "spillway batch smollm2 requests.jsonl -o results.jsonl": lambda here, line: [
        here.run(line), json.loads((here.folder / "results.jsonl").read_text())["response"]["status_code"] == 200
    ][1],
    # A model of a tenth of the size is used; the path through the program is the same.
    "spillway bench dummy:opt-1.3b --lengths trace.csv --requests 500 --batch 32 --schedule diagonal": lambda here, line: here.run(
        line.replace("opt-1.3b", "opt-125m")
    ),
}  # fmt: skip


@pytest.mark.parametrize("line", block_commands())
def test_a_command_in_a_block_runs(line, spillway, folder):
    if line in NOT_RUN:
        assert not line.startswith("scripts/") or os.access(conftest.ROOT / line, os.X_OK)
        return
    assert line in RUN, f"README has a command that this test does not run: {line}"
    assert RUN[line](Here(spillway, folder), line)


@pytest.mark.parametrize("line", [line for line in RUN if line not in block_commands()])
def test_a_command_of_a_guide_runs(line, spillway, folder):
    assert line in guide_commands(), f"no document has this command any more: {line}"
    assert RUN[line](Here(spillway, folder), line)


def test_a_pipe_into_chat_answers(spillway, folder):
    line = "echo 'Name three rivers.' | spillway chat smollm2"
    assert f"`{line}`" in GUIDES["chat.md"]
    assert Here(spillway, folder).run(line.split("| ")[1], "-n", "8", stdin="Name three rivers.\n").strip()


def test_every_plan_with_a_named_machine_is_run():
    """The answer shown below a command is compared with what the program says (RUN)."""
    for page in PAGES:
        for line in re.findall(r"^    (spillway plan .*)\n\n```\n", page.read_text(), re.MULTILINE):
            assert "--hardware" in line, f"{page.name}: an answer that depends on the machine"
            assert RUN.get(line) is prints_what_is_shown, f"{page.name}: add to RUN: {line}"


def test_a_refusal_is_shown_as_it_is(spillway):
    line, shown = re.search(r"`(spillway plan [^`]*)` ends with\n\n((?:    .*\n)+)", GUIDES["planning.md"]).groups()
    done = spillway.run(*line.split()[1:])
    assert done.code == 1
    assert done.err.strip().endswith(" ".join(shown.split()))


@pytest.mark.parametrize("block", re.findall(r"```(?:cpp|python)\n(.*?)```", GUIDES.get("families.md", ""), re.DOTALL))
def test_code_that_is_shown_is_in_the_sources(block):
    """The first line names the file; "..." stands for lines that are left out."""
    name, *lines = block.splitlines()
    source = iter((conftest.ROOT / name.lstrip("/# ")).read_text().splitlines())
    for line in lines:
        assert line.strip() == "..." or line in source, f"{name} has no such line there: {line}"
