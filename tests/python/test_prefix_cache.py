# SPDX-License-Identifier: Apache-2.0
"""bench/prefix_cache.py: its figures are for prefixes computed, found in the pool, and found on disk."""

import json
import pathlib
import subprocess
import sys

# So large that loading KV is faster than computing it.
MODEL = "dummy:smollm2-135m:q4_0"
SCRIPT = pathlib.Path(__file__).parents[2] / "bench" / "prefix_cache.py"


def test_the_second_request_and_the_one_after_a_restart_find_what_the_first_computed(spillway, tmp_path):
    output = tmp_path / "result.json"
    program = spillway.path
    words = [SCRIPT, program, MODEL, "--prefix", "160", "--rounds", "2", "--kv-dir", tmp_path / "kv", "-o", output]
    options = ["--device", "cpu", "--deterministic", "--no-tuning", "--threads", "1", "-c", "512", "--max-sequences", "4"]
    done = subprocess.run(list(map(str, [sys.executable, *words, "--", *options])), capture_output=True, timeout=120)
    # On a busy machine its targets may be missed.
    assert done.returncode in (0, 1), done.stderr.decode()
    assert b"differs" not in done.stderr
    result = json.loads(output.read_text())
    assert all(len(times) == 2 and min(times) > 0 for times in result["ttft_s"].values())
    assert result["metrics_before_restart"]['spillway_prefix_hit_tokens_total{tier="pool"}'] >= 2 * 160
    assert result["metrics_after_restart"]['spillway_prefix_hit_tokens_total{tier="disk"}'] == 2 * 160
    assert result["metrics_after_restart"]["spillway_kv_store_damaged_total"] == 0
