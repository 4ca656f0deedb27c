# SPDX-License-Identifier: Apache-2.0
"""Plans for a few models and machines are the ones that are kept in tests/golden/plans.json."""

import json

import pytest

from golden_plans import CASES, FILE, plan_of

KEPT = json.loads(FILE.read_text())
# Processors add up in different orders; a change of a share or of an estimate that matters is larger.
SHARE, ESTIMATE = 0.002, 0.005


def differences(kept, now, path=""):
    if isinstance(kept, dict) and isinstance(now, dict):
        keys = sorted(kept.keys() | now.keys())
        return [line for key in keys for line in differences(kept.get(key), now.get(key), f"{path}.{key}")]
    if isinstance(kept, list) and isinstance(now, list) and len(kept) == len(now):
        return [line for i, pair in enumerate(zip(kept, now, strict=True)) for line in differences(*pair, f"{path}[{i}]")]
    if isinstance(kept, float) and isinstance(now, (int, float)) or isinstance(now, float) and isinstance(kept, int):
        same = abs(kept - now) <= max(SHARE, ESTIMATE * abs(kept))
        return [] if same else [f"{path}: {kept} is kept, {now} now"]
    return [] if kept == now else [f"{path}: {kept} is kept, {now} now"]


@pytest.mark.parametrize("case", CASES)
def test_the_plan_is_the_one_that_is_kept(spillway, case):
    assert differences(KEPT[case], plan_of(spillway.path, case)) == []


def test_each_kept_plan_is_a_case():
    assert sorted(KEPT) == sorted(CASES)


def test_a_changed_share_is_a_difference():
    kept = {"weights": [0.5, 0.5, 0.0], "micro_batch": 4}
    assert differences(kept, {"weights": [0.4, 0.6, 0.0], "micro_batch": 4}) == [
        ".weights[0]: 0.5 is kept, 0.4 now",
        ".weights[1]: 0.5 is kept, 0.6 now",
    ]
    assert differences(kept, {"weights": [0.5, 0.5, 0.0], "micro_batch": 8}) == [".micro_batch: 4 is kept, 8 now"]
