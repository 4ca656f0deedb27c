# SPDX-License-Identifier: Apache-2.0
"""The memory that a run is estimated to need is that of its own work, not more; and a refusal names only options that help."""

import re

import pytest

from conftest import end_process

FAILED = 1
MIB = 1 << 20
CPU = ["--device", "cpu"]
MODEL = "dummy:opt-125m"  # F16, KV of 36 KiB a token, 2,048 tokens of context
WEIGHTS_MIB = 240
FULL_CONTEXT_KV_MIB = 72


def advice(done):
    """The options that a refusal names, each with its value."""
    done.assert_one_line_error(FAILED)
    return dict(re.findall(r"(--[a-z-]+)(?: ([^\s,;]+))?", done.err))


def arguments(*options, tokens=3, answer=4):
    ids = ",".join(str(5 + i) for i in range(tokens))
    return ["run", MODEL, "--ids", ids, "-n", answer, "--ignore-end", *CPU, *options]


def run(spillway, *options, **sizes):
    return spillway.run(*arguments("--json", *options, **sizes))


def begins(spillway, *options, **sizes):
    """Whether a run is not refused; it is ended as soon as it prints something."""
    process = spillway.start(*arguments(*options, **sizes))
    try:
        return process.stdout.read(1) != b""
    finally:
        end_process(process)


def test_a_short_run_needs_little_beside_the_weights(spillway):
    done = run(spillway, "--host-memory", f"{WEIGHTS_MIB + FULL_CONTEXT_KV_MIB - 20}MiB", answer=20)
    assert len(done.json()["ids"]) == 20


@pytest.mark.parametrize(
    "command",
    [
        ["eval", "--text", "text", "--ctx", "64", "--max-windows", "1"],
        ["logits", "--ids", "5,6,7", "-o", "logits"],
        ["bench", "--prompt-len", "16", "--gen-len", "4", "--repeat", "1"],
    ],
    ids=lambda command: command[0],
)
def test_so_do_other_commands(spillway, tiny_model, tmp_path, command):
    """A tiny model with its context of 512 tokens: 128 KiB of KV, and next to nothing for a few tokens."""
    (tmp_path / "text").write_text("The river was wide, and in the morning he said: there is a way. " * 20)
    tight = spillway.run(command[0], tiny_model, *command[1:], *CPU, "--threads", 1, "--host-memory", "1KiB", cwd=tmp_path)
    least = advice(tight)["--host-memory"]
    done = spillway.run(command[0], tiny_model, *command[1:], *CPU, "--threads", 1, "--host-memory", least, cwd=tmp_path)
    assert done.code == 0, done.err


def test_a_long_run_that_does_not_fit_names_what_helps_and_it_does(spillway):
    tight = ["--host-memory", f"{WEIGHTS_MIB + 60}MiB"]
    sizes = {"tokens": 200, "answer": 1800}
    named = advice(run(spillway, *tight, **sizes))
    assert {"--ctx", "--kv-type", "--host-memory"} <= set(named)
    assert 200 < int(named["--ctx"]) < 2000
    for option in ("--ctx", "--kv-type", "--host-memory"):
        others = [] if option == "--host-memory" else tight
        assert begins(spillway, *others, option, named[option], **sizes), option
    # The longest context that helps fits; one more block of tokens does not.
    done = run(spillway, *tight, "--ctx", int(named["--ctx"]) + 16, **sizes)
    assert "--ctx" in advice(done)


def test_a_refusal_does_not_name_what_is_done_already(spillway):
    tight = ["--host-memory", f"{WEIGHTS_MIB - 100}MiB", "--threads", "1"]
    named = advice(run(spillway, *tight, "--kv-type", "int4"))
    assert "--host-memory" in named and "--compress-weights" in named
    assert not {"--kv-type", "--ctx", "--compress-kv"} & set(named), "the weights are what does not fit"
    named = advice(run(spillway, "--host-memory", "20MiB", "--compress-weights"))
    assert "--compress-weights" not in named and "--kv-type" not in named


def test_a_batch_takes_as_many_requests_at_once_as_fit(spillway, tmp_path, tiny_model):
    line = '{"custom_id": "%d", "method": "POST", "url": "/v1/completions", "body": {"prompt": "The river", "max_tokens": 4}}\n'
    (tmp_path / "in").write_text("".join(line % n for n in range(40)))
    arguments = ["batch", tiny_model, tmp_path / "in", "-o", tmp_path / "out", *CPU, "--threads", "1", "--json"]
    least = advice(spillway.run(*arguments, "--host-memory", "1KiB"))["--host-memory"]
    assert spillway.run(*arguments, "--host-memory", least).json()["requests"] == 40


# Mapped weights.


def test_mapped_weights_are_host_memory_in_reports(spillway, tiny_model):
    model = spillway.run("inspect", tiny_model, "--json").json()
    weights = model["model"]["weight_bytes"]
    needs = model["needs"]
    assert needs["host_bytes_by_tag"]["weights"] == pytest.approx(weights, rel=0.05)
    assert needs["host_bytes"] == sum(needs["host_bytes_by_tag"].values())
    report = spillway.run("bench", tiny_model, *CPU, "--prompt-len", "8", "--gen-len", "4", "--repeat", "1", "--json").json()
    assert report["mapped_weight_bytes"] in (0, pytest.approx(weights, rel=0.05)), "all of them, or none"
    assert report["mapped_weight_bytes"] == needs["mapped_weight_bytes"]
    tier = report["tiers"]["host"]
    assert tier["peak_bytes_by_tag"]["weights"] == pytest.approx(weights, rel=0.05)
    assert tier["peak_bytes"] >= weights
    assert "weights" in spillway.run("inspect", tiny_model).out.split("memory")[1].splitlines()[0]
