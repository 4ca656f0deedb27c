# SPDX-License-Identifier: Apache-2.0
"""Small random models, saved by transformers, give the same logits and the same greedy tokens here."""

import dataclasses
import json
import math

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

GREEDY_TOKENS = 16
PROMPT_TOKENS = 24
FP32_TOLERANCE = 1e-3
BF16_TOLERANCE = 0.4  # of logits up to about 10, in random models that amplify differences
VOCABULARY = 160


@dataclasses.dataclass
class Case:
    """One model: its transformers configuration and how it is saved."""

    family: str
    config: dict
    dtype: str = "float32"
    # Against a float32 reference with the same stored weights, so storing in 16 bits costs the weights nothing; the
    # looser bounds leave room for 16-bit activations and KV.
    tolerance: float = FP32_TOLERANCE
    shard_size: str = "50GB"
    # Write config.json as releases before transformers 5 did: torch_dtype, rope_theta and rope_scaling at the top.
    old_config: bool = False


def opt(**overrides):
    config = dict(
        vocab_size=VOCABULARY, hidden_size=64, ffn_dim=144, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=128, word_embed_proj_dim=64, dropout=0.0, activation_function="relu",
        pad_token_id=1, bos_token_id=2, eos_token_id=None, tie_word_embeddings=True,
    )  # fmt: skip
    return config | overrides


def llama(**overrides):
    config = dict(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=144, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=128, rms_norm_eps=1e-5, hidden_act="silu",
        bos_token_id=1, eos_token_id=None, pad_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    return config | overrides


def mistral(**overrides):
    return llama(num_key_value_heads=2, sliding_window=None, head_dim=16) | overrides


LINEAR_ROPE = dict(rope_type="linear", factor=4.0, rope_theta=10000.0)
LLAMA3_ROPE = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32,
    rope_theta=5000.0,
)  # fmt: skip

CASES = {
    "opt pre-norm": Case("OPT", opt()),
    "opt post-norm": Case("OPT", opt(do_layer_norm_before=False)),
    "opt 350m-like": Case("OPT", opt(do_layer_norm_before=False, word_embed_proj_dim=32)),
    "opt projected, pre-norm": Case("OPT", opt(word_embed_proj_dim=32)),
    "opt without bias": Case("OPT", opt(enable_bias=False)),
    "opt without norm weights": Case("OPT", opt(layer_norm_elementwise_affine=False)),
    "opt galactica-like": Case("OPT", opt(enable_bias=False, layer_norm_elementwise_affine=False, activation_function="gelu")),
    "opt untied": Case("OPT", opt(tie_word_embeddings=False)),
    "opt one head": Case("OPT", opt(num_attention_heads=1)),
    "opt old config": Case("OPT", opt(), old_config=True),
    "opt sharded": Case("OPT", opt(), shard_size="60KB"),
    "opt f16": Case("OPT", opt(), dtype="float16", tolerance=3e-2),
    "llama mha": Case("Llama", llama()),
    "llama gqa": Case("Llama", llama(num_key_value_heads=2)),
    "llama mqa": Case("Llama", llama(num_key_value_heads=1)),
    "llama tied": Case("Llama", llama(tie_word_embeddings=True)),
    "llama attention bias": Case("Llama", llama(attention_bias=True, num_key_value_heads=2)),
    "llama mlp bias": Case("Llama", llama(mlp_bias=True)),
    "llama wide heads": Case("Llama", llama(head_dim=32, num_key_value_heads=2)),
    "llama narrow heads": Case("Llama", llama(head_dim=8)),
    "llama odd sizes": Case("Llama", llama(hidden_size=72, intermediate_size=100, num_attention_heads=3, num_key_value_heads=1, vocab_size=157)),
    "llama rope theta": Case("Llama", llama(rope_parameters=dict(rope_type="default", rope_theta=500000.0))),
    "llama rope linear": Case("Llama", llama(rope_parameters=LINEAR_ROPE)),
    "llama rope llama3": Case("Llama", llama(rope_parameters=LLAMA3_ROPE, num_key_value_heads=2)),
    "llama old config": Case("Llama", llama(num_key_value_heads=2), old_config=True),
    "llama rope linear, old config": Case("Llama", llama(rope_parameters=LINEAR_ROPE), old_config=True),
    "llama rope llama3, old config": Case("Llama", llama(rope_parameters=LLAMA3_ROPE), old_config=True),
    "llama sharded": Case("Llama", llama(num_key_value_heads=2), shard_size="60KB"),
    "llama bf16": Case("Llama", llama(num_key_value_heads=2), dtype="bfloat16", tolerance=6e-2),
    "llama f16": Case("Llama", llama(num_key_value_heads=2), dtype="float16", tolerance=3e-2),
    "mistral": Case("Mistral", mistral()),
    "mistral sliding window": Case("Mistral", mistral(sliding_window=8)),
    "mistral window not of a block": Case("Mistral", mistral(sliding_window=19)),
}


def random_model(case):
    """The case's model with weights that matter: logits of a few units, every bias and norm weight different."""
    config = getattr(transformers, f"{case.family}Config")(**case.config)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{case.family}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(1234)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                center = 1.0 if name.endswith("norm.weight") else 0.0
                parameter.copy_(center + 0.2 * noise)
            elif "embed" in name:
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(noise * 1.5 / math.sqrt(parameter.shape[1]))
    return model.to(getattr(torch, case.dtype)).eval()


def rewrite_as_old_config(path):
    """Turns a transformers 5 config.json into what the models on the hub have."""
    config = json.loads(path.read_text())
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    rope = config.pop("rope_parameters", None)
    if rope:
        config["rope_theta"] = rope.pop("rope_theta", 10000.0)
        config["rope_scaling"] = None if rope.get("rope_type", "default") == "default" else rope
        if rope.get("rope_type") == "linear":
            rope["type"] = rope.pop("rope_type")  # the oldest spelling
    path.write_text(json.dumps(config, indent=2))


def save(case, model, folder):
    model.save_pretrained(folder, max_shard_size=case.shard_size)
    if case.old_config:
        rewrite_as_old_config(folder / "config.json")
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    assert (len(shards) > 1) == (case.shard_size != "50GB"), shards
    return folder


def reference_logits(model, ids):
    """float32 [len(ids), vocab]."""
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def reference_greedy(model, ids, count):
    """(tokens, the gap between the best two logits at each)."""
    tokens, gaps = [], []
    for _ in range(count):
        best = torch.topk(torch.from_numpy(reference_logits(model, [*ids, *tokens])[-1]), 2)
        tokens.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
    return tokens, gaps


def prompt_ids(vocabulary, count=PROMPT_TOKENS, seed=7):
    return [int(i) for i in numpy.random.default_rng(seed).integers(3, vocabulary, count)]


def decided_prompt(model, case):
    """A prompt, its greedy tokens, and how many of them the tolerated error cannot turn.

    The first of a few prompts for which that is all of them; 16-bit tolerances may leave only some.
    """
    best = None
    for seed in range(7, 13):
        ids = prompt_ids(case.config["vocab_size"], seed=seed)
        tokens, gaps = reference_greedy(model, ids, GREEDY_TOKENS)
        decided = next((i for i, gap in enumerate(gaps) if gap < 2 * case.tolerance), GREEDY_TOKENS)
        if best is None or decided > best[2]:
            best = (ids, tokens, decided)
        if decided == GREEDY_TOKENS:
            break
    return best


@pytest.fixture(autouse=True)
def one_thread():
    """These models are too small for more."""
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_transformers(spillway, report, tmp_path, name):
    case = CASES[name]
    model = random_model(case)
    folder = save(case, model, tmp_path / "model")
    reference = model.float()
    ids, tokens, decided = decided_prompt(reference, case)
    assert decided == GREEDY_TOKENS or case.dtype != "float32"

    expected = reference_logits(reference, ids)
    assert 0.5 < expected.std() < 20, "the reference's logits say too little"
    # Batches of 16-bit models round activations to bfloat16; the one kernel of deterministic mode keeps them in F32.
    exact = () if case.dtype == "float32" else ("--deterministic",)
    measured = spillway.logits(folder, ids, tmp_path / "logits.f32", *exact)
    assert measured.shape == expected.shape
    difference = float(numpy.abs(measured - expected).max())
    report(f"{name}: max logit difference {difference:.2e} (logits up to {numpy.abs(expected).max():.1f})")
    assert difference < case.tolerance
    if exact:
        rounded = float(numpy.abs(spillway.logits(folder, ids, tmp_path / "rounded.f32") - expected).max())
        report(f"{name}: {rounded:.2e} with activations rounded to bfloat16")
        assert rounded < BF16_TOLERANCE

    assert spillway.greedy(folder, ids, GREEDY_TOKENS, *exact)[:decided] == tokens[:decided]

    # The same as a GGUF file: other names, another order of rows, norms and biases in F32.
    converted = tmp_path / "model.gguf"
    assert spillway.run("convert", folder, converted).code == 0
    measured = spillway.logits(converted, ids, tmp_path / "converted.f32", *exact)
    assert numpy.abs(measured - expected).max() < case.tolerance
    assert spillway.greedy(converted, ids, GREEDY_TOKENS, *exact)[:decided] == tokens[:decided]


def test_the_sliding_window_case_tells_a_window_from_none():
    """Guards the tests above: the window changes the reference by more than the tolerance."""
    ids = prompt_ids(VOCABULARY)
    for name in ("mistral sliding window", "mistral window not of a block"):
        windowed = reference_logits(random_model(CASES[name]), ids)
        full = reference_logits(random_model(CASES["mistral"]), ids)
        assert numpy.abs(windowed - full).max() > 100 * FP32_TOLERANCE


def test_rope_cases_tell_their_scaling_from_none():
    ids = prompt_ids(VOCABULARY)
    plain = reference_logits(random_model(CASES["llama mha"]), ids)
    for name in ("llama rope theta", "llama rope linear"):
        assert numpy.abs(reference_logits(random_model(CASES[name]), ids) - plain).max() > 100 * FP32_TOLERANCE


def test_a_prompt_over_several_kv_blocks_agrees(spillway, report, tmp_path):
    """100 tokens: seven KV blocks of 16, the last one partly filled."""
    case = CASES["llama gqa"]
    model = random_model(case)
    folder = save(case, model, tmp_path / "model")
    ids = prompt_ids(VOCABULARY, 100)
    difference = numpy.abs(spillway.logits(folder, ids, tmp_path / "logits.f32") - reference_logits(model, ids)).max()
    report(f"llama gqa, 100 tokens: max logit difference {difference:.2e}")
    assert difference < FP32_TOLERANCE


@pytest.mark.parametrize("name", ["opt pre-norm", "llama gqa", "mistral sliding window"])
def test_deterministic_mode_agrees_too(spillway, tmp_path, name):
    case = CASES[name]
    model = random_model(case)
    folder = save(case, model, tmp_path / "model")
    ids = prompt_ids(VOCABULARY)
    measured = spillway.logits(folder, ids, tmp_path / "all.f32", "--deterministic")
    assert numpy.abs(measured - reference_logits(model, ids)).max() < FP32_TOLERANCE
    # A row does not depend on the rows after it: a shorter prompt gives the same bits.
    shorter = spillway.logits(folder, ids[:7], tmp_path / "some.f32", "--deterministic")
    assert shorter.tobytes() == measured[:7].tobytes()
