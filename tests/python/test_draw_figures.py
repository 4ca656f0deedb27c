# SPDX-License-Identifier: Apache-2.0
"""scripts/draw_figures.py: the pictures in docs/figures are up to date, and their folders are those of src/."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import conftest

SCRIPT = conftest.ROOT / "scripts" / "draw_figures.py"
FIGURES = conftest.ROOT / "docs" / "figures"
sys.path.insert(0, str(SCRIPT.parent))
import draw_figures  # noqa: E402


def draw(out, *arguments):
    done = subprocess.run([sys.executable, str(SCRIPT), "--out", str(out), *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_pictures_are_as_drawn(tmp_path):
    draw(tmp_path)
    for name in ("tiers", "folders", "request"):
        assert (tmp_path / f"{name}.svg").read_text() == (FIGURES / f"{name}.svg").read_text(), f"scripts/draw_figures.py {name}"


def test_each_folder_is_above_those_that_it_includes():
    rows = {name: row for row, names in enumerate(draw_figures.FOLDERS) for name, _ in names}
    table = {}
    for line in (conftest.ROOT / "src" / "folders.txt").read_text().splitlines():
        if line and line[0] not in "#!":
            folder, _, includes = line.partition(":")
            table[folder] = includes.split()
    assert set(rows) == set(table)
    # Folders beside each other in the picture: tensor/ includes base/, but predict/, measure/ and schedule/ do not include each other.
    beside = {("tensor", "base")}
    for folder, includes in table.items():
        for other in includes:
            assert rows[folder] < rows[other] or (folder, other) in beside, f"{folder} includes {other}"


def test_a_step_is_drawn_from_a_trace(tmp_path):
    names = [{"name": "thread_name", "ph": "M", "tid": tid, "args": {"name": name}} for tid, name in enumerate(("GPU", "CPU"))]
    events = [{"name": "qkv", "ph": "X", "tid": tid, "ts": 1000.0 * tid, "dur": 500.0, "args": {"layer": tid}} for tid in (0, 1)]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": names + events}))
    draw(tmp_path, "--trace", str(trace), "step")
    texts = "".join(ElementTree.parse(tmp_path / "step.svg").getroot().itertext())
    assert "computes, 33% busy" in texts
    assert "computes its share, 33% busy" in texts
