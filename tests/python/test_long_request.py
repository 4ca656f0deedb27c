# SPDX-License-Identifier: Apache-2.0
"""bench/long_request.py: its shares, with a fake program whose speeds are known."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "long_request.py"

PROGRAM = """#!{python} -IS
import json, sys
options = sys.argv[1:]
value = lambda name: options[options.index(name) + 1]
if options[0] == "profile":
    rates = dict(gpu=dict(read_gb_per_s=1000), host=dict(read_gb_per_s=100), disk=dict(read_gb_per_s=1))
    open(value("-o"), "w").write(json.dumps(rates))
    sys.exit(0)
gpu, host, disk = (float(share) / 100 for share in value("--kv").split(","))
tier = lambda share: dict(peak_bytes_by_tag={{"KV cache": share * 60e9}})
whole = 1.0 in (gpu, host)
print(json.dumps(dict(device="a machine", weight_bytes=10e9, tiers=dict(gpu=tier(gpu), host=tier(host)),
                      decode_tokens_per_s=50 if whole else 1.5, prefill_tokens_per_s=1000 if whole else 600)))
"""


@pytest.fixture
def run(tmp_path):
    program = tmp_path / "program"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)

    def measured(*options):
        kept = tmp_path / "kept.json"
        command = [sys.executable, SCRIPT, "--spillway", program, "-o", kept, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout, json.loads(kept.read_text())

    return measured


def test_decode_is_held_against_both_memories(run):
    output, kept = run("--kv-budget", "10")
    # The CPU reads 54 GB at 100 GB/s, while the GPU reads 16 GB at 1000 GB/s.
    assert kept["decode"]["bound_tokens_per_s"] == pytest.approx(1 / 0.54)
    assert kept["decode"]["share"] == pytest.approx(1.5 * 0.54)
    assert kept["prompt"]["share"] == pytest.approx(0.6)
    assert "81% of what the memories give" in output
    assert "60% of 1000 with all KV near" in output


def test_without_a_gpu_the_rest_is_on_disk(run):
    _, kept = run("--device", "cpu", "--kv-budget", "50", "--no-resident")
    assert kept["kv_bytes"] == pytest.approx(60e9)
    assert kept["decode"]["seconds_by_memory"]["disk"] == pytest.approx(30)
    assert kept["prompt"]["share"] is None
