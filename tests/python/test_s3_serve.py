# SPDX-License-Identifier: Apache-2.0
"""bench/s3_serve.py: the same requests to servers that reserve, page, predict, and know the lengths; and their figures."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "s3_serve.py"


@pytest.mark.parametrize("options", [(), ("--end-token", "2", "--vocabulary", "300", "--rate", "200")])
def test_every_cell_answers_all_requests(spillway, tiny_model, tmp_path, options):
    prompts, output = tmp_path / "prompts.json", tmp_path / "out.json"
    prompts.write_text(json.dumps([{"instruction": f"Name thing {i}", "input": "", "output": "word " * (i % 9)} for i in range(40)]))
    words = [sys.executable, SCRIPT, "--model", tiny_model, "--prompts", prompts, "--completions", "--requests", "8", "--learn", "4", "--max-tokens", "24"]
    words += ["--serve=-c 128 --device cpu --threads 1 --deterministic --no-tuning", "--cells", "orca+paging,mean,ours,cold,kept,oracle,shortest"]
    done = subprocess.run([*map(str, words), "--spillway", str(spillway.path), "--quiet", "-o", output, *options], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    cells = {cell["cell"]: cell for cell in result["cells"]}
    assert list(cells) == ["orca", "paging", "mean", "ours", "cold", "kept", "oracle", "shortest"]
    assert len({cell["generated_tokens"] for cell in cells.values()}) == 1, "lengths do not depend on who predicts them"
    assert len({tuple(cell["answers_digest"]) for name, cell in cells.items() if name != "oracle"}) == 1
    assert all(cell["requests"] == 8 and cell["tokens_per_s"] > 0 for cell in cells.values())
    assert result["learning"]["requests"] == 4
    assert len(done.stdout.splitlines()) == 3 + len(cells)


def test_unknown_cells_are_refused(tmp_path):
    done = subprocess.run([sys.executable, str(SCRIPT), "--model", "m", "--prompts", "p", "--cells", "ours,theirs"], capture_output=True, text=True)
    assert done.returncode == 2 and "theirs" in done.stderr
