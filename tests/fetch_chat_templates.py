#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches the chat templates that tests/python/test_chat_templates.py renders, and checks them by SHA-256.

usage: tests/fetch_chat_templates.py [--from DIR]
They are their models', so they are not part of this repository: tests/chat_templates.json says where each is published.
Files go to ($XDG_CACHE_HOME or ~/.cache)/spillway/chat-templates; what is there already and sound stays. --from DIR takes
them from a folder instead of the network. Exit codes: 0 all are there, 1 some are missing.
"""

import argparse
import hashlib
import json
import os
import pathlib
import sys
import urllib.request

MANIFEST = pathlib.Path(__file__).resolve().parent / "chat_templates.json"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "spillway" / "chat-templates"


def entries():
    """[{name, url, sha256}] of the manifest."""
    manifest = json.loads(MANIFEST.read_text())
    return [
        {"name": name, "url": f"{source['url']}/{name}", "sha256": sha256}
        for source in manifest["sources"]
        for name, sha256 in source["files"].items()
    ]


def is_sound(data, entry):
    return hashlib.sha256(data).hexdigest() == entry["sha256"]


def read(entry, folder):
    if folder:
        return (folder / entry["name"]).read_bytes()
    with urllib.request.urlopen(entry["url"], timeout=60) as answer:
        return answer.read()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="folder", type=pathlib.Path, help="take the files from this folder")
    folder = parser.parse_args().folder
    CACHE.mkdir(parents=True, exist_ok=True)
    missing = 0
    for entry in entries():
        path = CACHE / entry["name"]
        if path.exists() and is_sound(path.read_bytes(), entry):
            continue
        try:
            data = read(entry, folder)
        except OSError as error:
            print(f"{entry['name']}: {error}", file=sys.stderr)
            missing += 1
            continue
        if not is_sound(data, entry):
            print(f"{entry['name']}: not the file that the manifest names", file=sys.stderr)
            missing += 1
            continue
        path.write_bytes(data)
    print(f"{len(entries()) - missing} of {len(entries())} chat templates in {CACHE}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
