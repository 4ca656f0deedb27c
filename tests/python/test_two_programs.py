# SPDX-License-Identifier: Apache-2.0
"""bench/two_programs.py: alternation, ratios and stored results, with fake programs that always answer the same."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "two_programs.py"

PROGRAM = """#!{python} -IS
import json, sys
open({calls!r}, "a").write({name!r} + " " + " ".join(sys.argv[1:]) + "\\n")
speed = {speed}
if sys.argv[1] == "bench":
    print(json.dumps(dict(prefill_tokens_per_s=10 * speed, decode_tokens_per_s=speed, generated_tokens_per_s=speed / 2)))
else:
    print(json.dumps(dict(total_s=3 / speed, first_token_s=1 / speed, ids=[1, 2, {last}])))
"""


@pytest.fixture
def compare(tmp_path):
    """Gives (output, result, calls)."""

    def run(*options, last=(3, 3)):
        for name, speed, token in (("before", 4, last[0]), ("after", 5, last[1])):
            program = tmp_path / name
            program.write_text(PROGRAM.format(python=sys.executable, calls=str(tmp_path / "calls"), name=name, speed=speed, last=token))
            program.chmod(0o755)
        command = [sys.executable, SCRIPT, tmp_path / "before", tmp_path / "after", "--model", "m", "-o", tmp_path / "out.json", *options]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout, json.loads((tmp_path / "out.json").read_text()), (tmp_path / "calls").read_text().splitlines()

    return run


def test_programs_take_turns_and_options_go_to_both(compare):
    output, result, calls = compare("--bench", "--rounds", "3", "--prompt-tokens", "7", "--tokens", "9", "--", "--batch", "2")
    assert [call.split()[0] for call in calls] == ["before", "after", "after", "before", "before", "after"]
    assert all(call.split(" ", 1)[1] == "bench m --prompt-len 7 --gen-len 9 --json --batch 2" for call in calls)
    assert result["figures"]["decode tokens/s"] == {"before": 4, "after": 5, "ratio": 1.25, "ratios": [1.25] * 3}
    assert len(result["rounds"]) == 3 and result["rounds"][0][1]["prefill tokens/s"] == 50
    assert result["figures"]["processor s"]["before"] > 0
    assert "decode tokens/s: before 4.00, after 5.00; ratio 1.2500" in output
    assert "/" not in result["command"].removeprefix("bench/") and result["date"] and result["machine"]


@pytest.mark.parametrize("last, told", [((3, 3), "the same tokens"), ((3, 4), "tokens differ")])
def test_answers_are_compared_where_there_are_any(compare, last, told):
    output, result, calls = compare("--rounds", "1", "--prompt-tokens", "4", last=last)
    assert told in output
    assert result["figures"]["decode tokens/s"]["ratio"] == pytest.approx(1.25)
    assert all(" run m --ids " in call for call in calls)
