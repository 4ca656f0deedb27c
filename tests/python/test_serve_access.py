# SPDX-License-Identifier: Apache-2.0
"""spillway serve keeps strangers out (keys, paths, web pages of others), and no request can forge a line of its logs."""

import gzip
import json
import pathlib
import re
import resource

import pytest

from conftest import end_process
from serve_checks import CHAT, COMPLETIONS, NAME, Server, parse_metrics, wait_for

pytestmark = pytest.mark.xdist_group("serve_access")

KEYS = ["sk-first-0123456789", "sk-second+/=._-"]
GOOD = {"model": NAME, "prompt": "The river", "max_tokens": 2, "temperature": 0}
GOOD_CHAT = {"model": NAME, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
ROUTES = [
    ("GET", "/v1/models", None),
    ("GET", f"/v1/models/{NAME}", None),
    ("POST", COMPLETIONS, GOOD),
    ("POST", CHAT, GOOD_CHAT),
    ("POST", "/tokenize", {"content": "x"}),
    ("POST", "/detokenize", {"tokens": [5]}),
    ("GET", "/tokenizer_info", None),
    ("GET", "/models", None),
    ("GET", "/version", None),
    ("POST", "/chat/completions", GOOD_CHAT),
    ("POST", COMPLETIONS + "/", GOOD),
    ("GET", "/metrics", None),
    ("GET", "/nowhere", None),
]
WRONG_KEYS = {
    "none": None, "empty": "", "bare": KEYS[0], "basic": f"Basic {KEYS[0]}", "other": "Bearer sk-other", "shorter": f"Bearer {KEYS[0][:-1]}",
    "longer": f"Bearer {KEYS[0]}x", "upper case": f"Bearer {KEYS[0].upper()}", "both": f"Bearer {KEYS[0]},{KEYS[1]}",
    "no key": "Bearer ", "quoted": f'Bearer "{KEYS[0]}"', "comment": "Bearer # keys", "huge": "Bearer " + "x" * 8000,
}  # fmt: skip
TRAVERSALS = [
    "/../../../../etc/passwd", "/..%2f..%2f..%2fetc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/v1/models/../../etc/passwd",
    "/v1/models/..%2F..%2F..%2Fetc%2Fpasswd", "//etc/passwd", "/v1/models//etc/passwd", "/v1/models/%2Fetc%2Fpasswd", "/etc/passwd",
    "/v1/../metrics", "/health/../metrics", "/health/..;/metrics", "/health%2f..%2fmetrics", "/health?/../metrics", "/v1/models/.",
    "/v1/models/..", "/v1/models/%2e%2e", "/static/..%5c..%5cetc%5cpasswd", "/v1/models/....//....//etc/passwd", "/health;x=/../metrics",
    "/v1/models/%c0%ae%c0%ae/", "/%252e%252e/etc/passwd", "/v1/models/tiny%00.txt", "/.git/config", "/proc/self/environ",
    "http://127.0.0.1/../etc/passwd", "/health/", "/HEALTH", "/health%20", "/./health/../v1/models",
]  # fmt: skip


@pytest.fixture(scope="module")
def key_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"# keys\n\n{KEYS[0]}\n{KEYS[1]}\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def locked(spillway, tiny_model, tmp_path_factory, key_file):
    """A server that wants a key."""
    with Server(spillway, tiny_model, tmp_path_factory.mktemp("serve"), "--api-key-file", key_file, "--ctx", "256") as server:
        yield server
        assert server.process.poll() is None, server.log()


# Keys.


@pytest.mark.parametrize("method, path, body", ROUTES, ids=[path for _, path, _ in ROUTES])
def test_every_route_wants_a_key(locked, method, path, body):
    for name, value in WRONG_KEYS.items():
        answer = locked.ask(method, path, body, {"Authorization": value} if value is not None else None)
        error = answer.error(401)
        assert not any(key in error["message"] for key in KEYS), name
    for key in KEYS:
        answer = locked.ask(method, path, body, {"Authorization": f"Bearer {key}"})
        assert answer.status == (404 if path == "/nowhere" else 200), answer


def test_health_is_open(locked):
    assert locked.get("/health").ok() == {"status": "ok"}
    for value in WRONG_KEYS.values():
        assert locked.get("/health", headers={"Authorization": value} if value else None).status == 200


def test_the_page_opens_and_asks_for_a_key_itself(locked):
    for path in ("/", "/page.js", "/page.css"):
        assert locked.get(path).status == 200
    assert 'id="unlock"' in locked.get("/").raw.decode()


def test_who_sends_all_of_a_large_body_first_can_read_the_refusal(locked):
    """Most clients send all of a body first; the server reads one that it refuses, up to twice its limit."""
    body = b"x" * 40_000_000
    for headers, status in (({}, 401), ({"Authorization": f"Bearer {KEYS[0]}"}, 413)):
        locked.post(COMPLETIONS, body, headers=headers).error(status)


def test_compressed_bodies_are_refused(locked):
    headers = {"Authorization": f"Bearer {KEYS[0]}", "Content-Encoding": "gzip"}
    locked.post(COMPLETIONS, gzip.compress(json.dumps(GOOD).encode()), headers=headers).error(415)


def cached(server, key, prompt, **fields):
    body = GOOD | {"prompt": prompt} | fields
    answer = server.post(COMPLETIONS, body, headers={"Authorization": f"Bearer {key}"} if key else None).ok()
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


LONG = "Stones lay where the water ran over stones and under bridges, past mills and meadows, and into the sea. " * 2


def test_one_key_cannot_see_what_another_has_asked(locked):
    assert cached(locked, KEYS[0], LONG) < 4  # at most the tokens with which prompts of other tests begin
    assert cached(locked, KEYS[0], LONG) > 16
    assert cached(locked, KEYS[1], LONG) < 4, "as if nobody had asked"
    assert cached(locked, KEYS[1], LONG) > 16
    assert cached(locked, KEYS[0], LONG, cache_salt="mine") == 0
    assert cached(locked, KEYS[0], LONG, cache_salt="mine") > 16
    assert cached(locked, KEYS[1], LONG, cache_salt="mine") == 0
    for salt in ("", 5, "x" * 2000):
        body = GOOD | {"cache_salt": salt}
        locked.post(COMPLETIONS, body, headers={"Authorization": f"Bearer {KEYS[0]}"}).error(400, param="cache_salt")


def test_prefixes_are_shared_on_demand(spillway, tiny_model, tmp_path, key_file):
    with Server(spillway, tiny_model, tmp_path, "--api-key-file", key_file, "--share-prefixes", "all") as server:
        assert cached(server, KEYS[0], LONG) == 0
        assert cached(server, KEYS[1], LONG) > 16
        assert cached(server, KEYS[1], LONG, cache_salt="mine") == 0


def test_load_is_told_by_key_and_answers_by_route(locked):
    locked.get("/nowhere").error(401)
    locked.ask("POST", COMPLETIONS, GOOD, {"Authorization": f"Bearer {KEYS[1]}"}).ok()
    text = locked.get("/metrics", headers={"Authorization": f"Bearer {KEYS[0]}"}).raw.decode()
    values = parse_metrics(text)
    by_key = {name: value for name, value in values.items() if name.startswith("spillway_key_")}
    assert 4 <= len(by_key) <= 8 and all(re.search(r'\{key="[0-9a-f]{8}"\}$', name) for name in by_key)
    assert any(name.startswith("spillway_key_generated_tokens_total") and value >= 2 for name, value in by_key.items())
    assert values['spillway_http_requests_total{route="other",status="401"}'] >= 1
    assert values[f'spillway_http_requests_total{{route="{COMPLETIONS}",status="200"}}'] >= 1
    assert values["spillway_queue_seconds_count"] == values["spillway_request_generated_tokens_count"] >= 1
    assert values["spillway_request_prompt_tokens_count"] >= 1
    assert values["spillway_http_connections_open"] >= 1 and values['spillway_limit{of="requests"}'] > 1
    assert values["process_resident_memory_bytes"] > 1 << 20 and values["process_open_fds"] > 3
    assert not any(key in text for key in KEYS)


def test_a_body_without_a_key_is_not_waited_for(locked):
    """A client without a key is refused before it sends a gigabyte."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000000\r\nExpect: 100-continue\r\n\r\n"
    assert locked.raw(head)[0] == 401
    assert locked.raw(head.replace(b"Expect: 100-continue\r\n", b""))[0] == 401


def test_keys_are_in_no_log(locked):
    for key in KEYS:
        locked.get(f"/v1/models?key={key}x", headers={"Authorization": f"Bearer {key}"})
        locked.get("/v1/models", headers={"Authorization": f"Bearer {key}x"})
        assert f"{key}\n" not in locked.log() and f"Bearer {key}" not in locked.log()


@pytest.mark.parametrize("content", ["", "\n# none\n", "a b\n", "x" * 300, "caf\u00e9\n"], ids=["empty", "comments", "space", "long", "letters"])
def test_a_file_without_good_keys_is_refused(spillway, tiny_model, tmp_path, content):
    """A server that should require keys does not start without them."""
    (tmp_path / "keys").write_text(content)
    (tmp_path / "keys").chmod(0o600)
    done = spillway.run("serve", tiny_model, "--port", "0", "--api-key-file", tmp_path / "keys", timeout=60)
    done.assert_one_line_error(2)


def test_a_file_that_is_not_there_is_refused(spillway, tiny_model, tmp_path):
    spillway.run("serve", tiny_model, "--port", "0", "--api-key-file", tmp_path / "none", timeout=60).assert_one_line_error(2)


@pytest.mark.parametrize("header", ["x-api-key", "X-API-Key", "api-key"])
def test_a_key_may_come_in_the_header_of_another_api(locked, header):
    for key in KEYS:
        locked.ask("POST", COMPLETIONS, GOOD, {header: key}).ok()
        locked.ask("POST", COMPLETIONS, GOOD, {header: key, "Authorization": "Bearer none"}).ok()
    for wrong in ("", KEYS[0][:-1], f"Bearer {KEYS[0]}", KEYS[0].upper()):
        locked.ask("POST", COMPLETIONS, GOOD, {header: wrong}).error(401)


# Paths.


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_path_leads_out(locked, path):
    for key in ([], [f"Authorization: Bearer {KEYS[0]}"]):
        lines = "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", *key, "", ""]).encode()
        status, raw = locked.raw(lines)
        assert b"root:" not in raw and b"PATH=" not in raw and b"[core]" not in raw
        is_health = path.startswith("/health?") or path == "/health/"
        assert status in (400, 401, 404) or (is_health and status == 200), raw[:200]
        if not key and not is_health:
            assert b"spillway_" not in raw and b'"data"' not in raw, "nothing without a key, however the path is written"


# Connections.


def tcp_sockets(pid):
    """(local port, remote port, state) of a process's TCP sockets."""
    inodes = set()
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink()))
        except OSError:
            continue
        if found:
            inodes.add(found[1])
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[9] in inodes:
                yield int(words[1].rsplit(":", 1)[1], 16), int(words[2].rsplit(":", 1)[1], 16), words[3], words[1].rsplit(":", 1)[0]


def test_it_listens_on_this_machine_only_and_connects_nowhere(locked):
    locked.ask("POST", COMPLETIONS, GOOD, {"Authorization": f"Bearer {KEYS[0]}"}).ok()
    found = list(tcp_sockets(locked.process.pid))
    listening = [entry for entry in found if entry[2] == "0A"]
    assert [(entry[0], entry[3]) for entry in listening] == [(locked.port, "0100007F")]
    assert all(entry[0] == locked.port for entry in found), "a connection that it made itself"


# Logs.


NASTY = ["line\nbreak", "carriage\rreturn", "\x1b[31mred\x1b[0m", "\x00zero", "tab\tstop", "\u2028separator", "quote\"back\\slash", "{}%s%n"]


def send_nasty(server):
    """Sends requests in which everything that a log may repeat has line ends and terminal codes."""
    for text in NASTY:
        server.post(COMPLETIONS, {"model": text, "prompt": "x"}).error(404)
        server.post(COMPLETIONS, {"model": NAME, "prompt": f"SECRET {text}", "user": text, "max_tokens": 1}).ok()
        server.post(CHAT, {"model": NAME, "messages": [{"role": text, "content": "SECRET"}]}).error(400)
        server.post(CHAT, {"model": NAME, "messages": [{"role": "user", "content": f"SECRET {text}"}], "max_tokens": 1}).ok()
        server.post(COMPLETIONS, {"model": NAME, "prompt": "SECRET", "max_tokens": 1, text: 1}).ok()
        server.post(COMPLETIONS, json.dumps({"model": NAME, "prompt": "SECRET", "max_tokens": 1}, indent=1).encode()).ok()
        server.post(COMPLETIONS, f'{{"SECRET": "{text}'.encode()).error(400)
        server.raw(b"GET /" + text.encode() + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", half_close=True)
        server.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: " + text.encode() + b"\r\n\r\n", half_close=True)
        server.raw(text.encode() + b" / HTTP/1.1\r\n\r\n", half_close=True)


def assert_clean_lines(log):
    assert log.endswith("\n") or not log
    for line in log.split("\n"):
        assert line.isprintable(), f"not one plain line: {line!r}"
        assert len(line) < 4096


def test_logs_are_plain_lines_without_prompts(spillway, tiny_model, tmp_path):
    with Server(spillway, tiny_model, tmp_path, verbose=True) as server:
        before = len(server.log().splitlines())
        send_nasty(server)
        assert server.end() == 0
        log = server.log()
    assert_clean_lines(log)
    assert len(log.splitlines()) > before, "something is logged"
    assert "SECRET" not in log
    assert not any(line.startswith(("break", "return")) for line in log.splitlines())


def test_json_logs_are_json_lines_without_prompts(spillway, tiny_model, tmp_path):
    with Server(spillway, tiny_model, tmp_path, "--log-json", verbose=True) as server:
        send_nasty(server)
        assert server.end() == 0
        log = server.log()
    lines = log.splitlines()
    entries = [json.loads(line) for line in lines]
    assert len(entries) > 8 * len(NASTY) // 2
    assert all(isinstance(entry, dict) for entry in entries) and all(line.isprintable() for line in lines)
    assert "SECRET" not in log


def test_prompts_are_logged_on_demand(spillway, tiny_model, tmp_path):
    for options in (["--log-prompts"], ["--log-prompts", "--log-json"]):
        with Server(spillway, tiny_model, tmp_path, *options, verbose=True) as server:
            send_nasty(server)
            assert server.end() == 0
            log = server.log()
        assert "SECRET line" in log
        assert_clean_lines(log)


def log_of(spillway, model, folder, *options, ask):
    """(the entries of a JSON log, the result of `ask` for the server)"""
    with Server(spillway, model, folder, "--log-json", *options) as server:
        said = ask(server)
        assert server.end() == 0
        return [json.loads(line) for line in server.log().splitlines()], said


def test_json_logs_have_fields_and_the_ids_that_clients_got(spillway, tiny_model, tmp_path):
    def ask(server):
        whole = server.post(CHAT, GOOD_CHAT)
        stream = server.post(COMPLETIONS, GOOD | {"stream": True})
        return whole.json()["id"], stream.headers["x-request-id"], server.post(COMPLETIONS, GOOD | {"n": 0}).headers["x-request-id"]

    entries, (chat, text, bad) = log_of(spillway, tiny_model, tmp_path, ask=ask)
    assert chat.startswith("chatcmpl-") and text.startswith("cmpl-")
    assert all({"time", "level", "message"} <= set(entry) for entry in entries)
    for name, kind in ((chat, "chat"), (text, "completion")):
        (done,) = [entry for entry in entries if entry.get("event") == kind]
        assert done["id"] == name and name in done["message"]
        assert done["finish"] == "length" and done["completion_tokens"] == 2 and done["prompt_tokens"] > 2 and done["cached_tokens"] >= 0
        assert 0 <= done["first_token_seconds"] <= done["seconds"] and "answers" not in done
        (http,) = [entry for entry in entries if entry.get("event") == "http" and entry["id"] == name]
        assert http["status"] == 200 and http["method"] == "POST" and http["bytes"] > 100 and name in http["message"]
    (refused,) = [entry for entry in entries if entry.get("event") == "http" and entry["id"] == bad]
    assert refused["status"] == 400


def test_all_answers_are_logged_on_demand(spillway, tiny_model, tmp_path):
    def ask(server):
        return [choice["text"] for choice in server.complete(prompt="The river", n=3, temperature=1, max_tokens=6)["choices"]]

    entries, texts = log_of(spillway, tiny_model, tmp_path, "--log-prompts", ask=ask)
    (done,) = [entry for entry in entries if entry.get("event") == "completion"]
    assert len(texts) == len(set(done["answers"])) == 3
    (asked,) = [entry for entry in entries if entry.get("event") == "asked"]
    assert asked["id"] == done["id"] and "The river" in asked["body"]


# Addresses and connections.


def test_an_open_door_is_warned_of(spillway, tiny_model, tmp_path):
    (tmp_path / "keys").write_text(KEYS[0])
    (tmp_path / "keys").chmod(0o600)
    for options, warned in ((["--host", "0.0.0.0"], True), (["--host", "0.0.0.0", "--api-key-file", tmp_path / "keys"], False), ([], False)):
        with Server(spillway, tiny_model, tmp_path, *options, wait=False) as server:
            wait_for(lambda: "requests running" in server.log())
            lines = [line for line in server.log().splitlines() if "--api-key-file" in line]
            assert len(lines) == (1 if warned else 0), server.log()


def test_a_long_queue_has_connections_for_all(spillway, tiny_model, tmp_path):
    """The server takes as many connections as the process may open files for, and says so if these are too few."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 4096:
        pytest.skip(f"this system allows {before[1]} files of a process")
    with Server(spillway, tiny_model, tmp_path, "--max-queue", "3000") as server:
        files = re.search(r"Max open files +(\d+)", pathlib.Path(f"/proc/{server.process.pid}/limits").read_text())
        assert int(files[1]) >= 3000 and "ulimit" not in server.log()
    with open(tmp_path / "log", "wb") as log:
        few = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (900, 900))}
        process = spillway.start("serve", tiny_model, "--port", 0, "--device", "cpu", "--max-queue", "3000", stderr=log, **few)
    try:
        wait_for(lambda: b"requests running" in (tmp_path / "log").read_bytes())
        (line,) = [line for line in (tmp_path / "log").read_text().splitlines() if "ulimit -n" in line]
        assert "450 connections" in line and "900 files" in line
    finally:
        end_process(process)


# Pages of the web.


def test_without_keys_other_names_and_pages_are_refused(spillway, tiny_model, tmp_path):
    post = {"Content-Type": "text/plain"}
    with Server(spillway, tiny_model, tmp_path, "--allowed-hosts", "llm.example,other.example") as server:
        own = f"http://127.0.0.1:{server.port}"
        for host in (f"localhost:{server.port}", "127.0.0.1", f"[::1]:{server.port}", "llm.example", "other.example:443"):
            server.post(COMPLETIONS, GOOD, headers=post | {"Host": host}).ok()
        server.post(COMPLETIONS, GOOD, headers=post | {"Origin": own}).ok()
        error = server.post(COMPLETIONS, GOOD, headers=post | {"Host": "evil.example"}).error(403, "host_not_allowed")
        assert "--allowed-hosts evil.example" in error["message"]
        error = server.post(COMPLETIONS, GOOD, headers=post | {"Origin": "http://evil.example"}).error(403, "origin_not_allowed")
        assert "--cors http://evil.example" in error["message"]
        assert server.get("/", headers={"Host": "evil.example"}).status == 403
        assert server.get("/health", headers={"Host": "evil.example"}).status == 200


def test_what_is_no_name_is_refused_at_the_start(spillway, tiny_model):
    done = spillway.run("serve", tiny_model, "--port", "0", "--allowed-hosts", "http://a", timeout=60)
    done.assert_one_line_error(2)


def test_pages_may_call_only_where_it_was_allowed(spillway, tiny_model, tmp_path):
    name = "access-control-allow-origin"
    with Server(spillway, tiny_model, tmp_path) as server:
        assert name not in server.get("/v1/models", headers={"Origin": "https://a.example"}).headers
        assert name not in server.ask("OPTIONS", CHAT, headers={"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}).headers
    with Server(spillway, tiny_model, tmp_path, "--cors", "https://a.example", "--cors", "http://localhost:3000") as server:
        for origin in ("https://a.example", "http://localhost:3000"):
            assert server.get("/v1/models", headers={"Origin": origin}).headers[name] == origin
            asked = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
            answer = server.ask("OPTIONS", CHAT, headers=asked)
            assert answer.status in (200, 204) and answer.headers[name] == origin
            assert "POST" in answer.headers["access-control-allow-methods"]
            assert "authorization" in answer.headers["access-control-allow-headers"].lower()
            assert server.post(CHAT, {"model": "other"}, headers={"Origin": origin}).headers[name] == origin, "errors, too"
        for origin in ("https://b.example", "https://a.example.evil", "http://a.example", "null"):
            assert name not in server.get("/v1/models", headers={"Origin": origin}).headers
    with Server(spillway, tiny_model, tmp_path, "--cors", "*") as server:
        assert server.get("/v1/models", headers={"Origin": "https://b.example"}).headers[name] == "*"
