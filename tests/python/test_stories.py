# SPDX-License-Identifier: Apache-2.0
"""Trained models against references that were computed in float64 from the unquantized weights."""

import json

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is not installed")

LAYOUTS = ["stories260K-f32.gguf", "stories260K-hf"]
# How far weights and activations of 8 bits move a logit of stories15M; differences between two logits move by at most twice that.
Q8_0_TOLERANCE = 0.3


def references(stories, model):
    return json.loads((stories / "reference_greedy.json").read_text())[model]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("entry", range(3))
def test_stories260k_gives_the_reference_tokens(spillway, stories, layout, entry):
    reference = references(stories, "stories260K")[entry]
    prompt, ids = reference["prompt_ids"], reference["ids"]
    assert spillway.greedy(stories / layout, prompt, len(ids) - len(prompt)) == ids[len(prompt) :]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_stories260k_gives_the_reference_logits(spillway, report, stories, layout, tmp_path):
    expected = numpy.fromfile(stories / "stories260K_ref_logits_f32_64x512.bin", dtype="<f4").reshape(64, 512)
    ids = references(stories, "stories260K")[0]["ids"][:64]
    measured = spillway.logits(stories / layout, ids, tmp_path / "logits.f32")
    assert measured.shape == expected.shape
    difference = float(numpy.abs(measured - expected).max())
    report(f"{layout}: max logit difference {difference:.2e}")
    assert difference < 1e-4


def test_both_layouts_give_the_same_logits(spillway, stories, tmp_path):
    """Up to rounding: a GGUF file holds the rows of Q and K in another order, so their products are summed in another."""
    ids = references(stories, "stories260K")[1]["ids"]
    gguf, folder = (spillway.logits(stories / layout, ids, tmp_path / layout) for layout in LAYOUTS)
    assert numpy.abs(gguf - folder).max() < 1e-4
    assert (gguf.argmax(axis=1) == folder.argmax(axis=1)).all()


def test_stories260k_tokenizes_and_detokenizes_the_reference_prompts(spillway, stories):
    for reference in references(stories, "stories260K")[1:]:
        answer = spillway.run(
            "run", stories / "stories260K-f32.gguf", "-p", reference["prompt"], "-n", len(reference["ids"]) - len(reference["prompt_ids"]),
            "--temp", "0", "--json",
        ).json()
        assert answer["prompt_ids"] == reference["prompt_ids"]
        assert answer["prompt_ids"] + answer["ids"] == reference["ids"]
        assert (reference["prompt"] + answer["text"]).strip() == reference["text"].strip()


@pytest.mark.parametrize("entry", range(3))
def test_stories15m_in_q8_0_agrees_wherever_the_gap_allows(spillway, report, stories, entry, tmp_path):
    model = stories / "stories15M-Q8_0.gguf"
    reference = references(stories, "stories15M")[entry]
    prompt, ids = reference["prompt_ids"], reference["ids"]
    first = len(prompt) - 1

    # Given the reference's own tokens, each choice is the reference's or so close that quantization explains it.
    # Deterministic: the logits of a batch and of token after token are then the same.
    logits = spillway.logits(model, ids, tmp_path / "logits.f32", "--deterministic")
    choices = logits[first:-1].argmax(axis=1)
    wanted = numpy.array(ids[first + 1 :])
    rows = numpy.arange(first, len(ids) - 1)
    behind = logits[rows, choices] - logits[rows, wanted]
    report(f"stories15M-Q8_0, prompt {entry}: {int((choices != wanted).sum())} of {len(wanted)} choices differ, by at most {behind.max():.3f}")
    assert behind.max() < 2 * Q8_0_TOLERANCE
    assert (choices != wanted).mean() <= 0.05

    # The best five logits, at the end of the prompt. (The reference's other five belong to the last token it chose.)
    for token, value in reference["last_prompt_logits_top5"]:
        assert abs(float(logits[first, token]) - value) < Q8_0_TOLERANCE
    for token, value in reference["final_logits_top5"]:
        assert abs(float(logits[-2, token]) - value) < Q8_0_TOLERANCE

    # Without the reference's tokens it generates the same text until the first such close choice.
    generated = spillway.greedy(model, prompt, len(wanted), "--deterministic")
    close = numpy.flatnonzero(choices != wanted)
    agreed = int(close[0]) if len(close) else len(wanted)
    assert generated[:agreed] == wanted[:agreed].tolist()
