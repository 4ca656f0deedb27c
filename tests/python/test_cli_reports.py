# SPDX-License-Identifier: Apache-2.0
"""Reports about models and texts: inspect, tokenize, eval, bench, and --compress-weights."""

import json
import math
import time

import pytest
import tiny_llama

from cli_checks import TEXT, WRONG_USAGE, assert_bad_value, has_terminal_codes, logprob, read_logits
from conftest import SHARED_DATA

# inspect


def assert_inspects(spillway, model):
    done = spillway.run("inspect", model)
    assert done.code == 0, done.err
    assert "llama" in done.out.lower()
    assert not has_terminal_codes(done.out)
    description = spillway.run("inspect", model, "--json").json()
    assert isinstance(description, dict)
    assert "llama" in json.dumps(description).lower()


@pytest.mark.parametrize("layout", ["tiny_model", "tiny_folder"])
def test_inspect_tells_what_is_in_a_model(spillway, request, layout):
    model = request.getfixturevalue(layout)
    assert_inspects(spillway, model)
    name = "token_embd.weight" if layout == "tiny_model" else "model.embed_tokens.weight"
    assert name in spillway.run("inspect", model, "--tensors").out


@pytest.mark.parametrize("model", ["stories260K-f32.gguf", "stories260K-hf", "stories15M-Q8_0.gguf"])
def test_inspect_tells_what_is_in_a_real_model(spillway, stories, model):
    assert_inspects(spillway, stories / model)


def test_inspect_tells_of_windows(spillway):
    assert "32 of 32 layers see a window of 4096 tokens" in spillway.run("inspect", "dummy:mistral-7b-v0.1").out
    model = spillway.run("inspect", "dummy:mistral-7b-v0.1", "--json").json()["model"]
    assert [(group["kind"], group["layers"], group["window"]) for group in model["state_groups"]] == [("window", 32, 4096)]
    # The KV cache has the window, 16 tokens that may be cut off, a step of 512 tokens, and a block.
    assert model["kv_bytes_full_context"] == model["kv_bytes_per_token"] * (4096 + 16 + 512 + 16)
    assert "see a" not in spillway.run("inspect", "dummy:llama-2-7b").out


@pytest.mark.parametrize("options", [[], ["--metadata"], ["--tensors"]], ids=" ".join)
def test_inspect_prints_no_control_characters_of_the_file(spillway, tiny_model, tmp_path, options):
    strange = tiny_llama.write_gguf(tmp_path / "tiny.gguf", name="evil\x1b[31m\nsecond line\r\x07")
    done = spillway.run("inspect", strange, *options)
    assert done.code == 0, done.err
    assert not any(byte < 0x20 and byte != 0x0A or byte == 0x7F for byte in done.raw_out), done.raw_out
    assert len(done.out.splitlines()) == len(spillway.run("inspect", tiny_model, *options).out.splitlines())


def test_inspect_describes_a_model_that_is_not_there(spillway):
    started = time.monotonic()
    description = spillway.run("inspect", "dummy:opt-30b", "--json").json()
    assert "opt" in json.dumps(description).lower()
    assert time.monotonic() - started < 5, "describing a dummy must not make its weights"


def test_inspect_lists_devices(spillway):
    assert "cpu" in spillway.run("inspect", "--devices").out.lower()
    assert "cpu" in json.dumps(spillway.run("inspect", "--devices", "--json").json()).lower()


def test_inspect_of_nothing_is_wrong_usage(spillway):
    assert_bad_value(spillway.run("inspect"))


# tokenize


def test_tokenize_prints_the_ids_that_run_uses(spillway, tiny_model):
    ids = spillway.run("tokenize", tiny_model, "-p", TEXT, "--json").json()["ids"]
    assert ids == spillway.run("run", tiny_model, "-p", TEXT, "-n", "1", "--json").json()["prompt_ids"]
    plain = spillway.run("tokenize", tiny_model, "-p", TEXT)
    assert plain.code == 0
    assert [int(word) for word in plain.out.replace(",", " ").split()] == ids


def test_tokenize_merges_by_rank(spillway, tiny_model, tiny_folder):
    expected = [tiny_llama.TOKENS.index(text) for text in ("T", "he", "Ġ", "riv", "er", "Ġ", "Ã©", "Ġ", "!")]
    for model in (tiny_model, tiny_folder):
        answer = spillway.run("tokenize", model, "-p", "The river é !", "--no-special", "--json").json()
        assert answer == {"ids": expected, "count": len(expected)}


def test_tokenize_finds_control_tokens_only_when_asked(spillway, tiny_model):
    text = "a<|im_end|>"
    parsed = spillway.run("tokenize", tiny_model, "-p", text, "--parse-special", "--json").json()["ids"]
    assert parsed == [tiny_llama.BOS, ord("a"), tiny_llama.EOS]
    assert tiny_llama.EOS not in spillway.run("tokenize", tiny_model, "-p", text, "--json").json()["ids"]


def test_tokenize_without_special_tokens_leaves_the_beginning_of_sequence_out(spillway, tiny_model):
    ids = spillway.run("tokenize", tiny_model, "-p", "The dog", "--json").json()["ids"]
    bare = spillway.run("tokenize", tiny_model, "-p", "The dog", "--no-special", "--json").json()["ids"]
    assert ids[0] == tiny_llama.BOS and bare == ids[1:]


def test_tokenize_reads_a_file(spillway, tiny_model, tmp_path):
    text = "One day,\nTim found a key.\n"
    (tmp_path / "text").write_text(text)
    from_file = spillway.run("tokenize", tiny_model, "-f", tmp_path / "text", "--json").json()["ids"]
    assert from_file == spillway.run("tokenize", tiny_model, "-p", text, "--json").json()["ids"]
    spillway.run("tokenize", tiny_model, "-f", tmp_path / "gone").assert_one_line_error(WRONG_USAGE)
    spillway.run("tokenize", tiny_model, "-f", tmp_path).assert_one_line_error(WRONG_USAGE)


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "phi-3"])
def test_tokenize_takes_a_model_that_is_only_a_vocabulary(spillway, name, tmp_path):
    model = SHARED_DATA / "tokenizer-vectors" / f"ggml-vocab-{name}.gguf"
    if not model.is_file():
        pytest.skip("../shared/data/tokenizer-vectors is not here")
    texts = model.with_suffix(".gguf.inp").read_bytes().split(b"\n__ggml_vocab_test__\n")
    expected = model.with_suffix(".gguf.out").read_text().splitlines()
    # A few through the program; the tokenizers' own tests take all of them.
    for index in (1, 10, 25, 40):
        (tmp_path / "text").write_bytes(texts[index])
        answer = spillway.run("tokenize", model, "-f", tmp_path / "text", "--no-special", "--json").json()
        assert answer["ids"] == [int(word) for word in expected[index].split()]


# eval


def test_eval_scores_the_second_half_of_each_window(spillway, tiny_model, tmp_path):
    context, (text, logits) = 32, (tmp_path / "text", tmp_path / "logits")
    text.write_text(TEXT * 3)
    result = spillway.run("eval", tiny_model, "--text", text, "--ctx", context, "--json").json()
    ids = spillway.run("tokenize", tiny_model, "-f", text, "--json").json()["ids"]
    windows = len(ids) // context
    losses = []
    for start in range(0, windows * context, context):
        window = [tiny_llama.BOS] + ids[start + 1 : start + context]
        rows = read_logits(spillway, tiny_model, window, logits)
        losses += [-logprob(rows[at], window[at + 1]) for at in range(context // 2, context - 1)]
    assert windows >= 3 and (result["windows"], result["tokens"]) == (windows, len(losses))
    assert result["perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-3)
    first = spillway.run("eval", tiny_model, "--text", text, "--ctx", context, "--max-windows", "1", "--json").json()
    assert first["windows"] == 1


def test_eval_reads_standard_input(spillway, tiny_model, tmp_path):
    (tmp_path / "text").write_text(TEXT * 3)
    arguments = ["eval", tiny_model, "--ctx", "32", "--json", "--text"]
    piped = spillway.run(*arguments, "-", stdin=TEXT * 3).json()
    assert piped["perplexity"] == spillway.run(*arguments, tmp_path / "text").json()["perplexity"]


def test_eval_prefers_the_model_s_own_text_to_noise(spillway, tiny_model, tmp_path):
    own = spillway.run("run", tiny_model, "-p", "", "-n", "400", "--ignore-end", "--json").json()["text"]
    (tmp_path / "own").write_text(own)
    (tmp_path / "noise").write_text(own[::-1])
    results = [
        spillway.run("eval", tiny_model, "--text", tmp_path / name, "--ctx", "64", "--json").json()["perplexity"]
        for name in ("own", "noise")
    ]
    assert 1 < results[0] < results[1]


def test_eval_prefers_a_story_to_noise(spillway, stories, tmp_path):
    story = " ".join(e["text"] for e in json.loads((stories / "reference_greedy.json").read_text())["stories260K"])
    (tmp_path / "story").write_text(story)
    (tmp_path / "noise").write_text(story[::-1])
    results = [
        spillway.run("eval", stories / "stories260K-f32.gguf", "--text", tmp_path / name, "--ctx", "128", "--json").json()
        for name in ("story", "noise")
    ]
    assert results[0]["perplexity"] * 5 < results[1]["perplexity"]
    assert 1 < results[0]["perplexity"] < 4, "this text is the model's own greedy output"


def test_eval_refuses_what_it_cannot_score(spillway, tiny_model, tmp_path):
    spillway.run("eval", tiny_model).assert_one_line_error(WRONG_USAGE)
    spillway.run("eval", tiny_model, "--text", tmp_path / "gone").assert_one_line_error(WRONG_USAGE)
    (tmp_path / "short").write_text("Once")
    assert_bad_value(spillway.run("eval", tiny_model, "--text", tmp_path / "short", "--ctx", "128"))
    (tmp_path / "bytes").write_bytes(b"\xff" * 1000)
    assert_bad_value(spillway.run("eval", tiny_model, "--text", tmp_path / "bytes", "--ctx", "128"))


def test_eval_guesses_last_words(spillway, tiny_model, tmp_path):
    passages = tmp_path / "passages.jsonl"
    passages.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("The cat sat", "A river in the north")))
    result = spillway.run("eval", tiny_model, "--last-word", passages, "--json").json()
    assert result["passages"] == 2 and 0 <= result["last_word_accuracy"] <= 1 and result["last_word_perplexity"] > 1
    for bad in ("no JSON\n", "{}\n", '{"text": "word"}\n', ""):
        passages.write_text(bad)
        assert_bad_value(spillway.run("eval", tiny_model, "--last-word", passages))
    passages.write_text('{"text": "A river"}\n\nno JSON\n')
    assert "passages.jsonl:3: " in spillway.run("eval", tiny_model, "--last-word", passages).err


def test_eval_knows_the_last_words_of_its_own_text(spillway, stories, tmp_path):
    """A model predicts the last words of a text that it generated greedily, but not those of the same words in another order."""
    texts = [e["text"] for e in json.loads((stories / "reference_greedy.json").read_text())["stories260K"]]
    own, mixed = [], []
    for text in texts:
        words = text.split(" ")
        for end in range(20, len(words), 7):
            own.append(" ".join(words[:end]))
            mixed.append(" ".join(words[: end - 1] + words[3:4]))
    model = stories / "stories260K-f32.gguf"
    accuracy = {}
    for name, passages in (("own", own), ("mixed", mixed)):
        (tmp_path / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in passages))
        result = spillway.run("eval", model, "--last-word", tmp_path / name, "--json").json()
        assert result["passages"] == len(passages)
        accuracy[name] = result["last_word_accuracy"]
    assert accuracy["own"] > 0.9 and accuracy["mixed"] < 0.5
    # With a text as well, both are reported.
    (tmp_path / "text").write_text(" ".join(texts))
    both = spillway.run("eval", model, "--last-word", tmp_path / "own", "--text", tmp_path / "text", "--ctx", "64", "--json").json()
    assert both["last_word_accuracy"] == accuracy["own"] and both["perplexity"] > 1


def test_eval_with_sparse_attention_reads_fewer_values(spillway, stories, tmp_path):
    texts = [e["text"] for e in json.loads((stories / "reference_greedy.json").read_text())["stories260K"]]
    (tmp_path / "text").write_text(" ".join(texts))
    arguments = ["eval", stories / "stories260K-f32.gguf", "--text", tmp_path / "text", "--ctx", "128", "--json"]
    dense = spillway.run(*arguments).json()
    everything = spillway.run(*arguments, "--attention-topk", "1").json()
    assert everything["perplexity"] == pytest.approx(dense["perplexity"], rel=1e-4)
    # The query heads of a group select positions independently, so with a top-k of 1 each of them reads all of V.
    group = everything["attention_v_bytes"] / everything["attention_v_bytes_dense"]
    assert group == int(group) and group >= 1
    sparse = spillway.run(*arguments, "--attention-topk", "0.25").json()
    assert sparse["attention_topk"] == 0.25 and sparse["attention_v_bytes_dense"] == everything["attention_v_bytes_dense"]
    assert 0.25 <= sparse["attention_v_bytes"] / everything["attention_v_bytes"] < 0.26
    assert sparse["perplexity"] != dense["perplexity"]
    assert sparse["perplexity"] < 1.5 * dense["perplexity"]
    for bad in ("1.5", "-0.1", "nan", "some"):
        assert spillway.run(*arguments, "--attention-topk", bad).code == WRONG_USAGE


# bench


def test_bench_reports_the_agreed_fields(spillway, tiny_model):
    result = spillway.run("bench", tiny_model, "--prompt-len", "32", "--gen-len", "8", "--batch", "2", "--json").json()
    for field in ("prefill_tokens_per_s", "decode_tokens_per_s", "generated_tokens_per_s", "total_tokens_per_s", "prefill_s", "decode_s"):
        assert result[field] > 0, field
    assert result["batch"] == 2
    generated = result["generated_tokens_per_s"] * (result["prefill_s"] + result["decode_s"])
    assert generated == pytest.approx(2 * 8, rel=0.02)
    total = result["total_tokens_per_s"] * (result["prefill_s"] + result["decode_s"])
    assert total == pytest.approx(2 * (32 + 8), rel=0.02)


def test_bench_reports_what_sparse_attention_reads(spillway, tiny_model):
    arguments = ["bench", tiny_model, "--prompt-len", "32", "--gen-len", "8", "--batch", "2", "--json"]
    dense = spillway.run(*arguments).json()
    assert dense["attention_topk"] == 0 and dense["attention_v_bytes"] == dense["attention_v_bytes_dense"] > 0
    sparse = spillway.run(*arguments, "--attention-topk", "0.1", "--repeat", "2").json()
    assert sparse["attention_v_bytes_dense"] == dense["attention_v_bytes_dense"]
    # Decode has 33 to 39 positions, of which each query head attends to 4.
    group = spillway.run(*arguments, "--attention-topk", "1").json()["attention_v_bytes"] / dense["attention_v_bytes"]
    assert sparse["attention_v_bytes"] == pytest.approx(dense["attention_v_bytes"] * group * 7 * 4 / sum(range(33, 40)))
    people = spillway.run("bench", tiny_model, "--prompt-len", "32", "--gen-len", "8", "--attention-topk", "0.1")
    assert "of values read" in people.out


def test_bench_for_people_has_no_terminal_codes_when_piped(spillway, tiny_model):
    done = spillway.run("bench", tiny_model, "--prompt-len", "16", "--gen-len", "4")
    assert done.code == 0, done.err
    assert done.out.strip()
    assert not has_terminal_codes(done.out) and not has_terminal_codes(done.err)


def test_bench_takes_a_batch_larger_than_a_chunk(spillway, tiny_model):
    work = ["--prompt-len", "4", "--gen-len", "3", "--repeat", "1", "--json"]
    assert spillway.run("bench", tiny_model, "--batch", "600", *work).json()["batch"] == 600
    assert spillway.run("bench", tiny_model, "--batch", "5", "--chunk", "2", *work).json()["batch"] == 5


def test_bench_takes_requests_of_mixed_lengths(spillway, tiny_model, tmp_path):
    lengths = [(20, 5), (7, 9), (30, 3), (4, 14), (3, 3)]
    (tmp_path / "lengths").write_text("".join(f"{prompt} {answer}\n" for prompt, answer in lengths))
    options = ["--lengths", tmp_path / "lengths", "--batch", "3", "--micro-batch", "2", "--repeat", "1", "--json"]
    reports = {s: spillway.run("bench", tiny_model, *options, "--schedule", s).json() for s in ("zigzag", "diagonal", "row")}
    for schedule, result in reports.items():
        assert result["plan"]["schedule"] == schedule
        assert (result["requests"], result["left_out"], result["batch"]) == (5, 0, 3)
        assert result["prompt_tokens"] == 64 and result["generated_tokens"] == 34
        assert result["longest_prompt"] == 30 and result["longest_answer"] == 14
        assert result["preemptions"] == 0
        seconds = result["seconds"]
        assert result["generated_tokens_per_s"] * seconds == pytest.approx(34)
        assert result["total_tokens_per_s"] * seconds == pytest.approx(34 + 64)
        assert 0 < result["first_token_s"]["mean"] <= result["latency_s"]["mean"] < result["latency_s"]["max"] <= seconds
        # Every sequence runs in one step for each token of its answer.
        assert result["mean_sequences"] * result["steps"] == pytest.approx(34)
        assert result["occupancy"] == pytest.approx(result["mean_sequences"] / 3)
        assert result["run"]["seconds"] == seconds
    zigzag, diagonal, row = reports.values()
    # Batch blocks last as long as their longest answer; in the row-by-row schedule they have two sequences.
    assert zigzag["steps"] == 9 + 14 and row["steps"] == 9 + 14 + 3
    assert (zigzag["padded_prompt_tokens"], zigzag["padded_generated_tokens"]) == (3 * 30 + 2 * 4, 3 * 9 + 2 * 14)
    assert (row["padded_prompt_tokens"], row["padded_generated_tokens"]) == (2 * 20 + 2 * 30 + 3, 2 * 9 + 2 * 14 + 3)
    assert zigzag["padded_total_tokens_per_s"] * zigzag["seconds"] == pytest.approx(98 + 55)
    assert zigzag["padding_efficiency"] == pytest.approx(98 / 153)
    # One request is admitted in each step: the fourth in the sixth, when the first has ended.
    assert diagonal["max_admissions"] == 1 and diagonal["steps"] == 5 + 14


def test_bench_takes_the_lengths_of_a_trace(spillway, tiny_model, tmp_path):
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.68,37,4", "2023-11-16 18:15:47.01,99999,10"]
    trace = tmp_path / "trace.csv"
    trace.write_text("\r\n".join([*rows, "2023-11-16 18:15:48.22,9,1", "not looked at"]) + "\r\n")
    done = spillway.run("bench", tiny_model, "--lengths", trace, "--requests", "3", "--batch", "2", "--repeat", "1")
    assert done.code == 0, done.err
    assert "2 requests, 2 at once, continuous" in done.out and "left out  1 " in done.out
    assert not has_terminal_codes(done.out)


def test_bench_lengths_that_make_no_sense(spillway, tiny_model, tmp_path):
    file = tmp_path / "lengths"
    for text, told in (("1 2\n3\n", "line 2"), ("", "no requests"), ("0 4\n", "line 1"), ("99999 1\n", "context")):
        file.write_text(text)
        done = spillway.run("bench", tiny_model, "--lengths", file)
        assert_bad_value(done)
        assert told in done.err
    assert_bad_value(spillway.run("bench", tiny_model, "--lengths", tmp_path / "absent"))
    assert_bad_value(spillway.run("bench", tiny_model, "--lengths", ""))
    file.write_text("4 2\n")
    for options in (["--prompt-len", "4"], ["--gen-len", "4"], ["--steps", "1"], ["--requests", "0"]):
        assert_bad_value(spillway.run("bench", tiny_model, "--lengths", file, *options))
    assert_bad_value(spillway.run("bench", tiny_model, "--requests", "4"))


# --compress-weights


@pytest.mark.parametrize("access", [[], ["--no-mmap"]])
def test_compressed_weights_are_smaller_and_nearly_as_good(spillway, stories, tmp_path, access):
    model = stories / "stories260K-f32.gguf"
    story = " ".join(e["text"] for e in json.loads((stories / "reference_greedy.json").read_text())["stories260K"])
    (tmp_path / "story").write_text(story)

    def perplexity(*options):
        return spillway.run("eval", model, "--text", tmp_path / "story", "--ctx", "128", "--json", *options).json()["perplexity"]

    plain, compressed = perplexity(), perplexity("--compress-weights", *access)
    assert plain != compressed
    assert compressed == pytest.approx(plain, rel=0.35), "a model of 260K parameters has little to spare"

    def bench(*options):
        return spillway.run("bench", model, "--prompt-len", "8", "--gen-len", "4", "--repeat", "1", "--json", *options).json()

    plain, compressed = bench(), bench("--compress-weights", *access)
    # Rows of 172 columns (down) are no whole groups and stay F32.
    assert compressed["tiers"]["host"]["peak_bytes_by_tag"]["weights"] < 0.4 * plain["weight_bytes"]
    text = spillway.run("run", model, "-p", "Once upon a time", "-n", "20", "--compress-weights", *access)
    assert text.code == 0 and text.out.strip()


def test_dummy_weights_may_be_compressed(spillway):
    work = ["--prompt-len", "4", "--gen-len", "2", "--repeat", "1", "--json"]
    compressed = spillway.run("bench", "dummy:smollm2-135m", "--compress-weights", *work).json()
    named = spillway.run("bench", "dummy:smollm2-135m:g4", *work).json()
    for result in (compressed, named):
        assert result["weight_type"] == "G4"
        # 36 bytes for 64 weights, and the norms.
        assert result["tiers"]["host"]["peak_bytes_by_tag"]["weights"] == pytest.approx(134.5e6 * 36 / 64, rel=0.01)
