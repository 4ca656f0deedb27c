# SPDX-License-Identifier: Apache-2.0
"""Small random ChatGLM models give the logits and greedy tokens of chatglm_reference.py, from folders and from GGUF files."""

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is not installed")

import chatglm_reference
from chatglm_reference import config
from reference_models import FP32_TOLERANCE, GREEDY_TOKENS, PROMPT_TOKENS

MODELS = {
    "chatglm2": config(),
    "without biases": config(add_qkv_bias=False),
    "one group": config(multi_query_group_num=1),
    "a group for each head": config(multi_query_group_num=4),
    "wide heads": config(kv_channels=32),
    "glm-4": config(rope_ratio=500, layernorm_epsilon=1.5625e-7),
}


def prompt_of(model, weights):
    """(ids, the tokens after them): the first random prompt after which no token is in doubt."""
    for seed in range(7, 17):
        ids = numpy.random.default_rng(seed).integers(3, model["padded_vocab_size"], PROMPT_TOKENS).tolist()
        tokens, gaps = chatglm_reference.greedy(model, weights, ids, GREEDY_TOKENS)
        if min(gaps) > 2 * FP32_TOLERANCE:
            return ids, tokens
    pytest.fail("every prompt leaves tokens in doubt")


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_the_reference(spillway, report, tmp_path, name):
    model = MODELS[name]
    weights = chatglm_reference.tensors(model)
    ids, tokens = prompt_of(model, weights)
    expected = chatglm_reference.logits(model, weights, ids)
    assert 0.5 < expected.std() < 20, "the reference's logits say too little"
    folder = chatglm_reference.write(tmp_path / "model", model)
    gguf = tmp_path / "model.gguf"
    assert spillway.run("convert", folder, gguf).code == 0
    for files in (folder, gguf):
        measured = spillway.logits(files, ids, tmp_path / "logits.f32")
        assert measured.shape == expected.shape
        difference = float(numpy.abs(measured - expected).max())
        report(f"ChatGLM, {name}, {files.name}: max logit difference {difference:.2e}")
        assert difference < FP32_TOLERANCE
        assert spillway.greedy(files, ids, GREEDY_TOKENS) == tokens


@pytest.mark.parametrize("change", [dict(rope_ratio=500), dict(layernorm_epsilon=1e-2)])
def test_the_reference_tells_settings_apart(change):
    """Shows that the tests above can fail: settings that change no tensor change the logits by more than the tolerance."""
    weights = chatglm_reference.tensors(config())
    ids = list(range(3, 3 + PROMPT_TOKENS))
    plain, changed = (chatglm_reference.logits(one, weights, ids) for one in (config(), config(**change)))
    assert numpy.abs(plain - changed).max() > 20 * FP32_TOLERANCE


def test_another_wiring_is_refused_by_name(spillway, tmp_path):
    folder = chatglm_reference.write(tmp_path / "model", config(apply_residual_connection_post_layernorm=True))
    done = spillway.run("logits", folder, "--ids", "3,4,5", "-o", tmp_path / "logits.f32")
    done.assert_one_line_error(2)
    assert "apply_residual_connection_post_layernorm" in done.err
