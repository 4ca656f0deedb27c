# SPDX-License-Identifier: Apache-2.0
"""bench/hand_plans.py: its verdict and its table, with a fake program in which each plan's speed is known."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "hand_plans.py"

PROGRAM = """#!{python} -IS
import json, sys, time
options = " ".join(sys.argv)
if "--weights 9" in options:
    sys.exit("spillway: it does not fit")
if "--weights 8" in options:
    time.sleep(60)
speed = 100 if "--weights" in options else {speed}
memory = dict(gpu=dict(predicted_bytes=2**20, measured_bytes=2**20, predicted_workspace_bytes=2**21, measured_workspace_bytes=0))
print(json.dumps(dict(generated_tokens_per_s=speed, decode_tokens_per_s=1, prefill_s=1, plan={{}}, memory=memory,
                      predicted=dict(generated_tokens_per_s=speed))))
"""


@pytest.fixture
def compare(tmp_path):
    """Gives (exit code, output, result) if the planner's plan has `speed` and one by hand has 100."""

    def run(speed):
        program, hand, kept = tmp_path / "program", tmp_path / "hand", tmp_path / "kept.json"
        program.write_text(PROGRAM.format(python=sys.executable, speed=speed))
        program.chmod(0o755)
        hand.write_text("--weights 1,99,0\n\n--weights 9,91,0\n--weights 8,92,0\n")
        options = ["--spillway", program, "--workload", "dummy:x --batch 2", "--hand", hand, "--limit-s", "3", "-o", kept]
        done = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, json.loads(kept.read_text())

    return run


@pytest.mark.parametrize(("speed", "code"), [(120, 0), (98, 0), (96, 1)])
def test_the_planners_plan_may_be_a_little_slower(compare, speed, code):
    done, output, kept = compare(speed)
    assert done == code
    assert kept["results"][0]["ratio"] == pytest.approx(min(1, speed / 100))
    assert f"| the planner's | {speed} | {speed} | gpu 1.0 + 0.0 (2.0) |" in output


def test_plans_that_do_not_run_are_listed(compare):
    _, output, kept = compare(100)
    assert "| --weights 9,91,0 | - | - | spillway: it does not fit |" in output
    assert "| --weights 8,92,0 | - | - | longer than 3 s |" in output
    assert [("wrong" in plan) for plan in kept["results"][0]["plans"]] == [False, False, True, True]
