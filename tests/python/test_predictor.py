# SPDX-License-Identifier: Apache-2.0
"""`spillway predictor` learns the lengths of answers, and reports its accuracy."""

import json

import conftest
import pytest
from cli_checks import WRONG_USAGE, assert_bad_value

SCORES = {"accuracy", "majority_accuracy", "bucket_distance", "equal_frequency_accuracy", "equal_frequency_majority_accuracy", "us_per_prediction"}


@pytest.fixture
def data(tmp_path):
    """Examples in which the wording of the question decides the answer's length."""
    path = tmp_path / "data.jsonl"
    lengths = {"Name": 3, "Explain": 120, "Write": 400}
    rows = [{"prompt": f"{verb} thing {i}", "tokens": tokens + i % 7} for i in range(40) for verb, tokens in lengths.items()]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_eval_splits_the_data_and_reports(spillway, tiny_model, data):
    done = spillway.run("predictor", "eval", data, "--model", tiny_model, "--json")
    assert done.code == 0, done.err
    score = done.json()
    assert SCORES <= score.keys() and score["examples"] == 120 and score["folds"] == 5
    assert score["accuracy"] > 0.9 > 0.5 > score["majority_accuracy"]
    table = spillway.run("predictor", "eval", "-m", tiny_model, data).out
    assert "equal frequency" in table and "120 answers" in table


def test_a_trained_file_is_scored_on_all_of_the_data(spillway, tiny_model, data, tmp_path):
    file = tmp_path / "lengths.predictor"
    trained = spillway.run("predictor", "train", data, "-o", file, "--model", tiny_model, "--json")
    assert trained.code == 0, trained.err
    assert trained.json()["examples"] == 120 and len(trained.json()["edges"]) == 10
    score = spillway.run("predictor", "eval", data, "--model", tiny_model, "--predictor", file, "--json").json()
    assert score["folds"] is None and score["trained_for"] == str(tiny_model)
    assert score["equal_frequency_accuracy"] > 2 * score["equal_frequency_majority_accuracy"]


def test_a_damaged_file_is_a_warning_and_a_fresh_predictor_is_used(spillway, tiny_model, data, tmp_path):
    file = tmp_path / "lengths.predictor"
    file.write_bytes(b"spillway length predictor 1\nnothing")
    done = spillway.run("predictor", "eval", data, "--model", tiny_model, "--predictor", file, "--json")
    assert done.code == 0 and "lengths.predictor" in done.err and "fresh" in done.err
    assert done.json()["folds"] == 5


def test_answers_are_measured_with_the_models_tokens(spillway, tiny_model, tmp_path):
    answer = "The river was wide."
    count = spillway.run("tokenize", tiny_model, "-p", answer, "--no-special", "--json").json()["count"]
    path = tmp_path / "alpaca.json"
    path.write_text(json.dumps([{"instruction": f"Say {i}", "input": "", "output": answer} for i in range(20)]))
    assert spillway.run("predictor", "eval", path, "--model", tiny_model, "--json").json()["mean_tokens"] == count


@pytest.fixture
def encoder(tmp_path):
    pytest.importorskip("numpy", reason="numpy is not installed")
    import reference_encoders

    return reference_encoders.reference("bert").write(tmp_path / "encoder")


def test_an_encoders_embeddings_are_learned_from(spillway, tiny_model, data, encoder, tmp_path):
    score = spillway.run("predictor", "eval", data, "--model", tiny_model, "--encoder", encoder, "--json").json()
    assert SCORES <= score.keys() and score["accuracy"] > 0.9
    # A trained file names its encoder.
    file = tmp_path / "lengths.predictor"
    trained = spillway.run("predictor", "train", data, "-o", file, "--model", tiny_model, "--encoder", encoder)
    assert trained.code == 0, trained.err
    score = spillway.run("predictor", "eval", data, "--model", tiny_model, "--predictor", file, "--json").json()
    assert score["folds"] is None and score["accuracy"] > 0.5
    # Another encoder in its place.
    config = encoder / "config.json"
    config.write_text(config.read_text().replace('"gelu"', '"relu"'))
    other = spillway.run("predictor", "eval", data, "--model", tiny_model, "--predictor", file)
    assert_bad_value(other)
    assert "another encoder" in other.err
    config.unlink()
    assert_bad_value(spillway.run("predictor", "eval", data, "--model", tiny_model, "--predictor", file))
    assert_bad_value(spillway.run("predictor", "eval", data, "--model", tiny_model, "--encoder", encoder))


def test_a_predictor_goes_beside_the_user_where_no_file_is_named(spillway, tiny_model, data, tmp_path):
    done = spillway.run("predictor", "train", data, "--model", tiny_model, "--json", cwd=tmp_path).json()
    assert done["file"] == f"{data.stem}.predictor"
    assert (tmp_path / done["file"]).is_file()


def test_wrong_usage_and_wrong_data_are_one_line(spillway, tiny_model, data, tmp_path):
    spillway.run("predictor").assert_one_line_error(WRONG_USAGE)
    spillway.run("predictor", "eval", data).assert_one_line_error(WRONG_USAGE)
    spillway.run("predictor", "train", data).assert_one_line_error(WRONG_USAGE)
    assert_bad_value(spillway.run("predictor", "train", data, "-o", tmp_path / "p", "--model", tiny_model, "--buckets", "few"))
    assert_bad_value(spillway.run("predictor", "eval", tmp_path / "none.json", "--model", tiny_model))
    assert_bad_value(spillway.run("predictor", "eval", data, "--model", tiny_model, "--predictor", tmp_path / "none"))
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "x", "tokens": 3}\n{"prompt": 5}\n')
    done = spillway.run("predictor", "eval", bad, "--model", tiny_model)
    assert_bad_value(done)
    assert "bad.jsonl:2" in done.err


def test_real_answers_are_predicted_better_than_by_the_majority(spillway, stories):
    """The project's bar: 1.15 times the majority class, twice with ten buckets of equal frequency."""
    path = conftest.SHARED_DATA / "text" / "alpaca_small_2000.json"
    if not path.is_file():
        pytest.skip("../shared/data/text is not here")
    score = spillway.run("predictor", "eval", path, "--model", stories / "stories15M-Q8_0.gguf", "--json").json()
    assert score["examples"] == 2000
    assert score["accuracy"] >= 1.15 * score["majority_accuracy"]
    assert score["equal_frequency_accuracy"] >= 2 * score["equal_frequency_majority_accuracy"]
    assert score["paper_accuracy"] >= score["paper_majority_accuracy"] - 0.005


def test_real_answers_with_a_real_encoder(spillway, report, stories):
    path = conftest.SHARED_DATA / "text" / "alpaca_small_2000.json"
    encoder = conftest.CACHE / "spillway" / "encoders" / "all-MiniLM-L6-v2"
    if not path.is_file() or not encoder.is_dir():
        pytest.skip("../shared/data/text is not here, or all-MiniLM-L6-v2 is not fetched (scripts/fetch_model.sh minilm)")
    model = stories / "stories15M-Q8_0.gguf"
    score = spillway.run("predictor", "eval", path, "--model", model, "--encoder", encoder, "--json").json()
    report(f"encoder: {score['accuracy'] / score['majority_accuracy']:.3f} times the majority, {score['us_per_prediction']:.0f} us")
    assert score["accuracy"] >= 1.15 * score["majority_accuracy"]
    assert score["equal_frequency_accuracy"] >= 2 * score["equal_frequency_majority_accuracy"]
