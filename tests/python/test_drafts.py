# SPDX-License-Identifier: Apache-2.0
"""--draft: answers equal those without it, byte for byte; if each token costs as much as a step, no drafts are proposed."""

import json
import signal
import subprocess

import pytest

from serve_checks import server_fixture
from test_batch import Job, mixed_requests, request

# Every layer comes from the disk, so that a step with more tokens takes no longer.
STREAMED = ["--device", "cpu", "--weights", "0,0,100", "--disk-memory", "1GiB"]
LOOKUP = ["--draft", "lookup"]
# An answer that repeats itself, as small models' do.
REPEATED = "the river was wide and the river was wide and the river was wide and the"

server = server_fixture("--ctx", "512", "--max-sequences", "2", "--deterministic", *STREAMED, *LOOKUP)


def run_json(spillway, model, *options):
    done = spillway.run("run", model, REPEATED, "-n", "80", "--ignore-end", "--deterministic", "--json", *options)
    assert done.code == 0, done.err
    return done.json()


@pytest.mark.parametrize("sampling", [["--temp", "0"], ["--temp", "0.7", "--seed", "3"], ["--temp", "0", "--repetition-penalty", "1.2"]])
def test_answers_are_those_without(spillway, tiny_model, tmp_path, sampling):
    options = [*STREAMED, "--disk-dir", tmp_path, *sampling, "--logprobs", "2"]
    without, with_drafts = run_json(spillway, tiny_model, *options), run_json(spillway, tiny_model, *options, *LOOKUP)
    assert without["draft_proposed"] == without["draft_accepted"] == 0
    for field in ("ids", "text", "logprobs", "finish_reason"):
        assert with_drafts[field] == without[field]


def test_drafts_are_proposed_where_weights_stream(spillway, tiny_model, tmp_path):
    answer = run_json(spillway, tiny_model, *STREAMED, "--disk-dir", tmp_path, "--temp", "0", *LOOKUP, "--logit-bias", "5=40")
    assert answer["ids"] == [5] * 80
    assert 50 < answer["draft_accepted"] <= answer["draft_proposed"]


def batch_requests():
    lines = mixed_requests(40)
    for n in range(10):
        fields = {"max_tokens": 60, "n": 1 + n % 3, "temperature": 0.4 if n % 2 else 0, "ignore_eos": True}
        lines.append(request(f"again{n}", {"prompt": REPEATED[n:], "frequency_penalty": 0.1 * (n % 4), "logprobs": n % 3} | fields))
    return lines


def test_kills_change_no_byte_of_a_batch(spillway, tiny_model, tmp_path):
    folders = [tmp_path / name for name in ("without", "with")]
    for folder in folders:
        folder.mkdir()
    options = [*STREAMED, "--disk-dir", tmp_path, "--max-sequences", "3"]
    without = Job(spillway, tiny_model, folders[0], batch_requests(), *options)
    without.results()
    made = Job(spillway, tiny_model, folders[1], batch_requests(), *options, *LOOKUP)
    for finished in (3, 17, 31):
        code, _, error = made.stop_after(finished, signal.SIGKILL)
        assert code in (-signal.SIGKILL, 0), error
    # A job resumed without drafts is the same job.
    made.arguments = made.arguments[: -len(LOOKUP)]
    made.stop_after(40)
    made.arguments += LOOKUP
    done = subprocess.run(spillway.command(*made.arguments, "--json"), capture_output=True, check=True, timeout=120)
    assert json.loads(done.stdout)["draft_proposed"] > 0
    assert made.output.read_bytes() == without.output.read_bytes()


@pytest.mark.xdist_group("drafts_server")
def test_a_server_says_how_many_were_right(server, spillway, tiny_model):
    answer = server.complete(prompt=REPEATED, max_tokens=80, ignore_eos=True, logit_bias={"5": 40})
    details = answer["usage"]["completion_tokens_details"]
    accepted, rejected = details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]
    assert accepted > 50 and answer["usage"]["completion_tokens"] == 80
    values = server.metrics()
    assert values["spillway_draft_accepted_tokens_total"] >= accepted
    assert values["spillway_draft_proposed_tokens_total"] >= accepted + rejected
    *events, last = server.stream("/v1/completions", prompt=REPEATED, max_tokens=80, ignore_eos=True, logit_bias={"5": 40},
                                  stream_options={"include_usage": True})  # fmt: skip
    assert last["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 50
    assert "".join(event["choices"][0]["text"] for event in events) == answer["choices"][0]["text"]


def bench(spillway, *options):
    done = spillway.run("bench", "dummy:opt-125m", "--device", "cpu", "--prompt-len", "8", "--repeat", "1", "--json", *options)
    assert done.code == 0, done.err
    return done.json()


def test_bench_accepts_as_often_as_it_is_told(spillway):
    result = bench(spillway, "--gen-len", "81", "--draft-acceptance", "1", "--draft-tokens", "3")
    assert result["decode"]["steps"] == 20 and result["draft_accepted"] == result["draft_proposed"] == 60
    result = bench(spillway, "--gen-len", "60", "--draft-acceptance", "0")
    assert result["draft_accepted"] == 0 < result["draft_proposed"]
    assert result["decode"]["steps"] == 59
    assert bench(spillway, "--gen-len", "4")["draft_proposed"] == 0


@pytest.mark.parametrize(("command", "what"), [
    (["run", "MODEL", "Hi", "--draft", "model"], "--draft"),
    (["bench", "MODEL", "--draft-acceptance", "0.5"], "dummy"),
    (["bench", "dummy:opt-125m", "--draft-acceptance", "1.5"], "--draft-acceptance"),
    (["bench", "dummy:opt-125m", "--draft-acceptance", "x"], "--draft-acceptance"),
    (["bench", "dummy:opt-125m", "--draft-acceptance", "0.5", "--draft-tokens", "9"], "--draft-tokens"),
    (["bench", "dummy:opt-125m", "--draft-tokens", "2"], "--draft-acceptance"),
    (["bench", "dummy:opt-125m", "--draft", "lookup", "--draft-acceptance", "0.5"], "--draft"),
])  # fmt: skip
def test_bad_options_are_one_line(spillway, tiny_model, command, what):
    done = spillway.run(*[tiny_model if word == "MODEL" else word for word in command])
    done.assert_one_line_error(2)
    assert what in done.err
