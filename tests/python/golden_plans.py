# SPDX-License-Identifier: Apache-2.0
"""Cases whose plans are kept in tests/golden/plans.json, and how to write that file anew.

usage: python tests/python/golden_plans.py PROGRAM   (after a change of the cost model or the search that is meant)
"""

import json
import pathlib
import shlex
import subprocess
import sys

FILE = pathlib.Path(__file__).resolve().parents[1] / "golden" / "plans.json"

CASES = [
    "dummy:llama-2-7b:q4_0 --hardware rtx3090 --requests 16",
    "dummy:llama-2-13b --hardware laptop --gpu-memory 8GiB --requests 1",
    "dummy:llama-2-13b:q4_k --hardware rtx3090 --gpu-memory 8GiB --requests 4 --prompt-len 1024 --gen-len 128",
    "dummy:opt-6.7b --hardware t4 --requests 64 --prompt-len 512 --gen-len 32",
    "dummy:opt-30b --hardware t4 --requests 200 --prompt-len 512 --gen-len 32 --disk-memory 500GiB",
    "dummy:opt-30b --hardware t4 --requests 64 --prompt-len 512 --gen-len 32 --compress-weights --compress-kv",
    "dummy:opt-66b --hardware a10 --requests 64 --prompt-len 32 --gen-len 128 --disk-memory 500GiB",
    "dummy:opt-175b --hardware a100 --requests 16 --disk-memory 1500GiB",
    "dummy:opt-30b --hardware h200 --gpu-memory 16GiB --requests 64 --prompt-len 512 --gen-len 32",
    "dummy:llama-2-70b:q4_0 --hardware rtx3090 --requests 4",
    "dummy:llama-3-8b --hardware laptop --requests 4 --kv 50,50,0",
    "dummy:opt-30b --hardware h200 --gpu-memory 16GiB --requests 64 --weights 10,90,0",
    "dummy:mistral-7b --hardware laptop --device cpu --requests 4",
    "dummy:opt-175b --hardware t4 --requests 16",
]


def plan_of(program, case):
    """What `plan --json` says of the plan and its estimate, or the line of its refusal."""
    done = subprocess.run([program, "plan", *shlex.split(case), "--json"], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        return {"refused": done.stderr.strip().splitlines()[-1]}
    said = json.loads(done.stdout)
    del said["plan"]["made_for"]  # digests, which change with the words of a machine's description
    return {"plan": said["plan"], "predicted": said["predicted"]}


def write(program):
    FILE.write_text(json.dumps({case: plan_of(program, case) for case in CASES}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    write(sys.argv[1])
