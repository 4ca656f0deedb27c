# SPDX-License-Identifier: Apache-2.0
"""Runs the checks of scripts/ on folders that tests make up."""

import pathlib
import subprocess
import sys

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


def run_check(script, root, files, *options):
    """(exit code, output) of scripts/`script` for a folder with these files: {name: text}."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / script), "--root", str(root), *options], capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout
