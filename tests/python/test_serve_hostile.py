# SPDX-License-Identifier: Apache-2.0
"""A bad request harms no other: during thousands of them /health answers in time, and good requests get their usual answers afterwards."""

import collections
import concurrent.futures
import json
import re
import socket
import time

import hostile_requests
import pytest

from serve_checks import GENEROUS_S, NAME, Beside, resident_kib, server_fixture

pytestmark = pytest.mark.xdist_group("serve_hostile")
# A small context, so that bodies that are accepted after all end soon.
server = server_fixture("--ctx", "128", "--max-sequences", "16", "--max-queue", "64")

CLIENTS = 4
DAMAGED_BODIES = 1500
DAMAGED_HTTP = 1500
FEWEST_CASES = 5000
OUR_FAULT = re.compile(rb"(0x[0-9a-f]{6,}|std::|/src/|\.cc:|terminate|bad_alloc)")


class Prober(Beside):
    """Requests /health all the time, and records how long the answers took."""

    def __init__(self, server):
        super().__init__(server)
        self.seconds = []
        self.problem = None

    def look(self):
        started = time.monotonic()
        try:
            answer = self.server.get("/health", timeout=GENEROUS_S)
            if answer.status != 200:
                self.problem = answer
        except Exception as problem:  # any exception must reach the test
            self.problem = problem
        self.seconds.append(time.monotonic() - started)

    def summary(self):
        values = sorted(self.seconds)
        return f"/health {len(values)} times, p50 {1e3 * values[len(values) // 2]:.1f} ms, p99 {1e3 * values[int(len(values) * 0.99)]:.1f} ms"


def is_error_body(raw):
    head, _, body = raw.partition(b"\r\n\r\n")
    if b"application/json" not in head.lower():
        return False
    error = json.loads(body)["error"]
    return isinstance(error["message"], str) and {"type", "param", "code"} <= set(error)


def judge_body(server, case):
    """(status, '' or the fault) of the answer to a body in good HTTP, which must be an answer, or an error in OpenAI's format."""
    path, body = case
    status, raw = server.raw(hostile_requests.message(path, body, b"Connection: close\r\n"))
    shown = f"{path} {body[:300]!r}: {raw[:600]!r}"
    if status == 200:
        return status, ""
    if status not in (400, 404, 413):
        return status, f"status {status} to {shown}"
    if not is_error_body(raw):
        return status, f"no error in OpenAI's form: {shown}"
    if OUR_FAULT.search(raw.partition(b"\r\n\r\n")[2].replace(body[:100], b"")):
        return status, f"an error that tells of our insides: {shown}"
    return status, ""


def judge_http(server, data):
    """The same for bytes that need not be HTTP: an answer below 500, one of the two 5xx for things not supported, or a close is good."""
    try:
        status, raw = server.raw(data, half_close=True)
    except socket.timeout:
        return 0, f"no answer and no close: {data[:300]!r}"
    if status in (0, 100, 501, 505) or 200 <= status < 500:
        return status, ""
    return status, f"status {status} to {data[:300]!r}: {raw[:300]!r}"


def assert_harmless(server, report, title, judge, cases):
    """No case has a bad answer, /health answers all the while, and afterwards the server is as it was."""
    fields = {"prompt": "The river", "max_tokens": 40, "logprobs": 3}
    before = server.complete(**fields)["choices"]
    memory = resident_kib(server.process)
    with Prober(server) as prober, concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        judged = list(pool.map(lambda case: judge(server, case), cases))
    assert server.process.poll() is None, f"it ended with {server.process.returncode}: {server.log()[-3000:]}"
    problems = [problem for _, problem in judged if problem]
    assert not problems, f"{len(problems)} of {len(cases)}:\n" + "\n".join(problems[:20])
    assert prober.problem is None and max(prober.seconds) < GENEROUS_S
    assert server.complete(**fields)["choices"] == before, "others are answered as before"
    server.wait_until_idle()
    grown = resident_kib(server.process) - memory
    assert grown < 300_000, f"{grown} KiB more"
    statuses = collections.Counter(status for status, _ in judged)
    told = ", ".join(f"{count} times {status or 'closed'}" for status, count in sorted(statuses.items()))
    report(f"R3, {title}: {len(cases)} cases: {told}; {prober.summary()}; {grown / 1024:+.0f} MiB")


def test_there_are_enough_cases():
    made = (hostile_requests.extremes, hostile_requests.structures, hostile_requests.wrong_http)
    assert sum(sum(1 for _ in cases()) for cases in made) + DAMAGED_BODIES + DAMAGED_HTTP >= FEWEST_CASES


def test_extremes_of_every_field(server, report):
    assert_harmless(server, report, "extremes", judge_body, [*hostile_requests.extremes()])


def test_depth_length_and_spelling(server, report):
    assert_harmless(server, report, "structures", judge_body, [*hostile_requests.structures()])


def test_damaged_bodies(server, report):
    assert_harmless(server, report, "damaged bodies", judge_body, [*hostile_requests.damaged_bodies(DAMAGED_BODIES, seed=11)])


def test_wrong_http(server, report):
    assert_harmless(server, report, "wrong HTTP", judge_http, [*hostile_requests.wrong_http()])


def test_damaged_http(server, report):
    assert_harmless(server, report, "damaged HTTP", judge_http, [*hostile_requests.damaged_http(DAMAGED_HTTP, seed=12)])


def test_a_smuggled_request_is_not_answered(server):
    """Two answers to what a proxy takes for one request would reach the wrong client."""
    for data in hostile_requests.wrong_http():
        # One chunked body and then another request are two requests for any reader.
        honest = data.startswith(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        if b"GET /metrics" not in data or honest:
            continue
        with server.socket() as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            raw = b""
            try:
                while piece := connection.recv(1 << 16):
                    raw += piece
            except ConnectionError:
                pass
        assert b"spillway_" not in raw, data


def test_connections_that_say_nothing_cost_nothing(server):
    idle = [server.socket() for _ in range(200)]
    try:
        for connection in idle[::2]:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le")
        assert server.get("/health").status == 200
        assert server.text(prompt="The river", max_tokens=5)
    finally:
        for connection in idle:
            connection.close()


def test_a_model_name_is_all_that_is_needed(server):
    """The table of extremes would prove nothing if its base request were refused."""
    for path, body in hostile_requests.PLAIN.items():
        assert server.post(path, body).status == 200
    for path, body in hostile_requests.RICH.items():
        assert server.post(path, body).status == 200, server.post(path, body).raw
    assert NAME == server.name
