# SPDX-License-Identifier: Apache-2.0
"""spillway serve from its start to its end: loading, draining after SIGTERM, and the same answers after every restart."""

import contextlib
import json
import os
import signal
import socket
import time

import pytest
import tiny_llama

from conftest import end_process
from serve_checks import CHAT, COMPLETIONS, GENEROUS_S, NAME, Server, end_with, header_of, joined, read_events, read_to_end, status_of, stream_events, wait_for

IN_FLIGHT = 8
DRAINS = 10
LONG = 4000


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# Starting.


def test_it_says_where_it_serves(spillway, tiny_model, tmp_path):
    port = free_port()
    with Server(spillway, tiny_model, tmp_path, port=port) as server:
        assert (server.name, server.port) == (NAME, port)
        assert server.get("/health").ok() == {"status": "ok"}
        assert server.end() == 0
        assert server.process.stdout.read() == b"", "one line on standard output, and no more"


def test_the_name_is_the_models_own_unless_given(spillway, tiny_model, tmp_path):
    words = ["serve", tiny_model, "--port", "0", "--device", "cpu", "--threads", "1"]
    process = spillway.start(*words)
    try:
        line = process.stdout.readline().decode()
    finally:
        end_process(process)
    assert line.startswith("serving tiny at http://127.0.0.1:")
    with Server(spillway, tiny_model, tmp_path, "--name", "org/my model") as server:
        assert server.name == "org/my model"
        assert server.get("/v1/models").ok()["data"][0]["id"] == "org/my model"
        assert server.get("/v1/models/org/my%20model").ok()["id"] == "org/my model"
        assert server.get("/v1/models/org%2Fmy%20model").ok()["id"] == "org/my model"
        assert server.text(prompt="x", max_tokens=1) is not None


def test_health_answers_while_it_loads(spillway, tmp_path):
    """The model takes a while to load, since its random weights are generated."""
    port = free_port()
    with Server(spillway, "dummy:opt-350m", tmp_path, port=port, wait=False) as server:
        seen = []
        deadline = time.monotonic() + 4 * GENEROUS_S
        while not seen or seen[-1][0] != 200:
            assert time.monotonic() < deadline and server.process.poll() is None, server.log()
            with contextlib.suppress(ConnectionRefusedError):
                answer = server.get("/health")
                seen.append((answer.status, answer.json()))
                if answer.status == 503 and len(seen) == 1:
                    refused = server.post(COMPLETIONS, {"model": NAME, "prompt": [5]})
                    assert refused.status in (503, 200)  # it may be ready by now
                    if refused.status == 503:
                        assert int(refused.headers["retry-after"]) >= 1
            time.sleep(0.002)
        server.wait_until_ready()
        loading = [body for status, body in seen if status == 503]
        assert loading, "never seen loading"
        assert all(body["status"] == "loading" and 0 <= body["progress"] <= 1 for body in loading)
        progress = [body["progress"] for body in loading]
        assert progress == sorted(progress)
        answer = server.complete(prompt=[5, 6, 7], max_tokens=3)
        assert answer["choices"][0]["token_ids"] == spillway.greedy("dummy:opt-350m", [5, 6, 7], 3, "--deterministic", "--no-tuning")
        server.post(COMPLETIONS, {"model": NAME, "prompt": "x"}).error(400)
        server.post(CHAT, {"model": NAME, "messages": [{"role": "user", "content": "x"}]}).error(400)


def test_a_signal_ends_it_while_it_loads(spillway, tmp_path):
    with Server(spillway, "dummy:opt-350m", tmp_path, wait=False) as server:
        assert end_with(server.process, signal.SIGTERM) in (0, 143)


@pytest.mark.parametrize(
    "words",
    [["--port", "65536"], ["--port", "-1"], ["--host", "no.such.host.invalid"], ["--max-sequences", "0"], ["--max-queue", "-1"], ["--ctx", "-1"],
     ["--cors", "nonsense"], ["--nonsense"], ["--template", "no-such-template"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_options_are_one_line(spillway, tiny_model, words):
    spillway.run("serve", tiny_model, *(["--port", "0"] if "--port" not in words else []), *words).assert_one_line_error(2)


def test_a_model_that_is_not_there_is_one_line(spillway, tmp_path):
    done = spillway.run("serve", tmp_path / "none.gguf", "--port", "0")
    assert done.code == 2 and done.out == "" and "none.gguf" in done.err
    assert "Traceback" not in done.err


def test_a_port_that_is_taken_is_one_line(spillway, tiny_model, tmp_path):
    with Server(spillway, tiny_model, tmp_path) as server:
        done = spillway.run("serve", tiny_model, "--port", server.port)
        assert done.code in (1, 2) and str(server.port) in done.err and done.out == ""
        assert server.get("/health").status == 200


# SIGTERM drains: all requests in flight finish, new ones get 503, the exit code is 0.


def requests_known(server):
    """The requests that the server has received, including ended ones."""
    return sum(value for name, value in server.metrics().items() if name.startswith(("spillway_requests_running", "spillway_requests_waiting", "spillway_requests_total")))


@pytest.mark.parametrize("number", range(DRAINS))
def test_a_drain_finishes_what_is_under_way(spillway, long_model, tmp_path, number):
    files = tmp_path / "temporary"
    files.mkdir()
    options = ["--ctx", "8192", "--max-sequences", IN_FLIGHT // 2, "--max-queue", "16"]
    with Server(spillway, long_model, tmp_path, *options, env=os.environ | {"TMPDIR": str(files)}) as server:
        expected = server.text(prompt="The river", max_tokens=LONG, ignore_eos=True)
        connections = [server.socket() for _ in range(IN_FLIGHT)]
        for at, connection in enumerate(connections):
            connection.sendall(server.closing_message(prompt="The river", max_tokens=LONG, stream=at % 2 == 0))
        read_events(connections[0], 1)  # half of them run, the others wait
        wait_for(lambda: requests_known(server) > IN_FLIGHT)  # and one before; a request that is not registered yet would be refused
        early = server.socket()  # connects before the signal, sends its request after it
        server.process.send_signal(signal.SIGTERM if number % 3 else signal.SIGINT)
        assert_newcomers_are_refused(server, early)
        answers = [read_to_end(connection) for connection in connections]
        for at, raw in enumerate(answers):
            if at == 0:
                assert b"data: [DONE]\n\n" in raw and raw.endswith(b"0\r\n\r\n")  # its head was read before the signal
                continue
            assert status_of(raw) == 200, raw[:300]
            text = joined(stream_events(raw)) if at % 2 == 0 else json.loads(raw.partition(b"\r\n\r\n")[2])["choices"][0]["text"]
            assert text == expected
        assert server.process.wait(GENEROUS_S) == 0
        assert server.process.stdout.read() == b""
        assert list(files.iterdir()) == [], "files are left behind"
    with pytest.raises(OSError):
        server.socket()


def assert_newcomers_are_refused(server, early):
    """New connections and earlier ones alike get 503 while the server drains."""
    wait_for(lambda: server.get("/v1/models").status == 503)
    assert server.get("/health").status in (200, 503)
    message = server.closing_message(prompt="x", max_tokens=1)
    with early, server.socket() as late:
        for connection in (early, late):
            connection.sendall(message)
            raw = read_to_end(connection)
            assert status_of(raw) == 503, raw[:300]
            assert int(header_of(raw, "retry-after")) >= 1
            assert json.loads(raw.partition(b"\r\n\r\n")[2])["error"]["message"]


def test_a_second_interrupt_ends_it_at_once(spillway, long_model, tmp_path):
    with Server(spillway, long_model, tmp_path, "--ctx", "4096") as server, server.socket() as connection:
        body = {"prompt": [[n] for n in range(16)], "max_tokens": 4000, "ignore_eos": True}
        connection.sendall(server.stream_message(**body))
        read_events(connection, 1)
        server.process.send_signal(signal.SIGINT)
        wait_for(lambda: "ending;" in server.log())
        assert server.process.poll() is None, "the first one waits for what is under way"
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(GENEROUS_S) in (130, -signal.SIGINT)


def test_an_idle_server_ends_at_once(spillway, tiny_model, tmp_path):
    """Many times, since threads that outlive their data crash only now and then."""
    for number in [signal.SIGTERM, signal.SIGINT] * 15:
        with Server(spillway, tiny_model, tmp_path) as server, contextlib.closing(server.connect()) as idle:
            idle.request("GET", "/health")
            idle.getresponse().read()  # an open connection that sends nothing more
            assert server.end(number) == 0


# The same request gets the same answer, whatever runs beside it and after every restart.


SAMPLINGS = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1, "seed": 12345},
    "seeded, cut": {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.1, "seed": 7},
}
PROMPTS = ["The river was wide", "In the morning he said", "a" * 300, "é"]


def collect(server, prompt, sampling):
    return server.complete(prompt=prompt, max_tokens=48, ignore_eos=True, logprobs=2, **sampling)["choices"][0]


@pytest.fixture(scope="module")
def alone(spillway, tiny_model, tmp_path_factory):
    """The answers of a server without other requests, by (prompt, sampling)."""
    with Server(spillway, tiny_model, tmp_path_factory.mktemp("serve"), "--max-sequences", "1") as server:
        return {(prompt, name): collect(server, prompt, SAMPLINGS[name]) for prompt in PROMPTS for name in SAMPLINGS}


@pytest.mark.xdist_group("serve_same")
@pytest.mark.parametrize("options", [[], ["--max-sequences", "16"], ["--chunk", "16"], ["--threads", "2"]], ids=" ".join)
def test_the_same_request_has_the_same_answer(spillway, tiny_model, tmp_path, alone, options):
    """After a restart, alone and beside others, out of a cache, whole and streamed."""
    with Server(spillway, tiny_model, tmp_path, *options) as server:
        for _ in range(2):  # the second time prompts are in the cache
            for (prompt, name), expected in alone.items():
                assert collect(server, prompt, SAMPLINGS[name]) == expected, (prompt, name)
        connections = []
        for (prompt, name), expected in alone.items():
            for stream in (False, True):
                connection = server.socket()
                fields = {"prompt": prompt, "max_tokens": 48, "logprobs": 2, "stream": stream} | SAMPLINGS[name]
                connection.sendall(server.closing_message(**fields))
                connections.append((connection, stream, expected))
        for connection, stream, expected in connections:
            with connection:
                raw = read_to_end(connection)
            assert status_of(raw) == 200, raw[:300]
            if stream:
                events = stream_events(raw)
                assert joined(events) == expected["text"]
                pieces = [c["logprobs"] for event in events for c in event["choices"] if c["logprobs"]]
                assert sum((piece["token_logprobs"] for piece in pieces), []) == expected["logprobs"]["token_logprobs"]
            else:
                assert json.loads(raw.partition(b"\r\n\r\n")[2])["choices"][0] == expected
        server.wait_until_idle()


@pytest.mark.xdist_group("serve_same")
def test_the_answers_are_those_of_run(spillway, tiny_model, alone):
    for prompt in PROMPTS:
        words = ["-p", prompt, "-n", "48", "--ignore-end", "--deterministic", "--no-tuning", "--json"]
        for name, options in (("greedy", ["--temp", "0"]), ("seeded", ["--temp", "1", "--seed", "12345"])):
            assert alone[prompt, name]["text"] == spillway.run("run", tiny_model, *words, *options).json()["text"]


def test_a_folder_of_hugging_face_is_served(spillway, tiny_folder, tmp_path, tiny_model):
    with Server(spillway, tiny_folder, tmp_path) as server:
        expected = spillway.run("run", tiny_model, "-p", "The river", "-n", "20", "--deterministic", "--json").json()["text"]
        assert server.text(prompt="The river", max_tokens=20) == expected


def test_a_trained_model_is_served(spillway, stories, tmp_path):
    reference = json.loads((stories / "reference_greedy.json").read_text())
    model = stories / "stories260K-f32.gguf"
    with Server(spillway, model, tmp_path) as server:
        expected = spillway.run("run", model, "-p", "Once upon a time", "-n", "60", "--deterministic", "--json").json()["text"]
        assert server.text(prompt="Once upon a time", max_tokens=60) == expected
        server.post(CHAT, {"model": NAME, "messages": [{"role": "user", "content": "x"}]}).error(400)  # it has no chat template
    assert reference


def test_weights_on_disk_are_served(spillway, tiny_model, tmp_path):
    spills = tmp_path / "spills"
    spills.mkdir()
    placed = ["--weights", "50,0,50", "--disk-memory", "1GiB", "--disk-dir", spills]
    with Server(spillway, tiny_model, tmp_path) as plain, Server(spillway, tiny_model, tmp_path, *placed) as spilled:
        for prompt in PROMPTS:
            assert collect(spilled, prompt, SAMPLINGS["seeded"]) == collect(plain, prompt, SAMPLINGS["seeded"])
        assert spilled.end() == 0
    assert not list(spills.iterdir()), "files are left behind"


def test_a_model_that_computes_no_numbers_fails_its_requests_only(spillway, models, tmp_path):
    broken = tiny_llama.write_gguf(models / "serve-nan.gguf", damage=float("nan"))
    with Server(spillway, broken, tmp_path) as server:
        server.post(COMPLETIONS, {"model": NAME, "prompt": "x", "temperature": 0}).error(500)
        assert server.get("/health").status == 200
        server.wait_until_idle()
        assert server.end() == 0


# A disk that fails must not end the server: retriable 503, then ready again. tests/generation/server_faults_test.cc does the same with a GPU.


def ask(server):
    return server.post(COMPLETIONS, {"model": NAME, "prompt": PROMPTS[0], "temperature": 0, "max_tokens": 12})


def ask_until(server, status, times):
    """Sends requests until one has this status, and returns it; others must have 200, or a retriable 503."""
    for _ in range(times):
        answer = ask(server)
        if answer.status == status:
            return answer
        if answer.status != 200:
            answer.error(503, "server_error")
            assert int(answer.headers["retry-after"]) >= 1
    pytest.fail(f"no {status} in {times} answers")


@pytest.mark.parametrize("lasting", [False, True])
def test_a_disk_that_fails_costs_the_requests_of_a_step(spillway, tiny_model, tmp_path, lasting):
    placed = ["--weights", "50,0,50", "--disk-memory", "1GiB", "--disk-dir", tmp_path]
    # A failed read is repeated, so only several failures in a row reach the request.
    numbers = ["1500+"] if lasting else range(1500, 1508)
    faults = os.environ | {"SPILLWAY_FAULTS": ",".join(f"io.read:{number}:eio" for number in numbers)}
    with Server(spillway, tiny_model, tmp_path, *placed) as plain:
        expected = ask(plain).ok()["choices"]
    with Server(spillway, tiny_model, tmp_path, *placed, env=faults) as server:
        assert ask(server).ok()["choices"] == expected
        ask_until(server, 503, times=300)
        if lasting:
            for _ in range(3):
                ask(server).error(503, "server_error")
            assert server.get("/health").status == 503
            assert server.get("/health").json()["status"] == "failing"
        else:
            assert ask_until(server, 200, times=8).json()["choices"] == expected
            assert server.get("/health").status == 200
        server.wait_until_idle()
        assert server.end() == 0
