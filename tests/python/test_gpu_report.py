# SPDX-License-Identifier: Apache-2.0
"""bench/gpu_report.py makes its table of the benchmarks' output. Scripts stand in for programs that need a GPU."""

import json
import pathlib
import re
import stat
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

WAYS = {"gemv": {"kernel": "gemv r2", "us": 10, "ratio": 1.2}, "flat": {"kernel": "flat stream r64", "us": 11, "ratio": 1.1},
        "planned": {"kernel": "planned gemv r2", "us": 10.5, "ratio": 1.14}, "best": {"kernel": "gemv r2", "us": 10, "ratio": 1.2}}
LINEAR = {
    "hbm_read_bytes_per_s": 4e12, "bf16_gemm_flop_per_s": 7e14, "rows": [],
    "against_cublaslt": {way: {"mean_to_8_tokens": mean, "mean_to_8_tokens_best_variant": 1.3, "worst": 0.98,
                               "worst_case": "llama up, 4 tokens", "worst_best_variant": 1.0}
                         for way, mean in (("alone", 1.1), ("in_steps", 1.25))},
    "cases": [{"shape": "llama up", "tokens": 4, "cublas_us": 12, "alone": WAYS, "in_steps": WAYS}],
}
DECODE = {"op": "decode", "kv": "f16", "heads": 32, "kv_heads": 32, "head_dim": 128, "batch": 8, "context": 8192}
ATTENTION = {"hbm_gb_per_s": 4000, "cases": [
    {**DECODE, "kv_bytes": 1e9, "unified_us": 290, "sync_us": 300},
    {**DECODE, "batch": 1, "kv_bytes": 1e8, "unified_us": 40, "sync_us": 50},
    {"op": "prefill", "kv": "f16", "heads": 32, "kv_heads": 32, "head_dim": 128, "batch": 1, "tokens": 2048, "us": 90, "tflops": 380}]}
BENCH = {"decode_s": 0.1, "gen_len": 32, "batch": 1, "weight_type": "F16", "decode_tokens_per_s": 250, "prefill_tokens_per_s": 30000}

FAKE = """#!{python}
import json, pathlib, sys
arguments = sys.argv[1:]
if arguments[:1] == ["convert"]:
    pathlib.Path(arguments[2]).write_text("wide")
    print("done")
elif arguments[:1] == ["run"]:
    last = 7 if "cuda" in arguments and not arguments[1].endswith("f32.gguf") else 8
    print(json.dumps({{"ids": [1] * 127 + [last]}}))
elif arguments[:1] == ["eval"]:
    print(json.dumps({{"perplexity": 9.0005 if "cuda" in arguments else 9.0}}))
elif arguments[:1] == ["bench"]:
    print(json.dumps({bench}))
elif "--json" in arguments:
    pathlib.Path(arguments[arguments.index("--json") + 1]).write_text({output!r})
    print("ok")
else:
    print("profiled")
"""


def test_the_table_has_every_target(tmp_path):
    fakes = tmp_path / "bin"
    fakes.mkdir()
    for name, output in (("spillway", {}), ("gpu_linear_bench", LINEAR), ("gpu_attention_bench", ATTENTION)):
        fake = fakes / name
        fake.write_text(FAKE.format(python=sys.executable, bench=BENCH, output=json.dumps(output)))
        fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    models = tmp_path / "models"
    models.mkdir()
    (models / "tiny-Q8_0.gguf").write_text("x")
    (models / "text.txt").write_text("x")
    # No site packages, so that an installed PyTorch is not used.
    done = subprocess.run([sys.executable, "-S", ROOT / "bench" / "gpu_report.py", "--bin", fakes, "--out", tmp_path / "out", "--models",
                           models], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    table = {row["what"]: row for row in json.loads((tmp_path / "out" / "gpu_report.json").read_text())["table"]}
    assert table["linear, 1-8 tokens, beside cuBLASLt (geo. mean), as steps launch it"]["met"] is True
    assert table["linear, 1-8 tokens, beside cuBLASLt (geo. mean), alone"]["met"] is False
    assert table["linear, 1-64 tokens, worst case, alone"]["met"] is True
    assert "gemv r2 10.00 us, flat stream r64 11.00 us" in done.stdout
    assert table["decode attention F16 32/32 heads of 128, KV >= 256 MB"]["met"] is True
    assert table["  the same where synchronized is below 75% of HBM"]["figure"].startswith("mean 1.250x")
    assert table["tiny-Q8_0 in F32: greedy tokens, CPU and GPU"]["met"] is True
    assert table["tiny-Q8_0 in F32: perplexity, CPU and GPU"]["met"] is True
    assert table["tiny-Q8_0 as it is: greedy tokens, CPU and GPU"]["figure"] == "127 the same"
    assert table["tiny-Q8_0 as it is: greedy tokens, CPU and GPU"]["met"] is None
    assert "PyTorch is not here" in done.stdout


def test_the_page_on_speed_says_how_many_targets_its_report_missed():
    text = (ROOT / "docs" / "speed.md").read_text()
    (said,) = re.findall(r"Of that report's (\d+) targets (\d+) are missed", text)
    report = json.loads((ROOT / re.search(r"bench/results/[\w-]+-h200-gpu\.json", text).group()).read_text())
    met = [row["met"] for row in report["table"] if row["met"] is not None]
    assert said == (str(len(met)), str(met.count(False)))
