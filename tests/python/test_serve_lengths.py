# SPDX-License-Identifier: Apache-2.0
"""Predicted lengths in the server and the batch runner: metrics, stored predictors, options that exclude each other."""

import json
import os

import pytest
from cli_checks import WRONG_USAGE
from serve_checks import Server, wait_for

pytestmark = pytest.mark.xdist_group("serve_lengths")
RESULTS = [f'spillway_length_predictions_total{{result="{result}"}}' for result in ("right", "over", "under")]
LEARNED = 'spillway_length_answers_total{training="learned"}'


def environment(tmp_path):
    return os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def kept(tmp_path):
    return list((tmp_path / "cache" / "spillway" / "lengths").glob("*.predictor"))


def ask(server, count, **fields):
    """Requests whose answers end at their limit, beyond their prediction, or by themselves."""
    for i in range(count):
        server.complete(prompt=f"Once {i}", **({"max_tokens": 20} | fields))


def counted(server):
    server.complete(prompt="x", max_tokens=1, ignore_eos=True)  # metrics are those of the last step
    metrics = server.metrics()
    return sum(metrics[name] for name in RESULTS), metrics


def test_the_server_counts_learns_and_keeps_what_it_learned(spillway, tiny_model, tmp_path):
    options = ("--ctx", "512")
    with Server(spillway, tiny_model, tmp_path, *options, env=environment(tmp_path)) as server:
        ask(server, 24, max_tokens=300)
        wait_for(lambda: counted(server)[1][LEARNED] >= 16)
        answers, metrics = counted(server)
        assert answers >= 16
        assert metrics["spillway_length_real_tokens_total"] > 0 < metrics["spillway_length_predicted_tokens_total"]
        assert metrics['spillway_prediction_seconds_total{part="scheduling"}'] > 0
        assert metrics["spillway_kv_predicted_blocks"] >= 0
        assert server.end() == 0
    (file,) = kept(tmp_path)
    with Server(spillway, tiny_model, tmp_path, *options, env=environment(tmp_path)) as server:
        assert f"{file.name} has learned from" in server.log()
    file.write_bytes(b"spillway length predictor 1\nnothing")
    with Server(spillway, tiny_model, tmp_path, *options, env=environment(tmp_path)) as server:
        assert file.name in server.log() and "fresh" in server.log()
        ask(server, 1)


def test_off_predicts_nothing(spillway, tiny_model, tmp_path):
    with Server(spillway, tiny_model, tmp_path, "--ctx", "256", "--length-predictor", "off", env=environment(tmp_path)) as server:
        ask(server, 3, max_tokens=100)
        assert counted(server)[0] == 0
        assert server.end() == 0
    assert not kept(tmp_path)


def test_an_encoder_predicts_learns_and_is_remembered(spillway, tiny_model, tmp_path):
    pytest.importorskip("numpy", reason="numpy is not installed")
    import reference_encoders

    encoder = reference_encoders.reference("distilbert").write(tmp_path / "encoder")
    options = ("--ctx", "512", "--length-predictor", encoder)
    with Server(spillway, tiny_model, tmp_path, *options, env=environment(tmp_path)) as server:
        ask(server, 24, max_tokens=300)
        wait_for(lambda: counted(server)[1][LEARNED] >= 16)
        assert counted(server)[0] >= 16
        assert server.end() == 0
    (file,) = kept(tmp_path)
    with Server(spillway, tiny_model, tmp_path, *options, env=environment(tmp_path)) as server:
        assert f"{file.name} has learned from" in server.log()
    # A predictor trained beforehand is used until something was learned.
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"Once {i}", "tokens": 10 + i}) + "\n" for i in range(20)))
    trained = spillway.run("predictor", "train", data, "-o", encoder / "lengths.predictor", "-m", tiny_model, "--encoder", encoder)
    assert trained.code == 0, trained.err
    elsewhere = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "other cache")}
    with Server(spillway, tiny_model, tmp_path, *options, env=elsewhere) as server:
        assert "lengths.predictor has learned from 300 examples" in server.log()
        ask(server, 1)
    # A predictor's file names its encoder.
    with Server(spillway, tiny_model, tmp_path, "--length-predictor", file, env=environment(tmp_path)) as server:
        ask(server, 1)
    (encoder / "config.json").unlink()
    for choice in (encoder, file):
        done = spillway.run("serve", tiny_model, "--port", "0", "--length-predictor", choice, env=environment(tmp_path))
        assert done.code == WRONG_USAGE and "config.json" in done.err, done.err


@pytest.mark.parametrize("order", ["fair", "first", "shortest"])
def test_every_order_gives_the_same_answers(spillway, tiny_model, tmp_path, order):
    options = ("--ctx", "256", "--queue-order", order, "--length-predictor", "mean")
    with Server(spillway, tiny_model, tmp_path, *options, env=environment(tmp_path)) as server:
        texts = [server.complete(prompt=f"Once {i}", max_tokens=12)["choices"][0]["text"] for i in range(3)]
    with Server(spillway, tiny_model, tmp_path, "--ctx", "256", "--length-predictor", "off", env=environment(tmp_path)) as server:
        assert texts == [server.complete(prompt=f"Once {i}", max_tokens=12)["choices"][0]["text"] for i in range(3)]


@pytest.mark.parametrize(
    "options",
    [
        ("--length-predictor", "off", "--queue-order", "shortest"),
        ("--length-predictor", "off", "--kv-admission", "predicted"),
        ("--length-predictor", "/nowhere/lengths.predictor"),
        ("--kv-admission", "some"),
        ("--queue-order", "longest"),
    ],
)
def test_what_cannot_be_is_refused(spillway, tiny_model, tmp_path, options):
    requests = tmp_path / "in.jsonl"
    requests.write_text(json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}) + "\n")
    for command in (("serve", tiny_model, "--port", "0"), ("batch", tiny_model, requests, "-o", tmp_path / "out.jsonl")):
        done = spillway.run(*command, *options, env=environment(tmp_path))
        assert done.code == WRONG_USAGE and options[0].strip("-").split("-")[0] in done.err, done.err


def test_a_batch_job_has_the_same_results_whoever_predicts(spillway, tiny_model, tmp_path):
    requests = tmp_path / "in.jsonl"
    body = {"max_tokens": 60, "temperature": 1}
    requests.write_text(
        "".join(
            json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body | {"prompt": f"Once {i}"}}) + "\n" for i in range(40)
        )
    )
    outputs = []
    for i, options in enumerate(
        [("--length-predictor", "off"), (), ("--kv-admission", "room"), ("--length-predictor", "mean", "--queue-order", "shortest")]
    ):
        output = tmp_path / f"out{i}.jsonl"
        done = spillway.run("batch", tiny_model, requests, "-o", output, "--ctx", "256", "--json", *options, env=environment(tmp_path))
        assert done.code == 0, done.err
        assert done.json()["recomputed_tokens"] == 0
        outputs.append(output.read_bytes())
    assert len(set(outputs)) == 1
