# SPDX-License-Identifier: Apache-2.0
"""The server's own page: what browsers get, and that it speaks of numbers that there are."""

import re

import pytest
from serve_checks import server_fixture

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


def test_its_routes_are_the_servers(server):
    script = text_of(server, "/page.js")
    routes = set(re.findall(r'fetch\("([^"]+)"', script))
    assert routes == {"health", "metrics", "v1/chat/completions"}
