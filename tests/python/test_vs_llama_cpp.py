# SPDX-License-Identifier: Apache-2.0
"""bench/vs_llama_cpp.py: the arithmetic of its table, with fake programs that always report the same figures."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "vs_llama_cpp.py"

# Two layers of one 100 x 50 matrix, a head of 1000 x 50, and an embedding that is only looked up in.
MODEL = {
    "files": ["model.gguf"],
    "model": {"layers": 2, "heads": 5, "head_dim": 10, "kv_bytes_per_token": 400},
    "tensors": [
        {"name": "token_embd.weight", "shape": [1000, 50], "type": "Q4_0", "bytes": 28125},
        {"name": "output.weight", "shape": [1000, 50], "type": "Q6_K", "bytes": 41016},
        {"name": "output_norm.weight", "shape": [50], "type": "F32", "bytes": 200},
        {"name": "blk.0.ffn_up.weight", "shape": [100, 50], "type": "Q4_0", "bytes": 2812},
        {"name": "blk.1.ffn_up.weight", "shape": [100, 50], "type": "Q4_0", "bytes": 2812},
    ],
}
CEILINGS = {
    "processor": "A processor",
    "read": {"best_gb_per_s": 0.01},
    "peaks": [
        {"instruction": "fast", "operands": "int8", "best_gop_per_s": 0.02},
        {"instruction": "slow", "operands": "int8", "best_gop_per_s": 0.01},
        {"instruction": "plain", "operands": "f32", "best_gop_per_s": 0.005},
    ],
}


def make_program(path, body):
    path.write_text(f"#!{sys.executable}\nimport json, sys\narguments = sys.argv[1:]\n"
                    f"open({str(path.parent / 'calls')!r}, 'a').write({path.name!r} + ' ' + ' '.join(arguments) + '\\n')\n" + body)  # fmt: skip
    path.chmod(0o755)


@pytest.fixture
def compare(tmp_path):
    """Runs the comparison for a model and speeds, and gives (result, calls)."""

    def run(model, ours, theirs, *options):
        (tmp_path / "model.gguf").write_bytes(b"GGUF")
        make_program(tmp_path / "spillway", f"print(json.dumps({model!r} if arguments[0] == 'inspect' else "
                     f"dict(prefill_tokens_per_s={ours[0]}, decode_tokens_per_s={ours[1]})))")  # fmt: skip
        make_program(tmp_path / "llama-bench", "prefill = arguments[arguments.index('-n') + 1] == '0'\n"
                     f"print(json.dumps([dict(build_commit='abc', samples_ts=[1, {theirs[0]} if prefill else {theirs[1]}, 9e9])]))")  # fmt: skip
        make_program(tmp_path / "ceilings", f"print(json.dumps({CEILINGS!r}))")
        command = [sys.executable, str(SCRIPT), "--spillway", str(tmp_path / "spillway"), "--llama-bench",
                   str(tmp_path / "llama-bench"), "--models", str(tmp_path / "model.gguf"), "--threads", "3", "--prompt", "8",
                   "--gen", "4", "-o", str(tmp_path / "out.json"), *options]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        calls = [line for line in (tmp_path / "calls").read_text().splitlines() if "inspect" not in line]
        return json.loads((tmp_path / "out.json").read_text()), calls

    return run


def test_counts_what_a_token_reads_and_computes(compare):
    result, _ = compare(MODEL, (50, 40), (40, 20))
    (row,) = result["models"]
    # The head sees one token of the prompt; 36 pairs of tokens attend in 2 layers, 50 wide, with two products.
    flop = 2 * 10000 * 8 + 2 * 50000 + 4 * 2 * 50 * 36
    assert row["prefill"]["gflop"] == pytest.approx(flop / 1e9)
    assert row["prefill"]["peak_instruction"] == "fast"
    assert row["prefill"]["share_of_peak"] == pytest.approx(50 / 8 * flop / 0.02e9)
    # Layers and head, and the KV of 8 to 12 tokens: 10.5 on average, the token itself included.
    read = 2 * 2812 + 41016 + 10.5 * 400
    assert row["decode"]["bytes_per_token"] == pytest.approx(read)
    assert row["decode"]["share_of_bandwidth"] == pytest.approx(40 * read / 0.01e9)
    assert row["prefill"]["ratio"] == pytest.approx(1.25)
    assert row["decode"]["ratio"] == pytest.approx(2)
    assert row["weight_type"] == "Q4_0"


def test_a_tied_embedding_is_read_as_the_head(compare):
    tied = dict(MODEL, tensors=[t for t in MODEL["tensors"] if t["name"] != "output.weight"])
    result, _ = compare(tied, (50, 40), (40, 20))
    assert result["models"][0]["decode"]["bytes_per_token"] == pytest.approx(2 * 2812 + 28125 + 10.5 * 400)


@pytest.mark.parametrize(
    ("theirs", "target"),
    [
        (20, 30),  # 1.5 times theirs
        (140, 0.85 * 0.01e9 / 50840),  # 85% of the bandwidth: 167, less than 210
        (180, 180),  # llama.cpp is beyond that already: the target is its speed
    ],
)
def test_decode_target_is_the_lower_one_but_never_below_the_peer(compare, theirs, target):
    result, _ = compare(MODEL, (50, 40), (40, theirs))
    assert result["models"][0]["decode"]["target_tokens_per_s"] == pytest.approx(target)
    assert result["models"][0]["decode"]["reached"] == (40 >= target)


def test_prefill_target_is_a_ratio_and_a_share(compare):
    result, _ = compare(MODEL, (50, 40), (300, 20))
    assert result["models"][0]["prefill"]["target_tokens_per_s"] == pytest.approx(1.3 * 300)
    result, _ = compare(MODEL, (50, 40), (1, 20))
    flop = result["models"][0]["prefill"]["gflop"] * 1e9
    assert result["models"][0]["prefill"]["target_tokens_per_s"] == pytest.approx(0.45 * 0.02e9 / flop * 8)


def test_engines_take_turns_between_two_measurements_of_the_machine(compare):
    result, calls = compare(MODEL, (50, 40), (40, 20), "--repeat", "2")
    order = [call.split()[0] for call in calls]
    assert order == ["ceilings", *["spillway", "llama-bench", "llama-bench"] * 2, "ceilings"]
    # The same prompt, the same number of decode steps at the same depth, the same threads.
    assert "--prompt-len 8 --gen-len 5 --threads 3" in calls[1]
    assert "-t 3 -p 8 -n 0 -d 0" in calls[2]
    assert "-t 3 -p 0 -n 4 -d 8" in calls[3]
    assert "/" not in result["command"]
    assert result["peer"] == "llama-bench abc"
