# SPDX-License-Identifier: Apache-2.0
"""Small random models, as transformers saves them, give its logits and its greedy tokens here.

transformers' results are stored (reference_models.py); test_references.py computes them anew if transformers is installed.
"""

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is not installed")

from reference_models import CASES, FP32_TOLERANCE, GREEDY_TOKENS, LONG_PROMPT_CASE, long_prompt, reference

BF16_TOLERANCE = 0.4  # for logits up to about 10, in random models that amplify differences


def largest_difference(a, b):
    assert a.shape == b.shape
    return float(numpy.abs(a - b).max())


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_transformers(spillway, report, tmp_path, name):
    case, expected = CASES[name], reference(name)
    folder = expected.write(tmp_path / "model")
    ids = expected.prompt
    decided = case.decided(expected.gaps)
    assert decided == GREEDY_TOKENS or case.dtype != "float32"
    assert 0.5 < expected.logits.std() < 20, "the reference's logits say too little"

    # Batches of 16-bit models round activations to bfloat16; the one kernel of deterministic mode keeps them in F32.
    exact = () if case.dtype == "float32" else ("--deterministic",)
    difference = largest_difference(spillway.logits(folder, ids, tmp_path / "logits.f32", *exact), expected.logits)
    report(f"{name}: max logit difference {difference:.2e} (logits up to {numpy.abs(expected.logits).max():.1f})")
    assert difference < case.tolerance
    if exact:
        rounded = largest_difference(spillway.logits(folder, ids, tmp_path / "rounded.f32"), expected.logits)
        report(f"{name}: {rounded:.2e} with activations rounded to bfloat16")
        assert rounded < BF16_TOLERANCE

    assert spillway.greedy(folder, ids, GREEDY_TOKENS, *exact)[:decided] == expected.tokens[:decided]

    # The same model as a GGUF file has other names, another order of rows, and norms and biases in F32.
    converted = tmp_path / "model.gguf"
    assert spillway.run("convert", folder, converted).code == 0
    measured = spillway.logits(converted, ids, tmp_path / "converted.f32", *exact)
    assert largest_difference(measured, expected.logits) < case.tolerance
    assert spillway.greedy(converted, ids, GREEDY_TOKENS, *exact)[:decided] == expected.tokens[:decided]


def assert_told_apart(name, other):
    a, b = reference(name), reference(other)
    assert a.prompt == b.prompt
    assert a.weights_sha256 == b.weights_sha256
    assert largest_difference(a.logits, b.logits) > 100 * FP32_TOLERANCE


def test_the_sliding_window_case_tells_a_window_from_none():
    """Shows that the tests above can fail: the window changes the reference by more than the tolerance."""
    for name in ("mistral sliding window", "mistral window not of a block"):
        assert_told_apart(name, "mistral")
    assert_told_apart("phi3 sliding window", "phi3")


def test_rope_cases_tell_their_scaling_from_none():
    for name in ("llama rope theta", "llama rope linear", "llama rope yarn, old config"):
        assert_told_apart(name, "llama mha")
    assert_told_apart("mistral rope yarn", "mistral")
    assert_told_apart("phi3 longrope", "phi3")
    assert_told_apart("phi3 longrope with its attention factor", "phi3 longrope")


def test_a_prompt_over_several_kv_blocks_agrees(spillway, report, tmp_path):
    """100 tokens: seven KV blocks of 16, the last one partly filled."""
    folder = reference(LONG_PROMPT_CASE).write(tmp_path / "model")
    ids, expected = long_prompt()
    assert len(ids) == 100
    difference = largest_difference(spillway.logits(folder, ids, tmp_path / "logits.f32"), expected)
    report(f"{LONG_PROMPT_CASE}, 100 tokens: max logit difference {difference:.2e}")
    assert difference < FP32_TOLERANCE


@pytest.mark.parametrize("name", ["opt pre-norm", "llama gqa", "mistral sliding window"])
def test_deterministic_mode_agrees_too(spillway, tmp_path, name):
    expected = reference(name)
    folder = expected.write(tmp_path / "model")
    measured = spillway.logits(folder, expected.prompt, tmp_path / "all.f32", "--deterministic")
    assert largest_difference(measured, expected.logits) < FP32_TOLERANCE
    # A row does not depend on the rows after it: a shorter prompt gives the same bits.
    shorter = spillway.logits(folder, expected.prompt[:7], tmp_path / "some.f32", "--deterministic")
    assert shorter.tobytes() == measured[:7].tobytes()
