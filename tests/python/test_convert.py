# SPDX-License-Identifier: Apache-2.0
"""`spillway convert`: Hugging Face folders as GGUF files, and quantized files of both."""

import json
import lzma
import struct

import pytest
import tiny_llama
from cli_checks import TEXT, WRONG_USAGE, assert_bad_value
from conftest import SHARED_DATA

numpy = pytest.importorskip("numpy", reason="numpy is not installed")

TYPES = ["q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0"]
PROMPT = [tiny_llama.BOS, *b"The river was"]
# Texts that find differences between tokenizers: spaces, digits, line ends, other alphabets, composed characters.
TEXTS = [
    TEXT, "  two  spaces and\ttab\n\n\nlines \n", "1234567 12.5% don't I'll", "Ünïcödé ñ ½ 日本語 עברית 🙂👍🏽", "e\u0301 vs é", " ", "",
    "<s> </s> <unk> <|endoftext|> <|im_start|>user\nhi<|im_end|><|eot_id|> end",
]  # fmt: skip


def convert(spillway, model, out, *options):
    return spillway.run("convert", model, out, "--json", *options).json()


def tensor_types(spillway, model):
    found = spillway.run("inspect", model, "--tensors", "--json").json()["tensors"]
    return {tensor["name"]: tensor["type"] for tensor in found}


# --- folders --------------------------------------------------------------------------------------------------------


def test_a_folder_becomes_the_gguf_that_it_should_be(spillway, tiny_folder, tiny_model, tmp_path):
    out = tmp_path / "out.gguf"
    report = convert(spillway, tiny_folder, out)
    assert report["type"] == "F32" and report["notes"] == [] and report["fallbacks"] == []
    assert report["bytes"] == out.stat().st_size
    # The same weights in the same order of rows: the same bits.
    expected = spillway.logits(tiny_model, PROMPT, tmp_path / "expected.f32")
    assert (spillway.logits(out, PROMPT, tmp_path / "got.f32") == expected).all()
    assert tensor_types(spillway, out) == tensor_types(spillway, tiny_model)


def test_text_and_chat_are_the_folders(spillway, tiny_folder, tmp_path):
    out = tmp_path / "out.gguf"
    convert(spillway, tiny_folder, out)
    answers = [
        spillway.run("run", model, "-p", TEXT, "-n", 24, "--temp", 0, "--json").json() for model in (tiny_folder, out)
    ]
    for key in ("prompt_ids", "ids", "text"):
        assert answers[0][key] == answers[1][key]
    described = [spillway.run("inspect", model, "--json").json()["tokenizer"] for model in (tiny_folder, out)]
    assert described[0] == described[1]


def test_the_file_is_well_formed(spillway, tiny_folder, tmp_path):
    """Checked without our own reader: every tensor is aligned, inside the file, and begins where the one before it ends."""
    out = tmp_path / "out.gguf"
    convert(spillway, tiny_folder, out, "--type", "q4_0")
    data = out.read_bytes()
    at = 0

    def take(layout):
        nonlocal at
        values = struct.unpack_from("<" + layout, data, at)
        at += struct.calcsize("<" + layout)
        return values[0] if len(values) == 1 else values

    def text():
        nonlocal at
        size = take("Q")
        at += size
        return data[at - size : at].decode()

    def value(kind):
        if kind == 9:
            element, count = take("IQ")
            return [value(element) for _ in range(count)]
        return text() if kind == 8 else take({4: "I", 5: "i", 6: "f", 7: "?"}[kind])

    assert data[:4] == b"GGUF"
    at = 4
    version, tensors, keys = take("IQQ")
    assert version == 3
    metadata = {}
    for _ in range(keys):
        key = text()
        metadata[key] = value(take("I"))
    assert metadata["general.architecture"] == "llama"
    assert metadata["general.file_type"] == 2 and metadata["general.quantization_version"] == 2
    assert metadata["tokenizer.ggml.tokens"] == tiny_llama.TOKENS
    assert metadata["tokenizer.ggml.merges"] == [" ".join(pair) for pair in tiny_llama.MERGES]
    assert metadata["tokenizer.chat_template"] == tiny_llama.CHAT_TEMPLATE
    assert metadata["llama.rope.freq_base"] == 10000.0
    blocks = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 14: (256, 210)}
    ends = []
    for _ in range(tensors):
        text()
        shape = take(f"{take('I')}Q")
        shape = shape if isinstance(shape, tuple) else (shape,)
        kind, offset = take("IQ")
        elements, size = blocks[kind]
        assert offset == (ends[-1] + 31) // 32 * 32 if ends else offset == 0
        count = 1
        for length in shape:
            count *= length
        ends.append(offset + count // elements * size)
    start = (at + 31) // 32 * 32
    assert start + (ends[-1] + 31) // 32 * 32 == len(data)


@pytest.mark.parametrize("entry", range(3))
def test_a_trained_folder_gives_the_reference_tokens(spillway, stories, tmp_path, entry):
    reference = json.loads((stories / "reference_greedy.json").read_text())["stories260K"][entry]
    out = tmp_path / "out.gguf"
    report = convert(spillway, stories / "stories260K-hf", out)
    assert any("no tokenizer" in note for note in report["notes"])
    prompt, ids = reference["prompt_ids"], reference["ids"]
    assert spillway.greedy(out, prompt, len(ids) - len(prompt)) == ids[len(prompt) :]


def write_random_folder(folder, config, tensors):
    """16-bit weights: {name: shape}, norms near one."""
    random = numpy.random.default_rng(3)
    header, data = {}, bytearray()
    for name, shape in tensors.items():
        values = random.standard_normal(shape) / numpy.sqrt(shape[-1]) if len(shape) > 1 else 1 + 0.1 * random.standard_normal(shape)
        content = values.astype(numpy.float16).tobytes()
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    folder.mkdir(parents=True, exist_ok=True)
    head = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    (folder / "config.json").write_text(json.dumps(config))


def llama_folder(folder, vocabulary, hidden=32, layers=1, ffn=64, **changes):
    at = "model.layers.{}."
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "lm_head.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        for name, shape in {
            "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,), "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (hidden, hidden), "self_attn.v_proj": (hidden, hidden), "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden), "mlp.down_proj": (hidden, ffn),
        }.items():  # fmt: skip
            shapes[at.format(layer) + name + ".weight"] = shape
    config = {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": 2, "vocab_size": vocabulary, "max_position_embeddings": 256,
    }  # fmt: skip
    write_random_folder(folder, config | changes, shapes)
    return folder


def opt_folder(folder, vocabulary):
    hidden, ffn = 32, 64
    at = "model.decoder.layers.0."
    shapes = {"model.decoder.embed_tokens.weight": (vocabulary, hidden), "model.decoder.embed_positions.weight": (66, hidden)}
    for name, shape in {
        at + "self_attn.q_proj": (hidden, hidden), at + "self_attn.k_proj": (hidden, hidden), at + "self_attn.v_proj": (hidden, hidden),
        at + "self_attn.out_proj": (hidden, hidden), at + "fc1": (ffn, hidden), at + "fc2": (hidden, ffn),
        at + "self_attn_layer_norm": (hidden,), at + "final_layer_norm": (hidden,), "model.decoder.final_layer_norm": (hidden,),
    }.items():  # fmt: skip
        shapes |= {name + ".weight": shape, name + ".bias": shape[:1]}
    config = {
        "model_type": "opt", "hidden_size": hidden, "ffn_dim": ffn, "num_hidden_layers": 1, "num_attention_heads": 2,
        "vocab_size": vocabulary, "max_position_embeddings": 64,
    }  # fmt: skip
    write_random_folder(folder, config, shapes)
    return folder


# Rows of the embeddings, some more than there are tokens.
TOKENIZERS = {"gpt2": 50264, "llama2": 32000, "llama3": 128256, "qwen2_5": 151936, "opt": 50272}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers_stay_what_they_are(spillway, tmp_path, name):
    source = SHARED_DATA / "tokenizers" / name
    if not source.is_dir():
        pytest.skip("../shared/data/tokenizers is not here")
    folder = (opt_folder if name == "opt" else llama_folder)(tmp_path / name, TOKENIZERS[name])
    for file in source.iterdir():
        data = file.read_bytes()
        (folder / file.name.removesuffix(".xz")).write_bytes(lzma.decompress(data) if file.suffix == ".xz" else data)
    out = tmp_path / "out.gguf"
    report = convert(spillway, folder, out)
    assert report["type"] == "F16"
    if name == "opt":
        assert len(report["notes"]) == 1 and "llama.cpp does not know OPT" in report["notes"][0]
    else:
        assert report["notes"] == []
    (tmp_path / "text").write_text("\n".join(TEXTS))
    for options in ((), ("--parse-special",)):
        command = ["-f", tmp_path / "text", "--json", *options]
        ids = [spillway.run("tokenize", model, *command).json()["ids"] for model in (folder, out)]
        assert ids[0] == ids[1]
    prompt = [1, 5, 9, 300]
    assert spillway.greedy(out, prompt, 8, "--deterministic") == spillway.greedy(folder, prompt, 8, "--deterministic")


def test_norms_and_biases_of_a_folder_are_f32(spillway, tmp_path):
    opt = tmp_path / "opt.gguf"
    convert(spillway, opt_folder(tmp_path / "opt", 100), opt, "--type", "q8_0")
    for name, kind in tensor_types(spillway, opt).items():
        expected = "F32" if "norm" in name or name.endswith("bias") or "position" in name else "Q8_0"
        assert kind == expected, name
    assert len(spillway.greedy(opt, [2, 5, 9], 5)) == 5


def test_what_a_folder_lacks_is_named(spillway, tmp_path):
    folder = llama_folder(tmp_path / "model", 100, num_hidden_layers=2)
    done = spillway.run("convert", folder, tmp_path / "out.gguf")
    done.assert_one_line_error(WRONG_USAGE)
    assert "model.layers.1." in done.err
    assert not (tmp_path / "out.gguf").exists()


# --- types ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["folder", "gguf"])
@pytest.mark.parametrize("kind", TYPES)
def test_quantized_files_run_and_are_close(spillway, report, tmp_path, kind, source):
    model = llama_folder(tmp_path / "model", 300, hidden=256, layers=4, ffn=512)
    plain = tmp_path / "plain.gguf"
    convert(spillway, model, plain, "--type", "f32")
    out = tmp_path / "out.gguf"
    made = convert(spillway, model if source == "folder" else plain, out, "--type", kind)
    assert made["fallbacks"] == []
    main = {"q5_k_m": "Q5_K", "q4_k_m": "Q4_K"}.get(kind, kind.upper())
    types = tensor_types(spillway, out)
    assert types["blk.0.attn_q.weight"] == types["token_embd.weight"] == main
    assert types["output.weight"] == ("Q8_0" if kind == "q8_0" else "Q6_K")
    more = "Q6_K" if kind.endswith("_m") else main
    assert [types[f"blk.{layer}.attn_v.weight"] for layer in range(4)] == [main, main, more, more]
    assert made["tensors"] == {name: list(types.values()).count(name) for name in set(types.values())}
    ids = [1, *range(20, 60)]
    expected = spillway.logits(plain, ids, tmp_path / "expected.f32", "--deterministic")
    got = spillway.logits(out, ids, tmp_path / "got.f32", "--deterministic")
    off = float(numpy.sqrt(((got - expected) ** 2).mean()) / expected.std())
    report(f"{kind} from a {source}: logits off by {off:.4f} of their spread")
    assert off < {"q8_0": 0.05, "q6_k": 0.13, "q5_k_m": 0.27, "q4_k_m": 0.4, "q4_0": 0.55}[kind]


def test_odd_widths_fall_back_and_that_is_said(spillway, tmp_path):
    model = llama_folder(tmp_path / "model", 300, hidden=96, ffn=200)
    out = tmp_path / "out.gguf"
    made = convert(spillway, model, out, "--type", "q4_k_m")
    types = tensor_types(spillway, out)
    assert types["blk.0.attn_q.weight"] == "Q5_0"
    assert types["output.weight"] == "Q8_0"
    assert types["blk.0.ffn_down.weight"] == "F16"
    assert {"tensor": "output.weight", "columns": 96, "wanted": "Q6_K", "type": "Q8_0"} in made["fallbacks"]
    text = spillway.run("convert", model, out, "--type", "q4_k_m").out
    assert "1 matrix of width 200 is F16 instead of Q6_K, whose blocks have 256 columns" in text
    assert "6 matrices of width 96 are Q5_0 instead of Q4_K" in text
    assert len(spillway.greedy(out, [1, 2, 3], 5)) == 5


def test_the_number_of_threads_does_not_change_a_byte(spillway, tmp_path):
    model = llama_folder(tmp_path / "model", 300, hidden=256, ffn=512)
    outs = [tmp_path / f"{threads}.gguf" for threads in (1, 2, 5)]
    for threads, out in zip((1, 2, 5), outs):
        convert(spillway, model, out, "--type", "q4_k_m", "-t", threads)
    assert len({out.read_bytes() for out in outs}) == 1


def test_weights_that_are_quantized_again_are_counted(spillway, tmp_path):
    model = llama_folder(tmp_path / "model", 300, hidden=256, ffn=512)
    once, twice = tmp_path / "once.gguf", tmp_path / "twice.gguf"
    assert convert(spillway, model, once, "--type", "q8_0")["quantized_again"] == 0
    assert convert(spillway, once, twice, "--type", "q4_0")["quantized_again"] == 9
    assert "quantized before" in spillway.run("convert", once, twice, "--type", "q4_0").out


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_no_type_holds_are_refused(spillway, tmp_path, value):
    folder = tiny_llama.write_folder(tmp_path / "model")
    named = [(name, rows) for name, rows in tiny_llama.tensors(tiny_llama.Options())]
    dict(named)["model.layers.1.mlp.up_proj.weight"][3][5] = value
    tiny_llama.write_safetensors(folder / "model.safetensors", named)
    done = spillway.run("convert", folder, tmp_path / "out.gguf", "--type", "q8_0")
    done.assert_one_line_error(WRONG_USAGE)
    assert "blk.1.ffn_up.weight" in done.err
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("kind", ["q4_k", "int4", ""])
def test_types_that_are_not_known_are_wrong_usage(spillway, tiny_model, tmp_path, kind):
    done = spillway.run("convert", tiny_model, tmp_path / "out.gguf", f"--type={kind or 'x'}")
    assert_bad_value(done)
    assert "q4_k_m" in done.err
