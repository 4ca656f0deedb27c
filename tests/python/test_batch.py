# SPDX-License-Identifier: Apache-2.0
"""spillway batch: requests in, results out, and the same bytes however often the job is killed on its way."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time

import pytest
import tiny_llama

from conftest import end_process

FAILED = 1
WRONG_USAGE = 2
WORDS = "the river was wide and in the morning he said there is a house on the other side of it".split()


def request(custom_id, body, url="/v1/completions", **fields):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body} | fields


def chat(custom_id, text, **fields):
    return request(custom_id, {"messages": [{"role": "user", "content": text}]} | fields, "/v1/chat/completions")


def write_lines(path, lines):
    """Writes a line for each request; text is written unchanged."""
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def mixed_requests(count, seed=7):
    """Chats and completions, short and long, greedy and sampled, with and without a seed; and a few that cannot be answered."""
    draw = random.Random(seed)
    lines = []
    for n in range(count):
        text = " ".join(draw.choices(WORDS, k=draw.randint(1, 60)))
        options = {"max_tokens": draw.randint(1, 60), "temperature": draw.choice([0, 0.8, 1])}
        if n % 3 == 0:
            options["seed"] = n
        lines.append(chat(f"c{n}", text, **options) if n % 2 else request(f"t{n}", {"prompt": text} | options))
        if n % 10 == 4:
            lines.append(request(f"bad{n}", {"prompt": text, "temperature": -1}))
        if n % 10 == 8:
            lines += ["", "nonsense"]
    return lines


class Job:
    """A batch job in a folder of its own; results go to out.jsonl."""

    def __init__(self, spillway, model, folder, lines, *options):
        self.spillway, self.folder = spillway, folder
        self.input = write_lines(folder / "in.jsonl", lines)
        self.output = folder / "out.jsonl"
        self.journal = folder / "out.jsonl.partial"
        self.arguments = ["batch", model, self.input, "-o", self.output, *options]

    def run(self, *options, **settings):
        return self.spillway.run(*self.arguments, *options, **settings)

    def results(self, *options):
        done = self.run(*options)
        assert done.code == 0, done.err
        assert sorted(os.listdir(self.folder)) == ["in.jsonl", "out.jsonl"], "nothing else is left behind"
        return read_lines(self.output)

    def finished(self):
        """The number of complete results in the journal, whose first line describes the job."""
        return max(0, self.journal.read_bytes().count(b"\n") - 1) if self.journal.exists() else 0

    def stop_after(self, results, number=signal.SIGKILL):
        """Starts the job and sends it a signal once that many results are in the journal; returns how it ended."""
        process = self.spillway.start(*self.arguments)
        try:
            deadline = time.monotonic() + 60
            while self.finished() < results and process.poll() is None:
                assert time.monotonic() < deadline, f"{self.finished()} results after a minute"
                time.sleep(0.001)
            process.send_signal(number)
            output, error = process.communicate(timeout=30)
        finally:
            end_process(process)
        return process.returncode, output, error


@pytest.fixture
def job(spillway, tiny_model, tmp_path):
    """job(lines, options...) makes one."""
    return lambda lines, *options: Job(spillway, tiny_model, tmp_path, lines, *options)


# Results.


def test_results_look_as_openais_and_come_in_the_order_of_the_requests(spillway, tiny_model, job):
    lines = [chat("talk", "The river", max_tokens=9, temperature=0), request("text", {"prompt": "The river", "temperature": 0})]
    first, second = job(lines).results()
    assert list(first) == ["id", "custom_id", "response", "error"]
    assert (first["custom_id"], first["error"], first["response"]["status_code"]) == ("talk", None, 200)
    body = first["response"]["body"]
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-") and body["model"] == "tiny"
    choice = body["choices"][0]
    assert (choice["index"], choice["finish_reason"], choice["message"]["role"]) == (0, "length", "assistant")
    usage = body["usage"]
    assert usage["completion_tokens"] == 9 and usage["total_tokens"] == usage["prompt_tokens"] + 9
    # The same text as the other commands give.
    run = spillway.run("run", tiny_model, "-p", "The river", "-n", "16", "--temp", "0", "--deterministic", "--json").json()
    body = second["response"]["body"]
    assert body["object"] == "text_completion" and body["choices"][0]["text"] == run["text"]
    assert body["usage"] == {"prompt_tokens": len(run["prompt_ids"]), "completion_tokens": 16,
                             "total_tokens": len(run["prompt_ids"]) + 16}  # fmt: skip
    assert first["id"] != second["id"]


def test_every_field_does_what_it_says(spillway, tiny_model, job):
    ids = spillway.run("tokenize", tiny_model, "-p", "The river", "--json").json()["ids"]
    greedy = {"prompt": "The river", "temperature": 0, "max_tokens": 24}
    drawn = {"prompt": "The river", "max_tokens": 24}
    lines = [
        request("greedy", greedy),
        request("ids", greedy | {"prompt": ids}),
        request("nested ids", greedy | {"prompt": [ids]}),
        request("seed 1", drawn | {"seed": 1}),
        request("seed 1 again", drawn | {"seed": 1}),
        request("seed 2", drawn | {"seed": 2}),
        request("no seed", drawn),
        request("no seed either", drawn),
        request("top_k 1", drawn | {"top_k": 1}),
        request("top_p 0", drawn | {"top_p": 0}),
        request("min_p 1", drawn | {"min_p": 1}),
        request("penalty", greedy | {"repetition_penalty": 50}),
        request("presence", greedy | {"presence_penalty": 50}),
        request("bias", greedy | {"logit_bias": {"90": 100}}),
        request("neutral", greedy | {"n": 1, "best_of": 1, "echo": False, "stream": False, "user": "me", "stop": None}),
    ]
    by_id = {line["custom_id"]: line["response"]["body"] for line in job(lines).results()}
    text = {name: body["choices"][0]["text"] for name, body in by_id.items()}
    for same in ("ids", "nested ids", "top_k 1", "top_p 0", "min_p 1", "neutral"):
        assert text[same] == text["greedy"], same
    assert text["seed 1"] == text["seed 1 again"] != text["seed 2"]
    assert text["no seed"] != text["no seed either"], "requests without a seed do not all draw the same"
    assert len({text["greedy"], text["penalty"], text["presence"], text["bias"]}) == 4
    assert text["bias"] == tiny_llama.TOKENS[90] * 24
    stop = text["greedy"][10:12]
    stopped = job([request("stop", greedy | {"stop": stop})]).results("--restart")[0]["response"]["body"]["choices"][0]
    assert stopped["text"] == text["greedy"][: text["greedy"].index(stop)]
    assert stopped["finish_reason"] == "stop"


def test_logprobs_come_where_they_are_asked_for(spillway, tiny_model, job):
    lines = [
        request("text", {"prompt": "The river", "temperature": 0, "logprobs": 3, "max_tokens": 5}),
        chat("chat", "The river", temperature=0, logprobs=True, top_logprobs=2, max_tokens=5),
    ]
    text, talk = (line["response"]["body"]["choices"][0] for line in job(lines).results())
    run = spillway.run(
        "run", tiny_model, "-p", "The river", "-n", "5", "--temp", "0", "--logprobs", "3", "--deterministic", "--json"
    ).json()
    assert text["logprobs"]["token_logprobs"] == [entry["logprob"] for entry in run["logprobs"]]
    assert "".join(text["logprobs"]["tokens"]) == text["text"]
    # The same requests by `run`: ids with their text.
    assert [entry["id"] for entry in run["logprobs"]] == run["ids"]
    assert [entry["token"] for entry in run["logprobs"]] == text["logprobs"]["tokens"]
    assert [[top["token"] for top in entry["top"]] for entry in run["logprobs"]] == [list(top) for top in text["logprobs"]["top_logprobs"]]
    assert all(len(top) == 3 for top in text["logprobs"]["top_logprobs"])
    content = talk["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == talk["message"]["content"]
    assert all(entry["top_logprobs"][0]["logprob"] == entry["logprob"] for entry in content)


def test_a_model_without_a_tokenizer_takes_and_gives_ids(spillway, tmp_path):
    lines = [
        request("ids", {"prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0}),
        request("text", {"prompt": "Hello"}),
        chat("chat", "Hello"),
        request("outside", {"prompt": [5, 99999999]}),
    ]
    job = Job(spillway, "dummy:opt-125m", tmp_path, lines)
    results = {line["custom_id"]: line for line in job.results()}
    expected = spillway.greedy("dummy:opt-125m", [5, 6, 7], 3, "--deterministic")
    assert results["ids"]["response"]["body"]["choices"][0]["token_ids"] == expected
    for name in ("text", "chat", "outside"):
        assert results[name]["response"]["status_code"] == 400
    assert "token ids" in results["text"]["error"]["message"]
    assert "99999999" in results["outside"]["error"]["message"]


# Requests that cannot be answered.


ERRORS = {
    "temperature": (request("1", {"prompt": "x", "temperature": -1}), "invalid_value", "temperature"),
    "type": (request("2", {"prompt": "x", "max_tokens": "5"}), "invalid_type", "max_tokens"),
    "unsupported field": (request("4", {"prompt": "x", "suffix": "y"}), "unsupported_parameter", "suffix"),
    "n": (request("5", {"prompt": "x", "n": 0}), "invalid_value", "n"),
    "stream": (request("6", {"prompt": "x", "stream": True}), "unsupported_parameter", "stream"),
    "no prompt": (request("7", {}), "missing_required_parameter", "prompt"),
    "two kinds of prompts": (request("8", {"prompt": ["x", 5]}), "invalid_type", "prompt"),
    "no messages": (request("9", {"messages": []}, "/v1/chat/completions"), "invalid_value", "messages"),
    "image": (
        request("10", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "/v1/chat/completions"),
        "unsupported_parameter",
        "messages[0].content[0].type",
    ),
    "tools": (chat("11", "x", tools=[{"type": "function"}]), "missing_required_parameter", "tools[0].function"),
    "url": (request("12", {"prompt": "x"}, "/v1/embeddings"), "invalid_url", "url"),
    "method": (request("13", {"prompt": "x"}, method="GET"), "invalid_method", "method"),
    "no body": ({"custom_id": "14", "method": "POST", "url": "/v1/completions"}, "missing_required_parameter", "body"),
    "body": (request("15", "x"), "invalid_type", "body"),
    "too long": (request("16", {"prompt": [200] * tiny_llama.CONTEXT}), "context_length_exceeded", "prompt"),
    "much too long": (request("17", {"prompt": [200] * tiny_llama.CONTEXT * 10}), "context_length_exceeded", "prompt"),
    "empty ids": (request("18", {"prompt": []}), "invalid_value", "prompt"),
    "outside": (request("19", {"prompt": [1, 300]}), "invalid_value", "prompt"),
    "bias": (request("20", {"prompt": "x", "logit_bias": {"300": 1}}), "invalid_value", "logit_bias.300"),
}
NO_REQUESTS = {
    "nonsense": ("nonsense", "invalid_json"),
    "half": ('{"custom_id": "h", ', "invalid_json"),
    "two": ('{"custom_id": "h"} {}', "invalid_json"),
    "nested": ("[" * 5000, "invalid_json"),
    "array": ("[1, 2]", "invalid_type"),
    "no id": ('{"method": "POST"}', "missing_required_parameter"),
    "null id": ('{"custom_id": null}', "missing_required_parameter"),
    "number id": ('{"custom_id": 5}', "invalid_type"),
    "duplicate": (request("good 0", {"prompt": "x"}), "duplicate_custom_id"),
}


def test_every_bad_line_gets_an_error_of_its_own_and_harms_no_other(job):
    lines, expected, good = [], [], []
    for n, (bad, code, *param) in enumerate([*ERRORS.values(), *NO_REQUESTS.values()]):
        good.append(len(lines) + 1)
        lines += [request(f"good {n}", {"prompt": "The river", "temperature": 0, "max_tokens": 4}), bad, ""]
        expected.append((len(lines) - 1, bad, code, param))
    made = job(lines)
    results = made.results()
    assert len(results) == 2 * len(expected), "empty lines are no requests"
    assert len({line["response"]["body"]["choices"][0]["text"] for line in results[::2]}) == 1
    for line, (number, bad, code, param) in zip(results[1::2], expected, strict=True):
        assert (line["error"]["code"], line["error"]["line"]) == (code, number), line
        assert line["error"]["message"].startswith(f"line {number}: ")
        if param:
            assert line["custom_id"] == bad["custom_id"]
            assert line["response"]["status_code"] == 400
            error = line["response"]["body"]["error"]
            assert (error["code"], error["param"], error["type"]) == (code, param[0], "invalid_request_error")
        else:
            # A reader who joins by custom_id must not take it for the answer to another line.
            assert line["custom_id"] is None and line["response"] is None
    assert "'good 0', which line 1 has already" in results[-1]["error"]["message"]


def test_unknown_fields_have_no_effect_and_are_in_the_summary(job):
    plain = {"prompt": "The river", "temperature": 0, "max_tokens": 4}
    lines = [request("plain", plain), request("one", plain | {"cache_prompt": True, "temprature": 1}), request("two", plain | {"cache_prompt": None})]
    lines += [chat("three", "x", max_tokens=2, messages=[{"role": "user", "content": "x", "id": "m"}]), request("four", plain | {"cache_prompt": False})]
    made = job(lines)
    done = made.run()
    assert "unknown fields without effect: cache_prompt (in 2), messages[].id (in 1), temprature (in 1)" in done.err
    results = read_lines(made.output)
    assert [line["response"]["status_code"] for line in results] == [200] * 5
    assert len({results[n]["response"]["body"]["choices"][0]["text"] for n in (0, 1, 2, 4)}) == 1
    assert made.run("--restart", "--json").json()["ignored_fields"] == {"cache_prompt": 2, "messages[].id": 1, "temprature": 1}


def test_unknown_fields_are_errors_where_fields_are_strict(job):
    made = job([request("1", {"prompt": "x", "temprature": 1}), request("2", {"prompt": "x", "max_tokens": 2, "temprature": None})])
    bad, good = made.results("--strict-fields")
    assert bad["error"]["code"] == "unknown_parameter" and bad["response"]["body"]["error"]["param"] == "temprature"
    assert good["response"]["status_code"] == 200
    other = made.run()
    assert other.code == 2 and "--strict-fields" in other.err, "it is another job"


def test_no_line_however_damaged_ends_the_job(job):
    draw = random.Random(3)
    lines = []
    for n in range(400):
        text = bytearray(json.dumps(chat(f"{n}", "The river", max_tokens=2, stop=["a", "b"], seed=5)).encode())
        for _ in range(draw.randint(0, 3)):
            at = draw.randrange(len(text))
            kind = draw.randrange(4)
            if kind == 0:
                text[at] ^= 1 << draw.randrange(8)
            elif kind == 1:
                del text[at : at + draw.randint(1, 9)]
            elif kind == 2:
                text[at:at] = draw.choice([b'"', b"{", b"]", b"\\", b"\xff", b"\0", b"1e999", b"\\ud800", b"null", b"-"])
            else:
                text = text[:at]
                break
        lines.append(bytes(text).replace(b"\n", b" ") or b" ")
    made = job([])
    made.input.write_bytes(b"\n".join(lines))
    results = made.results()
    assert len(results) == sum(1 for line in lines if line.strip())
    assert sum(line["error"] is None for line in results) > 50
    assert all(line["error"] is None or line["error"]["message"].startswith("line ") for line in results)


def test_the_summary_counts_errors_and_the_exit_code_does_not(job):
    made = job([request("a", {"prompt": "x"}), "nonsense", request("b", {"prompt": 5})])
    done = made.run()
    assert (done.code, done.out) == (0, "")
    assert len(done.err.splitlines()) == 1 and "3 requests, 2 of them with an error" in done.err


def test_a_request_longer_than_the_context_ends_there(job):
    made = job([request("a", {"prompt": [200] * 30, "max_tokens": 1000, "ignore_eos": True}), chat("b", "x", ignore_eos=True)])
    first, second = (line["response"]["body"] for line in made.results("--ctx", "40"))
    assert first["usage"]["total_tokens"] == second["usage"]["total_tokens"] == 40
    assert first["choices"][0]["finish_reason"] == second["choices"][0]["finish_reason"] == "length"


def test_a_link_stays_a_link_to_the_results(job, tmp_path):
    made = job([request("a", {"prompt": "x"})])
    (tmp_path / "elsewhere").mkdir()
    made.output.symlink_to(tmp_path / "elsewhere" / "results")
    assert made.run().code == 0
    assert made.output.is_symlink() and read_lines(made.output)[0]["custom_id"] == "a"
    assert os.listdir(tmp_path / "elsewhere") == ["results"]


def test_windows_line_ends_and_a_missing_last_newline_are_fine(job, tmp_path):
    made = job([])
    one, two = json.dumps(request("a", {"prompt": "x"})), json.dumps(request("b", {"prompt": "x"}))
    made.input.write_text(f"\ufeff{one}\r\n\r\n{two}", newline="")
    assert [line["custom_id"] for line in made.results()] == ["a", "b"]


# Wrong usage.


def test_an_input_that_cannot_be_read_is_wrong_usage(spillway, tiny_model, tmp_path):
    (tmp_path / "empty").write_text("\n\n")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "empty", "/dev/null"):
        done = spillway.run("batch", tiny_model, path, "-o", tmp_path / "out")
        done.assert_one_line_error(WRONG_USAGE)
        assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_written_is_an_error(spillway, tiny_model, tmp_path):
    lines = write_lines(tmp_path / "in", [request("a", {"prompt": "x"})])
    spillway.run("batch", tiny_model, lines, "-o", tmp_path / "no" / "out").assert_one_line_error(FAILED)
    for path in (tmp_path, "/dev/null", lines):
        spillway.run("batch", tiny_model, lines, "-o", path).assert_one_line_error(WRONG_USAGE)
    assert lines.read_text()
    spillway.run("batch", tiny_model, lines).assert_one_line_error(WRONG_USAGE)
    spillway.run("batch", tiny_model).assert_one_line_error(WRONG_USAGE)


@pytest.mark.parametrize("options", [["--max-sequences", "0"], ["--ctx", "-1"], ["--ctx", "99999"]], ids=" ".join)
def test_a_bad_value_leaves_nothing_behind(job, options):
    made = job([request("a", {"prompt": "x"})])
    made.run(*options).assert_one_line_error(WRONG_USAGE)
    assert os.listdir(made.folder) == ["in.jsonl"]


def test_a_file_that_is_not_of_the_job_is_not_replaced(job):
    made = job([request("a", {"prompt": "x"})])
    made.output.write_text("precious\n")
    done = made.run()
    done.assert_one_line_error(WRONG_USAGE)
    assert "--restart" in done.err
    assert made.output.read_text() == "precious\n"
    assert made.results("--restart")[0]["custom_id"] == "a"


# The same bytes, whatever happens.


def test_results_do_not_depend_on_other_running_requests(job):
    made = job(mixed_requests(30))
    made.results()
    expected = made.output.read_bytes()
    schedules = (["--schedule", "diagonal"], ["--schedule", "row", "--micro-batch", "2"])
    others = (["--max-sequences", "1"], ["--max-sequences", "3", "--chunk", "5"], ["--threads", "1", "--max-sequences", "30"])
    for options in (*others, *schedules):
        made.results("--restart", *options)
        assert made.output.read_bytes() == expected, options


def test_a_finished_job_is_not_computed_again(job):
    made = job(mixed_requests(5))
    made.results()
    before = made.output.read_bytes(), made.output.stat().st_mtime_ns
    for options in ([], *SAME_SETTINGS):
        done = made.run(*options)
        assert done.code == 0 and "has all results" in done.err, options
        assert (made.output.read_bytes(), made.output.stat().st_mtime_ns) == before


def test_a_finished_job_is_another_one_with_other_settings(spillway, no_bos_model, job):
    made = job(mixed_requests(5))
    made.results()
    before = made.output.read_bytes()

    def assert_refused(what, arguments):
        done = spillway.run(*arguments)
        done.assert_one_line_error(WRONG_USAGE)
        assert f"another {what};" in done.err and "--restart" in done.err
        assert made.output.read_bytes() == before and not made.journal.exists()

    for what, options in OTHER_SETTINGS:
        assert_refused(what, [*made.arguments, *options])
    assert_refused("--kv-type, --attention-topk", [*made.arguments, "--attention-topk", "0.5", "--kv-type", "int8"])
    assert_refused("model", ["batch", no_bos_model, *made.arguments[2:]])
    made.input.write_text(made.input.read_text().replace("river", "house", 1))
    assert_refused("input", made.arguments)


def test_attention_topk_is_not_forgotten_by_a_job_that_goes_on(job):
    made = job(mixed_requests(12), "--max-sequences", "2", "--attention-topk", "0.3")
    made.results()
    expected = made.output.read_bytes()
    made.output.unlink()
    made.stop_after(3)
    without = [argument for argument in made.arguments if argument not in ("--attention-topk", "0.3")]
    done = made.spillway.run(*without)
    done.assert_one_line_error(WRONG_USAGE)
    assert "another --attention-topk (0.3, now 0)" in done.err
    made.results()
    assert made.output.read_bytes() == expected
    dense = made.spillway.run(*without, "--restart")
    assert dense.code == 0 and made.output.read_bytes() != expected


def test_answers_have_a_fingerprint_of_the_settings(job):
    made = job([request("a", {"prompt": "x"}), chat("b", "x")])

    def fingerprint(*options):
        bodies = [line["response"]["body"] for line in made.results("--restart", *options)]
        (value,) = {body["system_fingerprint"] for body in bodies}
        return value

    plain = fingerprint()
    assert fingerprint("--threads", "1") == plain != fingerprint("--kv-type", "int8")
    write_lines(made.input, [request("c", {"prompt": "y"})])
    assert fingerprint() == plain, "of settings, not of requests"


# Results that were changed after they were written.


def damaged(text, draw):
    """(name, bytes) of the ways to damage a finished file."""
    lines = text.splitlines(keepends=True)
    yield "cut to half its lines", b"".join(lines[: len(lines) // 2])
    yield "cut to one line", lines[0]
    yield "cut in a line", text[: len(text) // 2]
    yield "cut in the first line", text[:40]
    yield "cut after three bytes", text[:3]
    yield "empty", b""
    yield "without the last newline", text[:-1]
    yield "without a line in the middle", b"".join(lines[:3] + lines[4:])
    yield "without the first line", b"".join(lines[1:])
    yield "with a line twice", b"".join(lines + lines[2:3])
    yield "in another order", b"".join(reversed(lines))
    yield "with a line of another", text + b"hello\n"
    at = text.index(b'"text":"') + 9
    yield "edited", text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]
    at = text.index(b'"custom_id":"t') + 13
    yield "with another custom_id", text[:at] + b"X" + text[at + 1 :]
    at = text.index(b'"error":null}')
    yield "with a field more", text[: at + 12] + b',"x":1' + text[at + 12 :]
    for n in range(5):
        at = draw.randrange(len(text))
        yield f"flipped {n}", text[:at] + bytes([text[at] ^ 1 << draw.randrange(8)]) + text[at + 1 :]


def test_an_output_that_was_cut_or_edited_is_completed(job):
    made = job(mixed_requests(12))
    made.results()
    expected = made.output.read_bytes()
    lines = expected.splitlines()
    for name, text in damaged(expected, random.Random(5)):
        made.output.write_bytes(text)
        whole = sum(line in text.split(b"\n") for line in lines)
        os.utime(made.input, (3000, 3000))
        done = made.run("--json")
        assert done.code == 0, f"{name}: {done.err}"
        summary = json.loads(done.out)
        assert (summary["requests"], summary["finished_before"]) == (len(lines), whole), name
        if whole > 0:
            assert f"not as it was written; {len(lines) - whole} of {len(lines)} results are computed again" in done.err
        assert made.output.read_bytes() == expected, name
        assert sorted(os.listdir(made.folder)) == ["in.jsonl", "out.jsonl"], name


def test_the_rest_of_a_cut_output_survives_a_kill(job):
    made = job(mixed_requests(40), "--max-sequences", "2")
    made.results()
    expected = made.output.read_bytes()
    lines = expected.splitlines(keepends=True)
    kept = len(lines) // 3
    made.output.write_bytes(b"".join(lines[:kept]))
    made.stop_after(kept + 3)
    assert made.finished() >= kept + 3
    summary = made.run("--json").json()
    assert summary["finished_before"] >= kept + 3
    assert made.output.read_bytes() == expected


def test_a_restart_that_was_killed_does_not_take_the_old_results(job):
    made = job(mixed_requests(40), "--max-sequences", "2")
    made.results()
    expected = made.output.read_bytes()
    made.arguments.append("--restart")
    made.stop_after(3)
    made.arguments.remove("--restart")
    finished = made.finished()
    summary = made.run("--json").json()
    assert summary["finished_before"] == finished < summary["requests"]
    assert made.output.read_bytes() == expected


def test_twenty_kills_at_random_moments_change_no_byte(spillway, tiny_model, job, report):
    made = job(mixed_requests(80), "--max-sequences", "6")
    started = time.monotonic()
    made.results()
    whole_s = time.monotonic() - started
    expected = made.output.read_bytes()
    requests = len(expected.splitlines())

    draw = random.Random(11)
    kills = jobs = 0
    while kills < 20:
        made.output.unlink(missing_ok=True)
        finished = 0
        while True:
            process = subprocess.Popen(
                spillway.command(*made.arguments, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            try:
                output, error = process.communicate(timeout=draw.uniform(0, whole_s / 4) if kills < 20 else 120)
            except subprocess.TimeoutExpired:
                process.kill()
                output, error = process.communicate()  # it may have ended just before
            if process.returncode == 0:
                break
            assert process.returncode == -signal.SIGKILL, error
            kills += 1
            # The kill may come when the results are in place and the journal is gone.
            now = requests if made.output.exists() else made.finished()
            assert now >= finished, "finished results were lost"
            finished = now
        if output:  # empty if the kill before came after the results were in place
            summary = json.loads(output)
            assert summary["requests"] == requests
            # Only requests that were running at the last kill are computed again.
            assert summary["finished_before"] in (finished, requests)
        jobs += 1
        assert made.output.read_bytes() == expected
        assert sorted(os.listdir(made.folder)) == ["in.jsonl", "out.jsonl"]
    report(f"batch: {kills} kills in {jobs} jobs of {requests} requests, byte-identical")


def test_a_kill_in_the_middle_of_a_record_costs_that_record_only(spillway, job):
    made = job(mixed_requests(12), "--max-sequences", "2")
    made.results()
    expected = made.output.read_bytes()
    made.output.unlink()
    made.stop_after(4)
    journal = made.journal.read_bytes()
    journal = journal[: journal.rindex(b"\n") + 1]
    whole = journal.count(b"\n") - 1
    last = journal.rindex(b"\n", 0, -1) + 1
    cuts = [*range(last, len(journal), 1 + (len(journal) - last) // 12), len(journal) - 1]
    for cut in cuts:
        made.output.unlink(missing_ok=True)
        made.journal.write_bytes(journal[:cut])
        summary = made.run("--json").json()
        assert summary["finished_before"] == whole - 1
        assert made.output.read_bytes() == expected, f"cut at {cut} of {len(journal)}"


def test_a_kill_before_anything_was_written_is_a_new_start(job):
    made = job(mixed_requests(3))
    made.results()
    expected = made.output.read_bytes()
    for start in (b"", b"{", b'{"xxh3":"0123456789abcdef","line":0,"fai'):
        made.output.unlink()
        made.journal.write_bytes(start)
        made.results()
        assert made.output.read_bytes() == expected


def test_a_kill_while_results_are_put_together_costs_nothing(job):
    made = job(mixed_requests(12))
    made.results()
    expected = made.output.read_bytes()
    made.output.unlink()
    made.stop_after(3)
    (made.folder / "out.jsonl.partial.tmp").write_bytes(b"{half of a res")
    made.results()
    assert made.output.read_bytes() == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_stops_the_job_and_says_how_to_go_on(spillway, long_model, tmp_path, number):
    lines = [request(f"{n}", {"prompt": "The river", "max_tokens": 40}) for n in range(5)]
    lines += [request("long", {"prompt": "The river", "max_tokens": 100000, "ignore_eos": True})]
    made = Job(spillway, long_model, tmp_path, lines, "--ctx", "200000")
    code, output, error = made.stop_after(5, number)
    assert code == 128 + number
    assert output == b"" and len(error.splitlines()) == 1
    assert b"5 of 6 requests" in error and b"run the same command again" in error
    assert made.finished() == 5 and not made.output.exists()


# Options that change a bit of some result, with the message; and options that change none, or state the default.
OTHER_SETTINGS = [
    ("--attention-topk", ["--attention-topk", "0.5"]),
    ("--kv-type", ["--kv-type", "f16"]),
    ("--kv-type", ["--compress-kv"]),
    ("--ctx", ["--ctx", "100"]),
    ("--deterministic", ["--no-deterministic"]),
    ("set of weight types", ["--compress-weights"]),
    ("--template", ["--template", "llama-2"]),
]
SAME_SETTINGS = [
    ["--threads", "1"], ["--chunk", "9"], ["--schedule", "diagonal"], ["--no-mmap"], ["--attention-topk", "0"],
    ["--kv-type", "f32"], ["--ctx", str(tiny_llama.CONTEXT)], ["--attention", "cpu"], ["--no-tuning"],
]  # fmt: skip


def test_a_changed_job_is_refused_until_it_is_restarted(spillway, tiny_model, no_bos_model, job):
    made = job(mixed_requests(12), "--max-sequences", "2")
    os.utime(made.input, (1000, 1000))  # results say when their input was made
    made.stop_after(3)
    journal = made.journal.read_bytes()
    lines = made.input.read_text()

    def assert_refused(what, arguments):
        done = spillway.run(*arguments)
        done.assert_one_line_error(WRONG_USAGE)
        assert what in done.err and "--restart" in done.err
        assert made.journal.read_bytes().startswith(journal[: journal.rindex(b"\n") + 1]), "the journal is as it was"

    made.input.write_text(lines.replace("river", "house", 1))
    assert_refused("another input", made.arguments)
    made.input.write_text(lines)
    os.utime(made.input, (1000, 1000))
    assert_refused("another model", ["batch", no_bos_model, *made.arguments[2:]])
    for what, options in OTHER_SETTINGS:
        assert_refused(f"another {what} (", [*made.arguments, *options])
    # These change no result, and neither does a copy of the model elsewhere.
    copied = made.folder / tiny_model.name
    shutil.copy(tiny_model, copied)
    same = [option for options in SAME_SETTINGS for option in options]
    summary = spillway.run("batch", copied, *made.arguments[2:], *same, "--json").json()
    copied.unlink()
    assert summary["finished_before"] >= 3
    expected = made.output.read_bytes()
    made.results("--restart")
    assert made.output.read_bytes() == expected


def test_a_touched_input_is_the_same_input(job):
    made = job(mixed_requests(12), "--max-sequences", "2")
    os.utime(made.input, (1000, 1000))
    made.results()
    expected = made.output.read_bytes()
    os.utime(made.input, (2000, 2000))
    made.results("--restart")
    assert made.output.read_bytes() == expected
    os.utime(made.input, (3000, 3000))
    made.output.unlink()
    made.stop_after(3)
    os.utime(made.input, (4000, 4000))
    assert {line["response"]["body"]["created"] for line in made.results() if line["error"] is None} == {0}
    assert made.output.read_bytes() == expected


def test_tools_and_several_choices_are_answered(job):
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
    lines = [chat("tools", "x", tools=tools, max_tokens=2), request("n", {"prompt": "x", "n": 2, "max_tokens": 2})]
    tooled, several = job(lines).results()
    assert tooled["response"]["status_code"] == several["response"]["status_code"] == 200
    assert len(several["response"]["body"]["choices"]) == 2


def test_one_request_is_counted_as_one(job):
    assert "1 request;" in job([request("1", {"prompt": "x", "max_tokens": 2})]).run().err


def test_two_processes_never_work_on_one_job(spillway, long_model, tmp_path):
    made = Job(
        spillway, long_model, tmp_path,
        [request("short", {"prompt": "x", "max_tokens": 1}), request("long", {"prompt": "x", "max_tokens": 100000})],
        "--ctx", "200000",
    )  # fmt: skip
    process = spillway.start(*made.arguments)
    try:
        while made.finished() < 1:
            assert process.poll() is None
            time.sleep(0.01)
        for options in ([], ["--restart"]):
            done = made.run(*options)
            done.assert_one_line_error(WRONG_USAGE)
            assert "another process" in done.err
        assert process.poll() is None
    finally:
        end_process(process)


def limit_file_size(limit):
    def apply():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    return apply


def test_a_full_disk_is_one_line_and_the_job_goes_on_later(spillway, job):
    """A limit on the size of files stands for a full disk."""
    made = job(mixed_requests(20), "--max-sequences", "4")
    made.results()
    expected = made.output.read_bytes()
    made.output.unlink()
    for room in (0, 100, 1000, 4000, 4001, 9000, len(expected) - 1):
        done = subprocess.run(
            spillway.command(*made.arguments), capture_output=True, check=False, timeout=60,
            restore_signals=False, preexec_fn=limit_file_size(room),
        )  # fmt: skip
        assert done.returncode == FAILED, done.stderr
        assert len(done.stderr.splitlines()) == 1 and b"run the same command again" in done.stderr
        assert not made.output.exists() and not (made.folder / "out.jsonl.partial.tmp").exists()
    assert made.finished() > 0
    made.results()
    assert made.output.read_bytes() == expected


@pytest.mark.parametrize("fault", ["io.write:4:enospc", "io.sync:1:eio", "io.sync:3:eio", "io.rename:1:eio", "io.rename:1:enospc"])
def test_a_disk_that_fails_is_one_line_and_the_job_goes_on_later(job, fault):
    made = job(mixed_requests(12), "--max-sequences", "4")
    made.results()
    expected = made.output.read_bytes()
    made.output.write_bytes(b"")  # may be replaced, since an empty file holds no results
    done = made.run("--restart", env=os.environ | {"SPILLWAY_FAULTS": fault})
    done.assert_one_line_error(FAILED)
    assert "out.jsonl" in done.err
    assert made.output.read_bytes() == b"" and made.journal.exists()
    assert not (made.folder / "out.jsonl.partial.tmp").exists()
    finished = made.finished()
    summary = made.run("--json").json()
    assert summary["finished_before"] == finished and made.output.read_bytes() == expected
    if fault.startswith("io.rename"):
        assert finished == summary["requests"], "nothing is computed again"
    assert sorted(os.listdir(made.folder)) == ["in.jsonl", "out.jsonl"]


def test_a_disk_that_is_really_full(spillway, tiny_model, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "none", disk]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        made = Job(spillway, tiny_model, disk, mixed_requests(15), "--max-sequences", "4")
        filler = disk / "filler"
        filler.write_bytes(b"x" * (32768 - 4096 * 4))
        made.run().assert_one_line_error(FAILED)
        done = made.run()
        done.assert_one_line_error(FAILED)
        assert "No space left on device" in done.err
        filler.unlink()
        subprocess.run(["mount", "-o", "remount,size=1m", disk], check=True)
        made.results()
        got = made.output.read_bytes()
        made.results("--restart")
        assert made.output.read_bytes() == got
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_model_with_damaged_weights_fails_the_requests_not_the_job(spillway, models, tmp_path):
    model = tiny_llama.write_gguf(models / "batch-nan.gguf", damage=float("nan"))
    made = Job(spillway, model, tmp_path, [request("a", {"prompt": "x"}), request("b", {"prompt": 5})])
    first, second = made.results()
    assert first["response"]["status_code"] == 500 and first["error"]["code"] == "server_error"
    assert second["response"]["status_code"] == 400
