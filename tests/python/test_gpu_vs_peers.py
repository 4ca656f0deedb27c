# SPDX-License-Identifier: Apache-2.0
"""bench/gpu_vs_peers.sh: its cells, turns, ratios and table. Scripts stand in for the peers and for programs that need a GPU."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench" / "gpu_vs_peers.sh"

INSPECTED = {
    "model": {"layers": 10, "kv_bytes_per_token": 0},
    "tensors": [{"name": f"blk.{i}.ffn_up.weight", "bytes": 2 << 30} for i in range(10)] + [{"name": "output.weight", "bytes": 9 << 30}],
}

# Speeds by the number of calls so far: the first round of ours is slow, the last of theirs.
SPILLWAY = f"""
if arguments[0] == "inspect":
    print(json.dumps({INSPECTED!r}))
else:
    speed = [100, 200, 300][min(2, count() - 1)]
    print(json.dumps(dict(prefill_tokens_per_s=10 * speed, decode_tokens_per_s=speed, generated_tokens_per_s=speed / 2, steps=64, repeat=3)))
"""
RANDOM_GGUF = "open(arguments[0], 'w').write('GGUF')"
LLAMA_BENCH = """
asked = [(name, speed) for name, speed in (("-p", 1000), ("-n", 160)) if arguments[arguments.index(name) + 1] != "0"]
print(json.dumps([dict(build_commit="abc", samples_ts=[1, speed, 9e9]) for _, speed in asked]))
"""
BATCHED_BENCH = """
print("some words")
for speed in (1, 50):
    print(json.dumps(dict(speed_pp=20 * speed, speed_tg=speed)))
"""
FLEX_OPT = """
import argparse
from transformers import AutoTokenizer

class OptLM:
    def generate(self, inputs, max_new_tokens=32, **options):
        calls.append((len(inputs[0]), max_new_tokens))

calls = []

def add_parser_arguments(parser):
    for name in ("--model", "--path", "--offload-dir", "--log-file"):
        parser.add_argument(name)
    for name in ("--prompt-len", "--gen-len", "--gpu-batch-size", "--num-gpu-batches"):
        parser.add_argument(name, type=int)
    parser.add_argument("--percent", nargs="+", type=int)
    for name in ("--cpu-cache-compute", "--compress-weight", "--compress-cache"):
        parser.add_argument(name, action="store_true")

def run_flexllmgen(args):
    tokenizer = AutoTokenizer.from_pretrained("somewhere", padding_side="left")
    model = OptLM()
    for length, tokens in ((32, 1), (args.prompt_len, args.gen_len)):
        model.generate(tokenizer(["Paris"], padding="max_length", max_length=length).input_ids, max_new_tokens=tokens, verbose=2)
    assert args.path == "_DUMMY_" and calls == [(512, 32)], calls
    open(args.log_file, "a").write("model size: 55.803 GB\\tcache size: 1.0 GB\\thidden size (p): 0.1 GB\\n"
        "peak gpu mem: 13.500 GB\\tprojected: False\\nprefill latency: 9.000 s\\tprefill throughput: 2000.000 token/s\\n"
        "decode latency: 80.000 s\\tdecode throughput: 18.600 token/s\\ntotal latency: 89.000 s\\ttotal throughput: 25.000 token/s\\n")
"""
TORCH = """
class cuda:
    def get_device_properties(number):
        class properties:
            total_memory = 64 << 30
        return properties
    def set_per_process_memory_fraction(share):
        assert share == 0.25
"""


def make_program(path, body):
    calls = path.parent.parent / "calls"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"""#!{sys.executable} -IS
import json, os, sys
arguments = sys.argv[1:]
open({str(calls)!r}, "a").write(" ".join([{path.name!r}, *arguments, *["hidden"] * (os.environ.get("CUDA_VISIBLE_DEVICES") == "")]) + "\\n")
def count():
    return sum(line.startswith("spillway bench") for line in open({str(calls)!r}))
{body}
""")
    path.chmod(0o755)


@pytest.fixture
def peers(tmp_path):
    """Runs the script; .calls are the programs that it has called, .kept(cell) what it has kept."""

    class Peers:
        out = tmp_path / "out"
        bin = tmp_path / "bin"

        def run(self, *options):
            command = [SCRIPT, "--skip-build", "--bin", self.bin, "--out", self.out, "--models", tmp_path / "models", "--threads", "3"]
            environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
            return subprocess.run([str(word) for word in [*command, *options]], capture_output=True, text=True, check=False, env=environment)

        def measure(self, *options):
            return self.run("--llama-cpp", tmp_path / "llama", *options)

        def kept(self, cell):
            return json.loads((self.out / f"{cell}.json").read_text())

        @property
        def calls(self):
            lines = (tmp_path / "calls").read_text().splitlines()
            return [line.replace(f"{tmp_path}/", "") for line in lines]

    for name, body in (("spillway", SPILLWAY), ("random_gguf", RANDOM_GGUF)):
        make_program(tmp_path / "bin" / name, body)
    for name, body in (("llama-bench", LLAMA_BENCH), ("llama-batched-bench", BATCHED_BENCH)):
        make_program(tmp_path / "llama" / name, body)
    return Peers()


def keep(peers, cell, ratio, peer="llama.cpp abc", figures=("prefill", "decode"), **more):
    peers.out.mkdir(exist_ok=True)
    found = {figure: {"ours": 1234.5 * ratio, "theirs": 1234.5, "ratio": ratio, "round": 2} for figure in figures}
    result = {"cell": cell, "date": "2026-11-16", "machine": "a machine", "model": "llama-2-7b", "peer": peer, "figures": found,
              "missed_targets": [] if ratio >= 1 else ["decode: 0.50 times llama.cpp, target 1.0"], **more}
    (peers.out / f"{cell}.json").write_text(json.dumps(result))


def test_lists_every_cell_and_what_is_kept(peers):
    keep(peers, "7b-q4_0-8x512", 2)
    done = peers.run("--list")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert len(lines) == 3 * 3 * 2 + 2 + 2 + 3
    assert lines["7b-q4_0-8x512"].split()[1:3] == ["kept", "llama.cpp"]
    assert lines["opt-30b-4bit"].split()[1:3] == ["-", "FlexGen"]
    assert lines["13b-f16-8gib"].endswith("llama-2-13b F16 in 8 GiB of GPU memory, 1 sequence, prompt 512")
    assert lines["cpu-7b-q4_0"].endswith("llama-2-7b Q4_0 on the CPU, 1 sequence, prompt 512")


def test_makes_a_table_of_what_is_kept(peers, tmp_path):
    keep(peers, "opt-30b-f16", 2, "FlexGen", ("prefill", "decode", "generated"), model="opt-30b")
    keep(peers, "7b-f16-1x512", 0.5)
    done = peers.run("--table", "-o", tmp_path / "all.json")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[2] == "| llama-2-7b F16, 1 sequence, prompt 512 | llama.cpp abc | 617 | 1,234 | 0.50 | 617 | 1,234 | 0.50 |  |  |  |"
    flexgen = "opt-30b F16 in 16 GiB of GPU memory, 64 sequences, prompt 512"
    assert lines[3] == f"| {flexgen} | FlexGen |" + " 2,469 | 1,234 | 2.00 |" * 3
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert "Missed targets: 7b-f16-1x512: decode: 0.50 times llama.cpp, target 1.0." in lines
    assert "Not measured: 7b-f16-1x2048, " in done.stdout
    kept = json.loads((tmp_path / "all.json").read_text())
    assert [cell["cell"] for cell in kept["cells"]] == ["7b-f16-1x512", "opt-30b-f16"]
    assert kept["machine"] == "a machine" and kept["date"] == "2026-11-16" and len(kept["missed_targets"]) == 1
    assert not (tmp_path / "calls").exists()


def test_without_results_there_is_no_table(peers):
    done = peers.run("--table")
    assert done.returncode == 1 and "no results" in done.stderr


@pytest.mark.parametrize(
    "options", [["--cell", "8b"], ["--cell", "7b-f16-1x512"], ["--cell", "opt-30b-f16", "--llama-cpp", "x"], ["-o", "file"], ["--what"]]
)
def test_refuses_what_makes_no_sense(peers, options):
    done = peers.run(*options)
    assert done.returncode == 2 and done.stdout == ""


def test_programs_take_turns_and_a_ratio_is_of_one_round(peers):
    done = peers.measure("--cell", "7b-q4_0-1x512")
    assert done.returncode == 0, done.stderr
    order = [call.split()[0] for call in peers.calls]
    theirs = ["llama-bench"] * 2
    assert order == ["random_gguf", "spillway", *theirs, *theirs, "spillway", "spillway", *theirs]
    model = "models/llama-2-7b.q4_0.gguf"
    assert peers.calls[0] == f"random_gguf {model} --model llama-2-7b --type q4_0 --quiet"
    # Both have the same prompt, number of steps and threads.
    assert f"bench {model} --device cuda --prompt-len 512 --gen-len 65 --batch 1 --repeat 3 --warm-up 1 --threads 3" in peers.calls[1]
    assert peers.calls[2] == f"llama-bench -m {model} -ngl 999 -t 3 -fa on -ub 2048 -p 512 -n 0 -d 0 -r 3 -o json"
    assert "-p 0 -n 64 -d 512" in peers.calls[3]
    kept = peers.kept("7b-q4_0-1x512")
    assert (kept["peer"], kept["steps"], kept["repeats"], len(kept["rounds"])) == ("llama.cpp abc", 64, 3, 3)
    assert kept["figures"]["prefill"] == {"ours": 2000, "theirs": 1000, "ratio": 2, "round": 2}
    assert kept["figures"]["decode"] == {"ours": 200, "theirs": 160, "ratio": 1.25, "round": 2}
    assert kept["missed_targets"] == [] and kept["date"] and kept["machine"] and kept["command"].endswith("--cell 7b-q4_0-1x512")
    assert "| 2,000 | 1,000 | 2.00 | 200 | 160 | 1.25 |" in done.stdout


def test_many_sequences_are_llama_batched_benchs_second_run(peers):
    assert peers.measure("--cell", "7b-f16-8x2048", "--again").returncode == 0
    theirs = [call for call in peers.calls if call.startswith("llama-batched-bench")]
    assert len(theirs) == 3 and "-c 18432 -npp 2048 -ntg 64 -npl 8,8 --output-format jsonl" in theirs[0]
    assert peers.kept("7b-f16-8x2048")["figures"]["decode"] == {"ours": 200, "theirs": 50, "ratio": 4, "round": 2}


def test_a_target_that_is_missed_is_named(peers):
    make_program(peers.bin.parent / "llama" / "llama-bench", LLAMA_BENCH.replace("160", "400"))
    done = peers.measure("--cell", "7b-f16-1x512")
    assert done.returncode == 0
    assert peers.kept("7b-f16-1x512")["missed_targets"] == ["decode: 0.50 times llama.cpp, target 1.0"]
    assert "Missed targets: 7b-f16-1x512: decode" in done.stdout


def test_a_budget_gives_llama_cpp_the_layers_that_fit(peers):
    assert peers.measure("--cell", "13b-f16-8gib", "--cell", "13b-f16-16gib").returncode == 0
    # A gibibyte is reserved for its buffers, and a layer takes two.
    assert {call.split("-ngl ")[1].split()[0] for call in peers.calls if "llama-bench" in call} == {"3", "7"}
    assert any("--gpu-memory 8GiB" in call for call in peers.calls)
    assert peers.kept("13b-f16-8gib")["rounds"][0]["theirs"]["layers_on_gpu"] == 3


def test_on_the_cpu_no_program_sees_a_gpu(peers):
    assert peers.measure("--cell", "cpu-7b-q4_0", "--shape", "tinyllama-1.1b").returncode == 0
    assert all(call.endswith(" hidden") and "-ngl 0 " in call for call in peers.calls if call.startswith("llama-bench"))
    assert all("--device cpu" in call for call in peers.calls if call.startswith("spillway bench"))
    assert peers.kept("cpu-7b-q4_0")["model"] == "tinyllama-1.1b"


def test_what_is_kept_is_not_measured_again_unless_asked(peers):
    keep(peers, "cpu-7b-q4_0", 2)
    assert peers.measure("--cell", "cpu-7b-q4_0").returncode == 0
    assert not (peers.bin.parent / "calls").exists()
    assert peers.measure("--cell", "cpu-7b-q4_0", "--again", "--delete").returncode == 0
    assert peers.kept("cpu-7b-q4_0")["figures"]["decode"]["ours"] == 300  # the median of five rounds
    assert list((peers.bin.parent / "models").iterdir()) == []


def test_a_cell_that_fails_leaves_nothing_and_the_others_go_on(peers):
    make_program(peers.bin.parent / "llama" / "llama-bench", "sys.exit('out of memory')")
    done = peers.measure("--cell", "7b-f16-1x512", "--cell", "7b-f16-8x512")
    assert done.returncode == 1 and "7b-f16-1x512: FAILED" in done.stderr and "out of memory" in done.stderr
    assert [path.name for path in peers.out.iterdir()] == ["7b-f16-8x512.json"]


def test_a_program_that_was_killed_says_why(peers):
    make_program(peers.bin.parent / "llama" / "llama-bench", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    done = peers.measure("--cell", "7b-f16-1x512")
    assert done.returncode == 1 and "was killed, most likely for want of memory" in done.stderr


def test_a_cell_has_its_time(peers):
    make_program(peers.bin / "random_gguf", "import time; time.sleep(600)")
    done = peers.measure("--cell", "7b-f16-1x512", "--cell-seconds", "1")
    assert done.returncode == 1 and "not done after 1.0 s: random_gguf" in done.stderr


def test_flexgen_has_one_round_within_the_same_memory(peers, tmp_path, monkeypatch):
    source = tmp_path / "source"
    for path, text in (("flexllmgen/__init__.py", ""), ("flexllmgen/flex_opt.py", FLEX_OPT), ("torch.py", TORCH),
                       ("transformers.py", "AutoTokenizer = None")):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text)
    done = peers.run("--flexgen", source, "--cell", "opt-30b-f16")
    assert done.returncode == 0, done.stderr
    (ours,) = peers.calls
    assert "bench dummy:opt-30b --device cuda --gpu-memory 16GiB --host-memory 100GiB --prompt-len 512 --gen-len 32 --batch 64" in ours
    assert "--repeat 1 --threads" in ours
    kept = peers.kept("opt-30b-f16")
    (only,) = kept["rounds"]
    assert (only["theirs"]["batch"], only["theirs"]["peak_gpu_gib"], only["theirs"]["projected"]) == (48, 13.5, False)
    assert kept["figures"]["generated"] == {"ours": 50, "theirs": 25, "ratio": 2, "round": 1}
    assert any("run_flexgen.py" in command and "--percent 20 80 0 100 0 100" in command for command in kept["commands"])


def test_all_cells_are_those_whose_peers_are_there(peers):
    done = peers.measure()
    assert done.returncode == 0, done.stderr
    assert "opt-30b-f16: left out without --flexgen FOLDER" in done.stderr
    assert len(list(peers.out.glob("*.json"))) == 3 * 3 * 2 + 2 + 3
