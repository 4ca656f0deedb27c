# SPDX-License-Identifier: Apache-2.0
"""spillway serve with many clients: overload is refused politely, clients that vanish or crawl cost nothing, prompts beyond the context
fail alone, and requests are served by priority."""

import collections
import concurrent.futures
import contextlib
import itertools
import json
import random
import resource
import selectors
import signal
import socket
import threading
import time

import pytest

from serve_checks import COMPLETIONS, GENEROUS_S, NAME, WAITING, AT_WORK, Server, everything_of_kv, header_of, joined, kill
from serve_checks import read_events, read_to_end, status_of, stream_events, wait_for, with_all_of_kv

RUNNING, QUEUED = 4, 16
CLIENTS = 500
LONG = 8000  # tokens whose generation takes far longer than reading all requests
KILLS = 200
SLOW_READERS = 100


@pytest.fixture
def serve(spillway, tmp_path, request):
    """serve(model, options...) starts one; it ends with the test."""
    kind = getattr(request, "param", "")
    more, keeps_kv = everything_of_kv() if kind == "all of KV" else [], kind != "nothing kept"
    with contextlib.ExitStack() as stack:
        yield lambda model, *options: stack.enter_context(Server(spillway, model, tmp_path, *options, *more, keeps_kv=keeps_kv))


@pytest.fixture
def many_files():
    """A process may have 1,024 files by default, and these tests as many sockets."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CLIENTS + 256
    if before[1] != resource.RLIM_INFINITY and before[1] < wanted:
        pytest.skip(f"this system allows {before[1]} files of a process, and {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], wanted), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def read_all(connections, timeout_s=4 * GENEROUS_S):
    """[(bytes, time of the first ones)] of connections that the server closes, read as they come."""
    selector = selectors.DefaultSelector()
    data = [bytearray() for _ in connections]
    first = [0.0] * len(connections)
    for number, connection in enumerate(connections):
        selector.register(connection, selectors.EVENT_READ, number)
    deadline = time.monotonic() + timeout_s
    while selector.get_map():
        assert time.monotonic() < deadline, f"{len(selector.get_map())} have no end"
        for key, _ in selector.select(1):
            piece = key.fileobj.recv(1 << 16)
            first[key.data] = first[key.data] or time.monotonic()
            data[key.data] += piece
            if not piece:
                selector.unregister(key.fileobj)
    return list(zip(map(bytes, data), first))


def prompt_of(number):
    return f"The river {number % 7} was wide"


# Overload is refused politely: requests beyond the running and queued ones get 429, and admitted ones get their usual answers.


def send_at_once(server, connections, message):
    """Stops the server while it sends, so that the server finds all messages together, however slow this process is."""
    server.process.send_signal(signal.SIGSTOP)
    for number, connection in enumerate(connections):
        connection.sendall(message(number))
    server.process.send_signal(signal.SIGCONT)


@with_all_of_kv
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_overload_is_refused_politely(serve, many_files, long_model, stream, report):
    """Long requests run for seconds; then all other clients send theirs simultaneously."""
    server = serve(long_model, "--ctx", "8192", "--max-sequences", RUNNING, "--max-queue", QUEUED)

    def message(number):
        fields = {"prompt": "The river", "max_tokens": LONG} if number < RUNNING else {"prompt": prompt_of(number), "max_tokens": 64}
        return server.closing_message(stream=stream, **fields)

    expected = {"The river": server.text(prompt="The river", max_tokens=LONG, ignore_eos=True)}
    expected |= {prompt_of(n): server.text(prompt=prompt_of(n), max_tokens=64, ignore_eos=True) for n in range(7)}
    connections = [server.socket() for _ in range(CLIENTS)]
    send_at_once(server, connections[:RUNNING], message)
    wait_for(lambda: server.metrics()[AT_WORK] == RUNNING)
    send_at_once(server, connections[RUNNING:], lambda number: message(RUNNING + number))
    started = time.monotonic()
    answers = read_all(connections)
    for connection in connections:
        connection.close()
    statuses = [status_of(raw) for raw, _ in answers]
    assert set(statuses) <= {200, 429} and statuses[:RUNNING] == [200] * RUNNING
    assert statuses.count(200) == RUNNING + QUEUED
    for number, (raw, _) in enumerate(answers):
        if statuses[number] == 429:
            assert int(header_of(raw, "retry-after")) >= 1
            error = json.loads(raw.partition(b"\r\n\r\n")[2])["error"]
            assert error["message"] and error["code"] and error["type"]
            continue
        text = joined(stream_events(raw)) if stream else json.loads(raw.partition(b"\r\n\r\n")[2])["choices"][0]["text"]
        assert text == expected["The river" if number < RUNNING else prompt_of(number)], "admitted output equals unloaded output"
    assert server.text(prompt=prompt_of(0), max_tokens=64, ignore_eos=True) == expected[prompt_of(0)], "afterwards there is room again"
    server.wait_until_idle()
    refused_s = max(at for raw, at in answers if status_of(raw) == 429) - started
    report(f"R4: {CLIENTS} clients: {statuses.count(200)} admitted, the last of {statuses.count(429)} refusals after {1e3 * refused_s:.0f} ms")


@with_all_of_kv
def test_a_request_may_have_more_prompts_than_there_are_places(serve, long_model):
    """Prompts are computed as places become free, and get the answers that they have alone."""
    server = serve(long_model, "--ctx", "512", "--max-sequences", 2, "--max-queue", 2)
    prompts = [f"{number} The river" for number in range(40)]
    choices = server.complete(prompt=prompts, max_tokens=6, ignore_eos=True)["choices"]
    assert [choice["index"] for choice in choices] == [*range(40)]
    for number in (0, 17, 39):
        assert choices[number]["text"] == server.text(prompt=prompts[number], max_tokens=6, ignore_eos=True)
    events = server.stream(COMPLETIONS, prompt=prompts, max_tokens=6, ignore_eos=True)
    assert [joined(events, index) for index in range(40)] == [choice["text"] for choice in choices]
    error = server.post(COMPLETIONS, {"model": NAME, "prompt": ["x"] * 1025, "max_tokens": 2}).error(400, "invalid_value", "prompt")
    assert "1024" in error["message"]
    assert len(server.complete(prompt=["x"] * 1024, max_tokens=1)["choices"]) == 1024, "as the documentation says"
    server.wait_until_idle()


def test_a_large_request_keeps_no_other_out(serve, long_model):
    """It delays neither other clients nor those of the same address."""
    server = serve(long_model, "--ctx", "1024", "--max-sequences", 2, "--max-queue", 6)
    with server.socket() as large:
        large.sendall(server.closing_message(prompt=[f"{number} The river" for number in range(1024)], max_tokens=900))
        wait_for(lambda: server.metrics()[AT_WORK] == 2)
        for source in (None, "127.0.0.2", "127.0.0.3"):
            answer = server.post(COMPLETIONS, {"model": NAME, "prompt": "The river", "max_tokens": 2}, source=source)
            assert answer.status == 200, answer
        wait_for(lambda: server.metrics()[AT_WORK] == 2)  # the large request goes on
    server.wait_until_idle()


def test_a_client_that_fills_the_queue_leaves_others_their_share(serve, long_model, report):
    """60 threads of one address send requests all the time; another client's are admitted at the first try, and those displaced by them get 429."""
    server = serve(long_model, "--ctx", "4096", "--max-sequences", 4, "--max-queue", 16)
    stopping = threading.Event()
    statuses = collections.Counter()

    def loop(number):
        while not stopping.wait(0.05):
            body = {"model": NAME, "prompt": f"{number} The river", "max_tokens": 1500, "ignore_eos": True, "stream": number % 2 == 0}
            statuses[server.post(COMPLETIONS, body).status] += 1

    with concurrent.futures.ThreadPoolExecutor(60) as pool:
        loops = [pool.submit(loop, number) for number in range(60)]
        try:
            wait_for(lambda: statuses[429] > 100)
            asked = {"model": NAME, "prompt": "The river", "max_tokens": 4}
            answers = [server.post(COMPLETIONS, asked, source="127.0.0.2") for _ in range(4)]
        finally:
            stopping.set()
        for one in loops:
            one.result()
    assert [answer.status for answer in answers] == [200] * 4
    assert set(statuses) == {200, 429}
    server.wait_until_idle()
    report(f"beside 60 looping threads of another address 4 of 4 tries are taken; of the threads' own {statuses[200]} of {statuses.total()}")


# Clients that vanish or crawl cost nothing: their slots and KV blocks are freed, and little is buffered for them.


@with_all_of_kv
@pytest.mark.parametrize("how", ["reset", "close", "half close"])
def test_clients_that_vanish_cost_nothing(serve, long_model, how, report):
    server = serve(long_model, "--ctx", "4096", "--max-sequences", 8, "--max-queue", 64)
    expected = server.text(prompt="The river", max_tokens=64)
    draw = random.Random(5)
    count = KILLS if how == "reset" else 20
    length = 300 if how == "half close" else 4000  # clients that only receive from then on get the whole answer
    slowest_s = 0.0
    for start in range(0, count, 10):
        connections = [server.socket() for _ in range(10)]
        for number, connection in enumerate(connections):
            # The prompts differ, so that none finds its KV in the cache.
            connection.sendall(server.stream_message(prompt=f"{start + number} The river", max_tokens=length, ignore_eos=True))
        wait_for(lambda: server.blocks_in_use() > 0)
        for connection in connections:
            wait = draw.randrange(4)
            if wait:  # others vanish while they are queued or before their first token
                with contextlib.suppress(socket.timeout):
                    connection.settimeout(0.1)
                    read_events(connection, wait)
        for connection in connections:
            if how == "reset":
                kill(connection)
            elif how == "close":
                connection.close()
            else:
                connection.shutdown(socket.SHUT_WR)
        killed = time.monotonic()
        server.wait_until_idle()
        slowest_s = max(slowest_s, time.monotonic() - killed)
        for connection in connections:
            connection.close()
    assert server.text(prompt="The river", max_tokens=64) == expected
    assert server.end() == 0  # also: a sanitizer found nothing
    report(f"R5: {count} clients gone by {how}: no block in use at most {1e3 * slowest_s:.0f} ms after ten of them")


@with_all_of_kv
def test_whole_answers_whose_client_left_are_given_up(serve, long_model):
    server = serve(long_model, "--ctx", "4096", "--max-sequences", 2, "--max-queue", 64)
    for _ in range(10):
        with server.socket() as connection:
            connection.sendall(server.closing_message(prompt="The river", max_tokens=4000))
            connection.settimeout(0.05)
            with contextlib.suppress(socket.timeout):
                connection.recv(1)
    server.wait_until_idle()
    assert server.text(prompt="The river", max_tokens=4)


def test_readers_that_crawl_hold_no_slot(serve, long_model, report):
    """Their answers are generated and wait in buffers; meanwhile the slots that they had serve others."""
    server = serve(long_model, "--ctx", "4096", "--max-sequences", 4, "--max-queue", 2 * SLOW_READERS)
    expected = server.text(prompt="The river", max_tokens=64)
    crawling = [server.socket(receive_buffer=4096) for _ in range(SLOW_READERS)]
    for number, connection in enumerate(crawling):
        connection.sendall(server.stream_message(prompt=f"{number} was wide", max_tokens=1000, ignore_eos=True))
    for _ in range(3):
        for connection in crawling:
            connection.recv(1)
        assert server.text(prompt="The river", max_tokens=64) == expected
    server.wait_until_idle()
    # Clients that read on get their whole answers.
    for connection in crawling[:3]:
        data = b"H"
        while b"[DONE]" not in data[-100:]:
            piece = connection.recv(1 << 16)
            assert piece, "cut"
            data += piece
        assert data.count(b"data: ") > 900
    for connection in crawling:
        connection.close()
    report(f"R5: {SLOW_READERS} readers at a byte now and then: no block in use while they crawl")


def test_readers_that_are_a_megabyte_behind_are_cut_off(serve, long_model):
    server = serve(long_model, "--ctx", "4096", "--max-sequences", 4)
    crawling = [server.socket(receive_buffer=4096) for _ in range(4)]
    for number, connection in enumerate(crawling):
        # About 4 MB: top logprobs make events long.
        connection.sendall(server.stream_message(prompt=f"{number} was wide", max_tokens=4000, ignore_eos=True, logprobs=20))
        connection.recv(1)
    server.wait_until_idle()
    assert server.text(prompt="The river", max_tokens=4)
    for connection in crawling:
        data = read_to_end(connection)
        assert b"[DONE]" not in data and len(data) < 3 << 20
        connection.close()


@with_all_of_kv
def test_scores_of_a_long_prompt_are_one_piece_that_cuts_no_client(serve, long_model):
    server = serve(long_model, "--ctx", "4096")
    fields = {"prompt": [5 + number % 90 for number in range(3000)], "echo": True, "logprobs": 20, "max_tokens": 1}
    events = server.stream(COMPLETIONS, **fields)
    assert max(len(json.dumps(event)) for event in events) > 1 << 20
    whole = server.complete(**fields)["choices"][0]
    assert joined(events) == whole["text"]
    tokens = [token for event in events for choice in event["choices"] for token in (choice["logprobs"] or {}).get("token_logprobs", [])]
    assert tokens == whole["logprobs"]["token_logprobs"]


# Only the offender fails: a prompt beyond the context, or one that exhausts KV memory, leaves the others' answers unchanged.


@with_all_of_kv
def test_only_the_one_beyond_the_context_fails(serve, long_model):
    context = 256
    server = serve(long_model, "--ctx", context, "--max-sequences", 16)
    others = {f"{number} The river": None for number in range(8)}
    fields = {"max_tokens": 200, "ignore_eos": True, "logprobs": 2}
    expected = {prompt: server.complete(prompt=prompt, **fields)["choices"][0] for prompt in others}

    def ids(count):
        draw = random.Random(count)
        return [draw.randrange(256) for _ in range(count)]

    def ask_offender(count, **more):
        return server.post(COMPLETIONS, {"model": NAME, "prompt": ids(count), "max_tokens": 10, "ignore_eos": True} | more)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for _ in range(3):
            active = {prompt: pool.submit(server.complete, prompt=prompt, **fields) for prompt in others}
            offenders = {count: pool.submit(ask_offender, count) for count in (context - 1, context, context + 1, 10 * context)}
            last = offenders[context - 1].result().ok()
            assert last["usage"]["prompt_tokens"] == context - 1 and last["usage"]["total_tokens"] == context
            assert last["choices"][0]["finish_reason"] == "length"
            for count in (context, context + 1, 10 * context):
                error = offenders[count].result().error(400, "context_length_exceeded")
                assert str(context) in error["message"] and str(count) in error["message"], error
            for prompt, answer in active.items():
                assert answer.result()["choices"][0] == expected[prompt], "bit-equal beside the offenders"
    # Without tokens to generate the prompt can be one token longer.
    scored = ask_offender(context, max_tokens=0, echo=True, logprobs=0).ok()
    assert scored["usage"]["total_tokens"] == context
    ask_offender(context + 1, max_tokens=0, echo=True, logprobs=0).error(400, "context_length_exceeded")
    server.wait_until_idle()


@with_all_of_kv
def test_where_memory_holds_fewer_all_are_answered_in_turn(serve, long_model):
    """Room for 8 contexts, 12 requests that fill theirs: some wait, none fails or differs."""
    context = 4096
    server = serve(long_model, "--ctx", context, "--max-sequences", 64, "--max-queue", 64, "--host-memory", "28MiB")
    expected = {number: server.complete(prompt=[number], max_tokens=context, ignore_eos=True) for number in range(3)}
    assert expected[0]["usage"]["total_tokens"] == context
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(server.complete, prompt=[number % 3], max_tokens=context, ignore_eos=True) for number in range(12)]
        for number, answer in enumerate(asked):
            assert answer.result()["choices"] == expected[number % 3]["choices"]
    server.wait_until_idle()


# Everything at once.


def mixed_request(draw):
    """Fields of a random request whose answer depends on nothing but these fields."""
    fields = {"prompt": f"{draw.randrange(4)} The river", "max_tokens": draw.choice([1, 5, 40, 120]), "ignore_eos": True}
    fields |= draw.choice([{}, {"temperature": 1, "seed": draw.randrange(3)}, {"stop": "e"}, {"logprobs": 2}, {"echo": True}, {"n": 3}])
    if draw.random() < 0.2:
        fields["prompt"] = [fields["prompt"], "In the morning", "a" * 60]
    return fields | {"priority": draw.randint(-2, 2), "user": str(draw.randrange(3))}


@with_all_of_kv
def test_mixed_clients_have_the_answers_they_would_have_alone(serve, long_model, report):
    """Whole and streamed, finished and left, of several users: the same as one by one."""
    server = serve(long_model, "--ctx", "1024", "--max-sequences", 6, "--max-queue", 500, "--trust-priorities")
    draws = [random.Random(number) for number in range(12)]
    asked = [[(mixed_request(draw), draw.choice(["whole", "whole", "stream", "left"])) for _ in range(20)] for draw in draws]
    alone = {}
    for fields, _ in itertools.chain.from_iterable(asked):
        key = json.dumps(fields, sort_keys=True)
        if key not in alone:
            alone[key] = [choice["text"] for choice in server.complete(**fields)["choices"]]

    def run_client(requests):
        for fields, how in requests:
            expected = alone[json.dumps(fields, sort_keys=True)]
            if how == "whole":
                texts = [choice["text"] for choice in server.complete(**fields)["choices"]]
            elif how == "stream":
                events = server.stream(COMPLETIONS, **fields)
                texts = [joined(events, index) for index in range(len(expected))]
            else:
                with server.socket() as connection:
                    connection.sendall(server.stream_message(**fields))
                    connection.recv(1)
                    kill(connection)
                continue
            assert texts == expected, (how, fields)
        return len(requests)

    with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
        count = sum(pool.map(run_client, asked))
    server.wait_until_idle()
    assert server.end() == 0  # also: a sanitizer found nothing
    report(f"{count} mixed requests of {len(asked)} clients: as one by one")


# Order of service, with a model that is slow enough for requests to queue.

SLOW_MODEL = "dummy:opt-125m"


def in_line(server, requests, headers=()):
    """Sends requests one after the other behind a running one; returns the order in which they were served."""
    with server.socket() as busy:
        busy.sendall(server.stream_message(prompt=[5, 6, 7], max_tokens=100, ignore_eos=True))
        read_events(busy, 1)
        connections = []
        for fields, more in itertools.zip_longest(requests, headers, fillvalue=()):
            connection = server.socket()
            connection.sendall(server.closing_message(headers=more, max_tokens=3, **fields))
            connections.append(connection)
            wait_for(lambda: server.metrics()[WAITING] >= len(connections))
        answers = read_all(connections)
        for connection in connections:
            connection.close()
    assert {status_of(raw) for raw, _ in answers} == {200}
    return sorted(range(len(requests)), key=lambda number: answers[number][1])


def test_tokens_come_as_they_are_made(serve):
    """Tokens must not arrive all together at the end."""
    server = serve(SLOW_MODEL, "--ctx", "256")
    with server.socket() as connection:
        connection.sendall(server.closing_message(prompt=[5, 6, 7], max_tokens=40, stream=True))
        reads = []
        while piece := connection.recv(1 << 16):
            reads.append(piece)
    assert len(stream_events(b"".join(reads))) >= 40
    assert sum(b"data: " in piece for piece in reads) > 5


def test_lower_priorities_come_earlier(serve):
    server = serve(SLOW_MODEL, "--ctx", "256", "--max-sequences", 1, "--max-queue", 16, "--trust-priorities")
    requests = [{"prompt": [number, 9], "priority": priority} for number, priority in enumerate((5, 0, 7, -3))]
    requests.append({"prompt": [4, 9]})  # 0, behind the other
    assert in_line(server, requests) == [3, 1, 4, 0, 2]


def test_one_user_does_not_keep_others_waiting(serve):
    server = serve(SLOW_MODEL, "--ctx", "256", "--max-sequences", 1, "--max-queue", 32)
    requests = [{"prompt": [number, 9], "user": "many"} for number in range(8)]
    requests.append({"prompt": [8, 9], "user": "one"})
    order = in_line(server, requests)
    assert order.index(8) < 4, f"the ninth request, of another user, was number {order.index(8) + 1}"


def keyed(server, requests):
    """Calls in_line() with requests given as (key, fields)."""
    return in_line(server, [fields for _, fields in requests], [[f"Authorization: Bearer {key}"] for key, _ in requests])


def test_names_that_a_client_makes_up_bring_it_no_second_share(serve, tmp_path):
    """A client is its key, however it is written; a new user with each request shares what the key gets."""
    (tmp_path / "keys").write_text("one\ntwo\n")
    (tmp_path / "keys").chmod(0o600)
    server = serve(SLOW_MODEL, "--ctx", "256", "--max-sequences", 1, "--max-queue", 32, "--api-key-file", tmp_path / "keys")
    server.headers = {"Authorization": "Bearer two"}
    many = [(" " * (number % 3) + "one", {"prompt": [number, 9], "user": str(number)}) for number in range(8)]
    other = [("two", {"prompt": [20 + number, 9]}) for number in range(3)]
    order = keyed(server, many + other)
    assert [order.index(8 + number) < 2 * number + 3 for number in range(3)] == [True] * 3, f"every second turn is the other's: {order}"


def test_without_keys_a_client_is_where_it_calls_from(serve):
    server = serve(SLOW_MODEL, "--ctx", "256", "--max-sequences", 1, "--max-queue", 32)
    requests = [{"prompt": [number, 9]} for number in range(6)]
    headers = [[f"Authorization: Bearer made-up-{number}"] for number in range(5, -1, -1)]
    assert in_line(server, requests, headers) == list(range(6)), "one client's requests begin as they came"
