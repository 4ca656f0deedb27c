# SPDX-License-Identifier: Apache-2.0
"""The stored references are complete, match the cases, and, if transformers is installed, equal its results today."""

import hashlib

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is not installed")

import reference_models
from reference_models import CASES, GREEDY_TOKENS, LONG_PROMPT_CASE, PROMPT_TOKENS, long_prompt, reference

# Other machines and other releases of torch add in another order; stored logits are rounded, too.
RECOMPUTED_TOLERANCE = 5e-5


def test_the_stored_files_are_whole_and_of_these_cases():
    document, logits = reference_models.stored()
    assert hashlib.sha256(reference_models.LOGITS.read_bytes()).hexdigest() == document["logits_sha256"]
    assert list(document["cases"]) == list(CASES), "run make_references.py"
    assert {values["logits"] for values in document["cases"].values()} | {"long prompt"} == set(logits)
    for name, case in CASES.items():
        stored = reference(name)
        assert stored.case_hash == case.hash(), f"{name} was changed: run make_references.py"
        assert stored.logits.shape == (PROMPT_TOKENS, case.config["vocab_size"])
        assert len(stored.prompt) == PROMPT_TOKENS and len(stored.tokens) == len(stored.gaps) == GREEDY_TOKENS
        assert stored.logits[-1].argmax() == stored.tokens[0]
    ids, rows = long_prompt()
    assert rows.shape == (len(ids), reference_models.VOCABULARY)


def test_stored_logits_are_rounded_by_less_than_a_step():
    logits = numpy.array([[0.0, -0.0, 1e-9, 127.99, -128.0], [3.14159, -3.14159, 1 / 3, -1 / 3, 1e-5]], dtype=numpy.float32)
    unpacked = reference_models.unpacked_logits(reference_models.packed_logits(logits))
    assert numpy.abs(unpacked - logits).max() <= 0.5 / reference_models.STEPS + 1e-7


@pytest.fixture(scope="session")
def maker():
    """make_references.py; importing what it needs takes seconds, so it is only imported for a test."""
    torch = pytest.importorskip("torch", reason="torch is not installed: stored references are not computed anew")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: stored references are not computed anew")
    made_with = reference_models.stored()[0]["made_with"]["transformers"]
    if transformers.__version__ != made_with:
        pytest.skip(f"transformers is {transformers.__version__}, the stored references are of {made_with}")
    torch.set_num_threads(1)  # these models are too small for more threads
    import make_references

    return make_references


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.xdist_group("torch")  # importing it takes longer than all of these
@pytest.mark.parametrize("name", CASES)
def test_the_stored_reference_is_what_transformers_says(maker, tmp_path, name):
    case, stored = CASES[name], reference(name)
    model = maker.make_model(case)
    ours, theirs = files(stored.write(tmp_path / "ours")), files(maker.save(case, model, tmp_path / "theirs"))
    assert sorted(ours) == sorted(theirs)
    for file, content in theirs.items():
        assert ours[file] == content, file

    # One pass over the prompt and the tokens is enough, since the logits of a position depend only on what precedes it.
    rows = maker.compute_logits(model.float(), stored.prompt + stored.tokens)
    assert numpy.abs(rows[:PROMPT_TOKENS] - stored.logits).max() < RECOMPUTED_TOLERANCE
    tokens, gaps = maker.greedy_choices(rows[PROMPT_TOKENS - 1 : -1])
    decided = case.decided(stored.gaps)
    assert tokens[:decided] == stored.tokens[:decided]
    assert numpy.abs(numpy.array(gaps[:decided]) - stored.gaps[:decided]).max() < 2 * RECOMPUTED_TOLERANCE


@pytest.mark.xdist_group("torch")
def test_so_is_that_of_the_long_prompt(maker):
    ids, stored = long_prompt()
    rows = maker.compute_logits(maker.make_model(CASES[LONG_PROMPT_CASE]), ids)
    assert numpy.abs(rows - stored).max() < RECOMPUTED_TOLERANCE
