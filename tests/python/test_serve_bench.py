# SPDX-License-Identifier: Apache-2.0
"""bench/serve_bench.py: its arithmetic, its reading of streams and traces, and whole runs against fake servers."""

import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree

import pytest
from fake_openai_server import FakeServer

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import serve_plot  # noqa: E402
from event_reader import BadAnswer, EventReader  # noqa: E402
from serve_client import Endpoint, Load, Outcome, read_answer  # noqa: E402
from serve_figures import endpoint_figures, percentile, round_figures, spread, steady  # noqa: E402
from serve_workload import FilePrompts, RandomPrompts, parse_range, poisson_times, read_prompts, read_trace, seconds_of  # noqa: E402

EVENTS = ['{"a": 1}', '{"text": "é\\u0000"}', "[DONE]"]
STREAM = b"".join(f"data: {event}\n\n".encode() for event in EVENTS)


def chunked(body, sizes):
    """An answer in chunks of these sizes, the last one as long as needed."""
    out, at = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n", 0
    for size in [*sizes, len(body)]:
        piece = body[at : at + size]
        at += size
        if piece:
            out += b"%x;x=y\r\n" % len(piece) + piece + b"\r\n"
    return out + b"0\r\nTrailer: x\r\n\r\n"


# Streams.


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 7, 16, 1000])
def test_events_are_found_however_bytes_and_chunks_are_cut(piece):
    draw = random.Random(piece)
    for _ in range(20):
        data = chunked(STREAM, [draw.randint(1, 12) for _ in range(6)])
        reader = EventReader()
        for number, at in enumerate(range(0, len(data), piece)):
            assert not reader.is_complete
            reader.feed(data[at : at + piece], number)
        assert reader.is_complete and reader.status == 200
        assert [event.decode() for _, event in reader.events] == EVENTS
        times = [at for at, _ in reader.events]
        assert times == sorted(times) and times[-1] <= number


def test_an_event_has_the_time_of_its_last_byte():
    reader = EventReader()
    reader.feed(chunked(STREAM, [])[:-30], 1.0)
    before = len(reader.events)
    reader.feed(chunked(STREAM, [])[-30:], 2.0)
    assert [at for at, _ in reader.events] == [1.0] * before + [2.0] * (len(EVENTS) - before)
    assert 0 < before < len(EVENTS)


@pytest.mark.parametrize("ending", [b"\n\n", b"\r\n\r\n"])
def test_streams_without_chunks_end_with_the_connection(ending):
    reader = EventReader()
    reader.feed(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n: a comment\n\nevent: x\ndata: 1", 0)
    reader.feed(ending + b"data:2\ndata: 3" + ending, 1)
    assert not reader.is_complete
    reader.end(2)
    assert reader.is_complete and [data for _, data in reader.events] == [b"1", b"2\n3"]


def test_a_stream_that_is_cut_is_not_complete():
    reader = EventReader()
    reader.feed(chunked(STREAM, [])[:-7], 0)
    reader.end(1)
    assert not reader.is_complete
    outcome = Outcome(0, 0)
    read_answer(reader, outcome)
    assert outcome.error


def test_an_error_is_read_by_its_length():
    reader = EventReader()
    reader.feed(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 No\r\nContent-Length: 5\r\nRetry-After: 1\r\n\r\nhel", 0)
    assert not reader.is_complete
    reader.feed(b"lo", 0)
    assert reader.is_complete and (reader.status, reader.body, reader.headers["retry-after"]) == (429, b"hello", "1")
    outcome = Outcome(0, 0)
    read_answer(reader, outcome)
    assert outcome.error == "429"


@pytest.mark.parametrize("data", [b"nonsense\r\n\r\n", chunked(STREAM, []).replace(b";x=y", b"z"), chunked(b"ab", []).replace(b"ab", b"abc")])
def test_what_is_no_http_is_said(data):
    with pytest.raises(BadAnswer):
        EventReader().feed(data, 0)


# Arithmetic.


def test_percentiles_are_those_of_the_standard_library():
    draw = random.Random(1)
    for count in (2, 3, 10, 101):
        values = sorted(draw.random() for _ in range(count))
        expected = statistics.quantiles(values, n=100, method="inclusive")
        assert [percentile(values, share) for share in range(1, 100)] == pytest.approx(expected)
    assert percentile([4.0], 99) == 4.0 and percentile([], 50) is None
    assert spread([3, 1, 2]) == {"count": 3, "mean": 2, "p50": 2, "p90": 2.8, "p95": 2.9, "p99": 2.98, "max": 3}
    assert spread([])["p95"] is None


def outcome(sent, times, tokens=None, prompt=10, error=""):
    return Outcome(sent, sent, times[-1] if times else sent + 1, list(times), prompt, tokens or len(times), error=error)


def test_throughput_counts_good_requests_over_the_whole_time():
    outcomes = [outcome(0, [1, 2, 3, 4]), outcome(2, [3, 5], tokens=4), outcome(1, [], error="429"), outcome(0, [], error="429")]
    figures = round_figures(outcomes, cpu_s=0.5)
    assert (figures["requests"], figures["errors"], figures["seconds"]) == (4, {"429": 2}, 5)
    assert (figures["output_tokens_per_s"], figures["total_tokens_per_s"], figures["requests_per_s"]) == (8 / 5, 28 / 5, 2 / 5)
    assert figures["client_share_of_a_core"] == pytest.approx(0.1)
    both = endpoint_figures([(outcomes, 0.5), (outcomes, 0.5), ([outcome(0, [1, 2])], 0.1)])
    assert both["output_tokens_per_s"] == 8 / 5 and both["errors"] == {"429": 4} and both["requests"] == 9
    assert both["ttft_s"]["count"] == 5 and both["ttft_s"]["max"] == 1
    assert sorted(gap for o in outcomes if not o.error for gap in o.gaps_s) == [1, 1, 1, 2]
    assert round_figures([], 0)["output_tokens_per_s"] == 0


def test_steady_throughput_is_that_of_the_steps_in_which_all_decode():
    """64 streams, a step of 20 ms that brings a token to each; prompts come in one after the other."""
    draw = random.Random(2)
    streams = []
    for number in range(64):
        steps = range(number // 4, number // 4 + 100)
        streams.append(outcome(0, [0.02 * step + 0.001 * draw.random() for step in steps]))
    found = steady(streams)
    assert found["tokens_per_s"] == pytest.approx(64 / 0.02, rel=0.002), "also where the interval begins within a step"
    assert found["streams"] == 64 and 1.5 < found["seconds"] < 1.8
    # Tokens that come two in an event count twice.
    twice = [outcome(0, o.token_times, tokens=2 * len(o.token_times)) for o in streams]
    assert steady(twice)["tokens_per_s"] == pytest.approx(2 * found["tokens_per_s"])
    assert steady([*streams, outcome(0, [10, 11, 12, 13, 14])]) is None, "one that begins when others have ended"
    assert steady([]) is None


# Workloads.


def test_a_trace_is_read_with_its_times_and_lengths(tmp_path):
    path = tmp_path / "trace.csv"
    rows = ["2023-11-16 23:59:59.5000000,374,44", "2023-11-16 23:59:59.7500000,9000,5", "2023-11-17 00:00:01.5000001,0,5",
            "2023-11-17 00:00:03.5,10,20", "2023-11-17 00:00:04,1,2"]  # fmt: skip
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    shapes = read_trace(path, 10, speed_up=2, most_tokens=1000)
    assert [(s.prompt_tokens, s.output_tokens) for s in shapes] == [(374, 44), (10, 20), (1, 2)]
    assert [s.due_s for s in shapes] == pytest.approx([0, 2, 2.25])
    assert len(read_trace(path, 2)) == 2 and read_trace(path, 2)[1].prompt_tokens == 9000
    assert seconds_of("2023-11-16 18:15:46.6805900") % 1 == pytest.approx(0.68059)


def test_poisson_arrivals_have_their_rate():
    times = poisson_times(5.0, 20001, random.Random(3))
    assert times[0] == 0 and times == sorted(times)
    assert times[-1] / 20000 == pytest.approx(1 / 5, rel=0.03)
    gaps = [after - before for before, after in zip(times, times[1:])]
    assert statistics.stdev(gaps) == pytest.approx(statistics.fmean(gaps), rel=0.05)


def test_prompts_are_found_in_the_files_of_others(tmp_path):
    share = [{"id": "x", "conversations": [{"from": "gpt", "value": "no"}, {"from": "human", "value": "yes"}]}, {"conversations": []}]
    files = {
        "share.json": (share, ["yes"]),
        "alpaca.json": ([{"instruction": "Do", "input": "this", "output": "ok"}, {"instruction": "Sing", "input": ""}], ["Do\n\nthis", "Sing"]),
        "plain.json": (["a", " ", "b"], ["a", "b"]),
    }
    for name, (content, expected) in files.items():
        (tmp_path / name).write_text(json.dumps(content))
        assert read_prompts(tmp_path / name) == expected
    (tmp_path / "none.json").write_text("[]")
    with pytest.raises(ValueError, match="no prompts"):
        read_prompts(tmp_path / "none.json")
    drawn = FilePrompts(["a", "b", "c"], seed=1)
    assert sorted(drawn.fields("/v1/completions", 0)["prompt"] for _ in range(3)) == ["a", "b", "c"]


def test_random_prompts_have_their_length_and_differ():
    ids = RandomPrompts(lambda text: list(range(len(text.split()))), seed=1)
    found = [ids.fields("/v1/completions", 512)["prompt"] for _ in range(200)]
    assert {len(prompt) for prompt in found} == {512} and len({prompt[0] for prompt in found}) > 190
    assert len(ids.fields("/v1/completions", 50_000)["prompt"]) == 50_000
    words = RandomPrompts(lambda text: None, seed=1)
    assert len(words.fields("/v1/completions", 30)["prompt"].split()) == 30
    assert len(words.fields("/v1/chat/completions", 30)["messages"][0]["content"].split()) == 30
    assert parse_range("512") == (512, 512) and parse_range("3-9") == (3, 9)
    for bad in ("0", "9-3", "x", ""):
        with pytest.raises(ValueError):
            parse_range(bad)


# Whole runs.


@pytest.mark.parametrize("fields", [{}, {"piece_bytes": 3}, {"keeps_open": True}], ids=str)
def test_streams_are_counted_and_timed(fields):
    with FakeServer(token_s=0.002, first_s=0.05, **fields) as server:
        endpoint = Endpoint(server.url)
        endpoint.find_model()
        message = endpoint.stream_message("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 9})
        outcomes = Load(endpoint, [(None, message)] * 40, clients=8).run()
    assert [o.error for o in outcomes] == [""] * 40
    for o in outcomes:
        assert (o.prompt_tokens, o.output_tokens, len(o.token_times)) == (3, 9, 9)
        assert o.text == "".join(f" {n}é" for n in range(9))
        assert o.sent_at < o.token_times[0] <= o.token_times[-1] <= o.done_at
        assert o.ttft_s >= 0.05 and sum(o.gaps_s) >= 8 * 0.002 * 0.9


def test_arrivals_are_kept_and_failures_named():
    with FakeServer(refuse_after=3) as server:
        endpoint = Endpoint(server.url, model="m")
        message = endpoint.stream_message("/v1/completions", {"prompt": "x", "max_tokens": 2})
        outcomes = Load(endpoint, [(0.03 * n, message) for n in range(6)]).run()
    assert sorted(o.error for o in outcomes) == ["", "", "", "429", "429", "429"]
    assert all(o.sent_at >= o.due_at for o in outcomes)
    assert sorted(o.due_at for o in outcomes)[-1] - min(o.due_at for o in outcomes) == pytest.approx(0.15)
    with FakeServer(cut_after=1) as server:
        endpoint = Endpoint(server.url, model="m")
        message = endpoint.stream_message("/v1/completions", {"prompt": "x", "max_tokens": 2})
        (cut,) = Load(endpoint, [(None, message)]).run()
        assert cut.error == "cut"
    (gone,) = Load(endpoint, [(None, message)]).run()
    assert gone.error == "ECONNREFUSED"
    with FakeServer(first_s=30) as server:
        endpoint = Endpoint(server.url, model="m")
        (late,) = Load(endpoint, [(None, message)], timeout_s=0.2).run()
    assert late.error == "timeout"


def run_bench(*words, code=0):
    done = subprocess.run([sys.executable, BENCH / "serve_bench.py", *map(str, words)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done


def test_two_servers_take_turns_with_the_same_requests(tmp_path):
    with FakeServer(token_s=0.002) as ours, FakeServer(token_s=0.006) as theirs:
        words = ["--url", ours.url, "--name", "ours", "--url", theirs.url, "--name", "theirs", "--clients", 4, "--requests", 8, "--rounds", 2]
        words += ["--prompt-len", "20-40", "--gen-len", "10-20", "--extra", '{"min_p": 0.5}', "-o", tmp_path / "r.json", "--svg", tmp_path / "r.svg"]
        done = run_bench(*words)
    assert len(ours.asked) == len(theirs.asked) == 2 + 16

    def bodies(server):
        """The bodies without their order, since clients race."""
        return sorted(json.dumps({k: v for k, v in body.items() if k != "min_p"}, sort_keys=True) for body in server.asked)

    assert bodies(ours) == bodies(theirs)
    assert all(body["min_p"] == 0.5 for body in ours.asked) and "min_p" not in theirs.asked[0]
    assert all(body["ignore_eos"] and body["stream"] and body["model"] == "fake" for body in ours.asked)
    assert all(20 <= len(body["prompt"]) <= 40 for body in ours.asked), "token ids of /tokenize"
    assert len({tuple(body["prompt"]) for body in ours.asked}) == 18, "no prompt comes twice"
    kept = json.loads((tmp_path / "r.json").read_text())
    assert kept["date"] and kept["machine"] and "/" not in kept["command"].split("--url")[0].removeprefix("bench/")
    assert str(tmp_path) not in kept["command"] and not kept["is_pinned"]
    for name, server in (("ours", ours), ("theirs", theirs)):
        figures = kept["endpoints"][name]
        assert figures["requests"] == 16 and figures["errors"] == {} and len(figures["rounds"]) == 2
        wanted = sum(body["max_tokens"] for body in server.asked[2:])
        assert sum(found["output_tokens"] for found in figures["rounds"]) == wanted
        assert figures["inter_token_s"]["count"] == wanted - 16
        assert set(figures["ttft_s"]) == {"count", "mean", "p50", "p90", "p95", "p99", "max"}
    assert kept["endpoints"]["ours"]["inter_token_s"]["p50"] < kept["endpoints"]["theirs"]["inter_token_s"]["p50"]
    assert "ratio" in done.stdout and "first token, p95, ms" in done.stdout and done.stderr == ""
    picture = xml.etree.ElementTree.parse(tmp_path / "r.svg").getroot()
    assert len(picture.findall(".//{*}polyline")) == 4
    assert "theirs" in (tmp_path / "r.svg").read_text()


def test_steady_measures_while_all_decode(tmp_path):
    core = min(os.sched_getaffinity(0))
    with FakeServer(token_s=0.01) as server:
        words = ["--url", server.url, "--steady", "--clients", 8, "--gen-len", 50, "--prompt-len", 9, "-o", tmp_path / "r.json"]
        run_bench(*words, "--cores", core, "--warm-up", 0)
        tokens = [asked["max_tokens"] for asked in server.asked]
        prompts = [asked["prompt"] for asked in server.asked]
        assert tokens == [1] * 8 + [50] * 8 and sorted(prompts[:8]) == sorted(prompts[8:]), "each prompt once before"
        run_bench(*words, "--cold", "--warm-up", 0)
        assert [asked["max_tokens"] for asked in server.asked[16:]] == [50] * 8
        run_bench(*words, "--cores", core, "--token-ids", 7, "--server-pid", os.getpid())
        assert all(0 <= token < 7 for asked in server.asked[24:] for token in asked["prompt"])
    kept = json.loads((tmp_path / "r.json").read_text())
    assert kept["is_pinned"] and kept["cores_of_the_load_generator"] == [core]
    figures = kept["endpoints"][server.url.removeprefix("http://")]
    (found,) = figures["steady_rounds"]
    assert found["streams"] == 8 and figures["steady_tokens_per_s"] == found["tokens_per_s"]
    assert 0 < found["tokens_per_s"] <= 8 / 0.01
    (threads,) = figures["server_threads"]
    assert sum(threads["cpu_s"].values()) > 0 and threads["http_share_of_steps"] is None, "which no step was counted of"
    with FakeServer() as server:
        done = run_bench("--url", server.url, "--steady", "--clients", 2, "--gen-len", 2, "--prompt-len", 9)
    assert "no time in which all streams decoded" in done.stdout


def test_a_file_of_prompts_goes_to_chat(tmp_path):
    (tmp_path / "p.json").write_text(json.dumps(["one two", "three", "four five six seven"]))
    with FakeServer() as server:
        words = ["--url", server.url, "--poisson", 100, "--requests", 4, "--gen-len", 3, "--prompts", tmp_path / "p.json"]
        run_bench(*words, "--most-tokens", 3, "--warm-up", 0)
    assert sorted(body["messages"][0]["content"] for body in server.asked) == ["one two", "one two", "three", "three"]


@pytest.mark.parametrize(
    "words",
    [[], ["--poisson", "0"], ["--steady"], ["--steady", "--clients", "2", "--poisson", "3"], ["--clients", "1", "--gen-len", "0"],
     ["--clients", "2", "--prompts", "x", "--prompt-len", "5"], ["--steady", "--clients", "2", "--requests", "3"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_is_said(words):
    assert "error" in run_bench("--url", ":1", *words, code=2).stderr


def test_a_server_that_is_not_there_is_one_line():
    with FakeServer() as server:
        pass
    done = run_bench("--url", server.url, "--clients", 1, code=1)
    assert len(done.stderr.splitlines()) == 1 and "refused" in done.stderr
    with FakeServer(refuse_after=0) as server:
        done = run_bench("--url", server.url, "--clients", 1, code=1)
    assert "429" in done.stderr


def test_an_interrupt_shows_what_there_is(tmp_path):
    with FakeServer(token_s=0.02) as server:
        command = [BENCH / "serve_bench.py", "--url", server.url, "--clients", 2, "--requests", 1000, "--gen-len", 3, "-o", tmp_path / "r.json"]
        process = subprocess.Popen([sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            deadline = time.monotonic() + 30
            while len(server.asked) < 10:
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130 and "output tokens/s" in out and "interrupted" in err and "Traceback" not in err
    kept = json.loads((tmp_path / "r.json").read_text())
    assert kept["was_interrupted"]
    (figures,) = kept["endpoints"].values()
    assert 0 < figures["requests"] < 1000


def test_a_picture_of_nothing_is_a_picture():
    root = xml.etree.ElementTree.fromstring(serve_plot.draw([("a <b>", []), ("c", [("d", [])])], "e & f"))
    assert root.tag.endswith("svg") and "nothing was measured" in "".join(root.itertext())
