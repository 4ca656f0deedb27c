# SPDX-License-Identifier: Apache-2.0
"""The server's own page: what browsers get, and that it shows metrics that exist."""

import json
import os
import re
import shutil
import subprocess

import pytest
from serve_checks import server_fixture, wait_for

pytestmark = pytest.mark.xdist_group("serve_page")
server = server_fixture("--ctx", "256")

FILES = {"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript"}


def text_of(server, path):
    answer = server.get(path)
    assert answer.status == 200, answer
    return answer.raw.decode()


@pytest.mark.parametrize("path", FILES)
def test_browsers_get_the_files_and_may_do_nothing_else_with_them(server, path):
    headers = server.get(path).headers
    assert headers["content-type"].startswith(FILES[path] + "; charset=utf-8")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_the_page_asks_for_its_own_files_only(server):
    page = text_of(server, "/")
    linked = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert {"/" + name for name in linked} == set(FILES) - {"/"}
    for path in FILES:
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text_of(server, path)), "it works without a network"


def test_text_never_becomes_markup(server):
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text_of(server, "/page.js"))


def test_the_page_knows_the_names_that_the_server_tells(server):
    server.complete(prompt="Once", max_tokens=3)
    told = set(re.findall(r"^([a-z_]+)", text_of(server, "/metrics"), re.MULTILINE))
    script = text_of(server, "/page.js")
    wanted = set(re.findall(r'spillway_[a-z_]+(?=[" )])', script.replace("||", " ")))
    assert len(wanted) > 10
    for name in wanted:
        assert name in told or f"{name}_bucket" in told, name
    page = text_of(server, "/")
    for name in re.findall(r'byId\("([^"]+)"\)', script):
        assert f'id="{name}"' in page, name


# A stand-in for a browser, as far as showing metrics needs it: it stores the text of elements, and prints it at the end.
FAKE_BROWSER = """
const elements = {};
class Element {
  constructor() { this.children = []; this.style = {}; this.textContent = ""; }
  append(...more) { this.children.push(...more); }
  replaceChildren(...all) { this.children = all; }
  setAttribute() {}
  addEventListener() {}
  text() { return [this.textContent, ...this.children.map((child) => child.text())].join(" ").trim(); }
}
globalThis.document = {
  getElementById: (id) => (elements[id] ||= Object.assign(new Element(), { hidden: id === "unlock" })),
  createElement: () => new Element(),
  createElementNS: () => new Element(),
  querySelector: () => ({ open: false }),
  hidden: true,
};
const stored = { "spillway-api-key": process.env.STORED_KEY ?? null };
globalThis.sessionStorage = { getItem: (name) => stored[name] ?? null, setItem: (name, text) => (stored[name] = text) };
const told = require("fs").readFileSync(0, "utf8");
const wanted = process.env.WANTED_KEY;
globalThis.fetch = async (path, options) => {
  if (path === "health") return { status: 200, json: async () => ({ status: "ok" }) };
  const shown = options?.headers?.Authorization;
  if (wanted && shown !== `Bearer ${wanted}`) return { ok: false, status: 401 };
  return { ok: true, status: 200, text: async () => told };
};
globalThis.setTimeout = () => console.log(JSON.stringify(Object.fromEntries(Object.entries(elements).map(([id, e]) => [id, e.hidden ? "hidden" : e.text()]))));
"""


@pytest.fixture
def shown(server, tmp_path):
    """shown(metrics as text): {id: text} of what the page then shows."""
    node = shutil.which("node") or shutil.which("nodejs")
    if node is None:
        pytest.skip("node is not installed")
    script = tmp_path / "page.cjs"
    script.write_text(FAKE_BROWSER + text_of(server, "/page.js"))

    def show(told, **environment):
        done = subprocess.run([node, script], input=told, capture_output=True, text=True, timeout=60, env=os.environ | environment)
        assert done.returncode == 0 and done.stdout, done.stderr
        return json.loads(done.stdout)

    return show


SWAPPING = """
spillway_kv_expansion 1.5
spillway_kv_swapped_layers 12
spillway_kv_layer_swap_bytes_total 3.2e9
spillway_kv_layer_swap_ahead_total 1200
spillway_kv_layer_swap_early_total 650
spillway_kv_layer_swap_waits_total 17
spillway_kv_layer_swap_wait_seconds_total 0.25
spillway_kv_layer_swap_changes_total 4
spillway_kv_layer_swap_change_seconds_total 0.125
"""
STORE = """
spillway_prefix_hit_tokens_total{tier="pool"} 4000
spillway_prefix_hit_tokens_total{tier="host"} 96
spillway_prefix_hit_tokens_total{tier="disk"} 32
spillway_kv_store_blocks{tier="host"} 40
spillway_kv_store_blocks{tier="disk"} 64
spillway_kv_store_bytes{tier="host"} 5e6
spillway_kv_store_bytes{tier="disk"} 8e6
spillway_kv_store_moved_bytes_total{way="to_device"} 1.5e6
spillway_kv_store_moved_bytes_total{way="disk_read"} 5e5
"""
PREDICTIONS = """
spillway_kv_predicted_blocks 321
spillway_prediction_seconds_total{part="predicting"} 0.002
spillway_prediction_seconds_total{part="scheduling"} 0.05
spillway_prediction_seconds_total{part="learning"} 1.5
"""


def test_kv_that_goes_everywhere_is_shown_by_name(shown):
    kv = shown(SWAPPING + STORE)["kv"]
    assert "12 layers are swapped" in kv and "1.50 times" in kv
    assert "moved 3.2 GB" in kv and "17 waits" in kv and "250 ms" in kv and "4 changes" in kv and "125 ms" in kv
    assert "650 of 1,200 that came ahead of their step were early" in kv
    assert "4,000 from the pools, 96 from host memory, 32 from disk" in kv
    assert "host 40 blocks, 5 MB; disk 64 blocks, 8 MB. Brought back: 1.5 MB, read from disk: 0.5 MB." in kv
    assert "blocks" not in shown(SWAPPING)["kv"] and "swapp" not in shown(STORE)["kv"].lower(), "each where it exists"


def test_predictions_are_shown_by_name(shown):
    lengths = shown(PREDICTIONS)["lengths"]
    assert "321 blocks" in lengths and "2.0 ms of predicting, 50 ms of scheduling, 1.50 s of learning" in lengths
    ended = 'spillway_length_predictions_total{result="right"} 3\n'
    assert "3 of 3 answers" in shown(PREDICTIONS + ended)["lengths"] and "321 blocks" in shown(PREDICTIONS + ended)["lengths"]


def test_where_there_is_none_of_it_the_page_says_nothing_of_it(shown):
    told = shown("spillway_steps_total 1\n")
    assert told["kv"] == "Nothing was computed yet." and "Foresight" not in told["lengths"]


def test_the_page_shows_what_this_server_tells(server, shown):
    server.complete(prompt="Once upon a time there was a river, and", max_tokens=30, ignore_eos=True)

    def is_kept():  # metrics are those of the last step
        server.complete(prompt="Once", max_tokens=1)
        return server.metrics()['spillway_kv_store_blocks{tier="disk"}'] > 0

    wait_for(is_kept)
    told = shown(text_of(server, "/metrics"))
    assert "KV store: " in told["kv"] and re.search(r"disk [\d,]+ blocks", told["kv"]), told
    assert told["state"] == "ok" and re.search(r"host\b.* of [\d,]+ tokens", told["kv"]), told
    assert "turns" not in told["kv"].lower(), "nothing takes turns on a CPU"


def test_behind_keys_the_page_asks_for_one_and_uses_it(shown):
    steps = "spillway_requests_running 7\n"
    open_to_all = shown(steps)
    assert open_to_all["unlock"] == "hidden" and "7 requests running" in open_to_all["tiles"]
    asked = shown(steps, WANTED_KEY="sk-1")
    assert asked["unlock"] != "hidden" and "tiles" not in asked and asked["key-state"] == ""
    wrong = shown(steps, WANTED_KEY="sk-1", STORED_KEY="sk-2")
    assert wrong["key-state"] == "The key is not known here."
    right = shown(steps, WANTED_KEY="sk-1", STORED_KEY="sk-1")
    assert right["unlock"] == "hidden" and "7 requests running" in right["tiles"]


def test_its_routes_are_the_servers(server):
    script = text_of(server, "/page.js")
    routes = set(re.findall(r'fetch\("([^"]+)"', script))
    assert routes == {"health", "metrics", "v1/chat/completions"}
