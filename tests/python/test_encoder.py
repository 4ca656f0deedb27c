# SPDX-License-Identifier: Apache-2.0
"""Encoders that predict lengths: small random ones give transformers' embeddings; wrong folders are refused in a line."""

import json

import conftest
import pytest

numpy = pytest.importorskip("numpy", reason="numpy is not installed")

import reference_encoders
from cli_checks import assert_bad_value
from reference_encoders import CASES, TEXTS, TOLERANCE, reference


def embed(spillway, folder, texts, tmp_path, *options):
    file = tmp_path / "texts"
    file.write_text("".join(text + "\n" for text in texts))
    done = spillway.run("predictor", "embed", file, "--encoder", folder, *options)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def largest_difference(results, embeddings):
    pairs = zip(results, embeddings, strict=True)
    return max(float(numpy.abs(numpy.array(ours["embedding"]) - numpy.array(theirs)).max()) for ours, theirs in pairs)


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_transformers(spillway, report, tmp_path, name):
    expected = reference(name)
    folder = expected.write(tmp_path / "encoder")
    results = embed(spillway, folder, TEXTS, tmp_path, "--exact")
    assert [result["ids"] for result in results] == expected.ids
    difference = largest_difference(results, expected.embeddings)
    report(f"encoder {name}: max difference {difference:.2e} of embeddings of length 1")
    assert difference < TOLERANCE
    # The encoder as it is used, with matrices in 8 bits.
    fast = embed(spillway, folder, TEXTS, tmp_path)
    report(f"encoder {name}: {largest_difference(fast, expected.embeddings):.2e} with weights in 8 bits")
    assert largest_difference(fast, expected.embeddings) < 0.05


def test_texts_are_told_apart():
    """Shows that the test above can fail: embeddings of different texts differ by far more than its bound."""
    for name in CASES:
        first, *others = (numpy.array(embedding) for embedding in reference(name).embeddings)
        assert all(float(numpy.abs(first - other).max()) > 100 * TOLERANCE for other in others)


@pytest.mark.xdist_group("torch")
@pytest.mark.parametrize("name", CASES)
def test_the_stored_reference_is_what_transformers_says(name):
    pytest.importorskip("torch", reason="torch is not installed: stored references are not computed anew")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    made_with = reference_encoders.stored()["made_with"]["transformers"]
    if transformers.__version__ != made_with:
        pytest.skip(f"transformers is {transformers.__version__}, the stored references are of {made_with}")
    import make_encoder_references

    anew, expected = make_encoder_references.compute(CASES[name]), reference(name)
    assert anew["case_hash"] == expected.case_hash and anew["ids"] == expected.ids
    assert numpy.abs(numpy.array(anew["embeddings"]) - numpy.array(expected.embeddings)).max() < TOLERANCE / 2


def test_wrong_folders_are_one_line(spillway, tmp_path):
    texts = tmp_path / "texts"
    texts.write_text("name\n")
    folder = reference("bert").write(tmp_path / "encoder")

    def complaint():
        done = spillway.run("predictor", "embed", texts, "--encoder", folder)
        assert_bad_value(done)
        return done.err

    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"model_type": "bert"', '"model_type": "t5"'))
    assert "model_type is t5" in complaint()
    (folder / "config.json").write_text(config.replace('"hidden_size": 64', '"hidden_size": 68'))
    assert "word_embeddings.weight is" in complaint()
    (folder / "config.json").write_text(config)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-100])
    assert "model.safetensors" in complaint()
    (folder / "model.safetensors").write_bytes(weights[:-4] + b"\xff\xff\xff\xff")
    assert "no numbers" in complaint()
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "vocab.txt").unlink()
    assert "vocab.txt" in complaint()


def test_a_real_vocabulary_gives_the_ids_of_the_reference(spillway, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    folder = conftest.CACHE / "spillway" / "encoders" / "all-MiniLM-L6-v2"
    text = conftest.SHARED_DATA / "text" / "wiki.test.raw"
    if not folder.is_dir() or not text.is_file():
        pytest.skip("all-MiniLM-L6-v2 is not fetched (scripts/fetch_model.sh minilm), or ../shared/data/text is not here")
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs.no_padding()
    theirs.enable_truncation(64)
    lines = [line.strip() for line in text.read_text().splitlines() if line.strip()][:400]
    lines += [ascii(line) for line in lines[:50]] + ["\u00c0 la carte \u6cb3\u6d41 \ud55c\uad6d\uc5b4 \U0001f600 na\u00efve " + "y" * 101]
    for line, result in zip(lines, embed(spillway, folder, lines, tmp_path), strict=True):
        assert result["ids"] == theirs.encode(line).ids, line
