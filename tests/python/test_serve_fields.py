# SPDX-License-Identifier: Apache-2.0
"""spillway serve takes bodies, names and paths as clients of llama-server, vLLM and LiteLLM send them, unchanged."""

import pytest
import tiny_llama

from cli_checks import read_logits
from serve_checks import CHAT, COMPLETIONS, NAME, Server, server_fixture

pytestmark = pytest.mark.xdist_group("serve_fields")
server = server_fixture("--ctx", "256", "--alias", "gpt-4", "--alias", "org/other name")

RIVER = "The river was wide"
MESSAGES = [{"role": "user", "content": RIVER}]
IGNORED = "x-spillway-ignored"
# Every field of vLLM's protocol and of llama-server's documentation that OpenAI's API lacks, with a typical value, in one body.
VLLM = {
    "use_beam_search": False, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "watermarking": False, "length_penalty": 1.0, "stop_token_ids": [],
    "include_stop_str_in_output": False, "ignore_eos": False, "min_tokens": 0, "skip_special_tokens": True, "spaces_between_special_tokens": True,
    "truncate_prompt_tokens": None, "truncation_side": None, "prompt_logprobs": None, "logprob_token_ids": None, "allowed_token_ids": None,
    "bad_words": [], "echo": False, "add_generation_prompt": True, "continue_final_message": False, "documents": None, "chat_template": None,
    "chat_template_kwargs": None, "media_io_kwargs": None, "mm_processor_kwargs": None, "structured_outputs": None, "guided_json": None,
    "guided_regex": None, "guided_choice": None, "guided_grammar": None, "guided_decoding_backend": None, "guided_whitespace_pattern": None,
    "prompt_embeds": None, "priority": 0, "request_id": "r-1", "session_id": None, "return_tokens_as_token_ids": None, "return_token_ids": None,
    "routed_experts_prompt_start": 0, "return_token_offsets": False, "return_prompt_text": None, "return_mm_kwargs": True, "kv_transfer_params": None,
    "ec_transfer_params": None, "vllm_xargs": None, "repetition_detection": None, "thinking_token_budget": None, "include_reasoning": True,
    "stream_interval": None, "stream_options": {"include_usage": True, "continuous_usage_stats": False},
}  # fmt: skip
LLAMA_SERVER = {
    "temperature": 0, "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "n_predict": 4, "n_indent": 0,
    "n_keep": 0, "n_discard": 0, "n_cmpl": 1, "n_cache_reuse": 0, "stream": False, "stop": [], "typical_p": 1.0, "repeat_penalty": 1.0,
    "repeat_last_n": 64, "presence_penalty": 0.0, "frequency_penalty": 0.0, "dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2,
    "dry_penalty_last_n": 64, "dry_sequence_breakers": ["\n", ":", '"', "*"], "xtc_probability": 0.0, "xtc_threshold": 0.1, "mirostat": 0,
    "mirostat_tau": 5.0, "mirostat_eta": 0.1, "grammar": "", "json_schema": None, "seed": -1, "ignore_eos": False, "logit_bias": [], "n_probs": 0,
    "min_keep": 0, "t_max_predict_ms": 0, "id_slot": -1, "cache_prompt": True, "return_tokens": False,
    "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"], "timings_per_token": False,
    "return_progress": False, "sse_ping_interval": -1, "post_sampling_probs": False, "response_fields": [], "lora": [], "top_n_sigma": -1.0,
    "reasoning_format": "none", "reasoning_control": False, "chat_template_kwargs": {}, "parallel_tool_calls": False, "speculative.n_max": 16,
}  # fmt: skip


def body_of(route, **fields):
    return ({"prompt": RIVER} if route == COMPLETIONS else {"messages": MESSAGES}) | {"max_tokens": 4, "temperature": 0} | fields


def text_of(route, answer):
    (choice,) = answer["choices"]
    return choice["text"] if route == COMPLETIONS else choice["message"]["content"]


def ignored_of(answer):
    assert answer.status == 200, answer.raw
    return answer.headers[IGNORED].split(", ") if IGNORED in answer.headers else []


# Names.


def test_a_request_without_a_model_is_for_the_one_there_is(server):
    for route in (COMPLETIONS, CHAT):
        for names in ({}, {"model": None}, {"model": ""}, {"model": NAME}, {"model": "gpt-4"}, {"model": "org/other name"}):
            assert server.post(route, body_of(route) | names).ok()["model"] == NAME
        server.post(route, body_of(route, model="gpt-5")).error(404, "model_not_found", "model")


def test_aliases_are_listed(server):
    assert [model["id"] for model in server.get("/v1/models").ok()["data"]] == [NAME, "gpt-4", "org/other name"]
    assert server.get("/v1/models/gpt-4").ok()["id"] == "gpt-4"
    assert server.get("/v1/models/org%2Fother%20name").ok()["id"] == "org/other name"
    server.get("/v1/models/gpt-5").error(404, "model_not_found")


# Paths.


def test_paths_without_v1_and_with_a_slash_behind(server):
    models = server.get("/v1/models").ok()
    for path in ("/models", "/models/", "/v1/models/"):
        assert server.get(path).ok() == models
    for path in (f"/models/{NAME}", f"/models/{NAME}/", f"/v1/models/{NAME}/"):
        assert server.get(path).ok() == models["data"][0]
    server.get("/v1/models//").error(404)
    for route in (COMPLETIONS, CHAT):
        expected = text_of(route, server.post(route, body_of(route)).ok())
        for path in (route + "/", route.removeprefix("/v1"), route.removeprefix("/v1") + "/"):
            assert text_of(route, server.post(path, body_of(route)).ok()) == expected
    assert server.get("/health/").ok() == {"status": "ok"}


def test_the_version_is_told(server, spillway):
    version = server.get("/version").ok()["version"]
    assert version and version in spillway.run("--version").out


# Fields without effect.


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
def test_unknown_fields_are_ignored_named_and_logged_once(server, route):
    name = f"unheard_of_by_{route.split('/')[2]}"
    plain = server.post(route, body_of(route))
    assert IGNORED not in plain.headers
    for fields, names in (({name: 1}, [name]), ({name: [], "cache_prompt": True}, [name, "cache_prompt"]), ({name: None}, [])):
        answer = server.post(route, body_of(route, **fields))
        assert ignored_of(answer) == names
        assert text_of(route, answer.ok()) == text_of(route, plain.ok())
        assert ignored_of(server.post(route, body_of(route, stream=True, **fields))) == names
    assert server.log().count(name) == 1, "once, however many requests have it"


def test_names_in_the_header_are_harmless(server):
    names = ["line\r\nSet-Cookie: x", "a,b", "ü", "%", "\x00", "sp ace"]
    answer = server.post(COMPLETIONS, body_of(COMPLETIONS) | {name: 1 for name in names})
    assert len(ignored_of(answer)) == len(names) and "set-cookie" not in answer.headers
    assert answer.headers[IGNORED].isascii() and answer.headers[IGNORED].isprintable()
    many = {f"field{n}": n for n in range(1000)}
    assert len(server.post(COMPLETIONS, body_of(COMPLETIONS) | many).headers[IGNORED]) < 4096


def test_tokenize_ignores_unknown_fields_too(server):
    assert ignored_of(server.post("/tokenize", {"content": "x", "return_token_strs": True})) == ["return_token_strs"]
    assert ignored_of(server.post("/detokenize", {"tokens": [65], "x": 1})) == ["x"]


def test_strict_fields_refuse_unknown_fields(spillway, tiny_model, tmp_path):
    with Server(spillway, tiny_model, tmp_path, "--strict-fields", "--alias", "*") as strict:
        for route in (COMPLETIONS, CHAT):
            strict.post(route, body_of(route, temprature=1)).error(400, "unknown_parameter", "temprature")
            strict.post(route, body_of(route, cache_prompt=True)).error(400, "unknown_parameter", "cache_prompt")
            strict.post(route, body_of(route, stream_options={"x": 1})).error(400, "unknown_parameter", "stream_options.x")
            assert strict.post(route, body_of(route, mirostat=0, temprature=None, model="any name")).ok()["model"] == NAME
        message = MESSAGES[0] | {"provider_specific_fields": {}}
        strict.post(CHAT, {"messages": [message]}).error(400, "unknown_parameter", "messages[0].provider_specific_fields")
        strict.post("/tokenize", {"content": "x", "y": 1}).error(400, "unknown_parameter", "y")
        assert strict.get("/v1/models/anything").ok()["id"] == "anything", "any name is an alias"
        assert [model["id"] for model in strict.get("/v1/models").ok()["data"]] == [NAME]


# Requests of other servers' clients.


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("fields", [VLLM, LLAMA_SERVER], ids=["vLLM", "llama-server"])
def test_every_field_of_a_peer_is_taken(server, route, fields):
    expected = text_of(route, server.post(route, body_of(route)).ok())
    answer = server.post(route, body_of(route) | fields | {"temperature": 0})
    assert text_of(route, answer.ok()) == expected
    for name, value in fields.items():
        server.post(route, body_of(route) | {name: value}).ok()
    assert not set(ignored_of(answer)) & {"use_beam_search", "skip_special_tokens", "mirostat", "repeat_penalty", "n_predict", "min_tokens"}


ODD_MESSAGES = {
    "what LiteLLM got": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "No", "tool_calls": None, "function_call": None,
                                                            "provider_specific_fields": {"refusal": None}}, {"role": "user", "content": "x"}],
    "extras": [{"role": "user", "content": "Hi", "id": "m1", "timestamp": 5}],
    "extras in parts": [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]}],
    "content null": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}, {"role": "user", "content": "x"}],
    "arguments as an object": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]}, {"role": "tool", "tool_call_id": "1", "content": "5"}],
}  # fmt: skip


@pytest.mark.parametrize("name", ODD_MESSAGES)
def test_messages_with_extras_are_taken(server, name):
    messages = ODD_MESSAGES[name]
    plain = [{key: value for key, value in message.items() if key in ("role", "content", "tool_calls", "tool_call_id")} for message in messages]
    for message in plain:
        if isinstance(message["content"], list):
            message["content"] = "Hi"
    expected = server.chat([message | {"content": message["content"] or ""} for message in plain], max_tokens=6)
    answer = server.chat(messages, max_tokens=6)
    assert answer["choices"] == expected["choices"] and answer["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]


def test_limits_in_every_spelling(server):
    for route in (COMPLETIONS, CHAT):
        for fields in ({"max_tokens": 3.0}, {"max_tokens": None, "n_predict": 3}, {"max_tokens": 9, "max_completion_tokens": 3}):
            assert server.post(route, body_of(route, ignore_eos=True, **fields)).ok()["usage"]["completion_tokens"] == 3, fields
        for name in ("max_tokens", "n_predict"):
            usage = server.post(route, body_of(route, ignore_eos=True, **{name: -1})).ok()["usage"]
            assert usage["total_tokens"] == 256, "as many as there is room for"


def test_many_stops(server):
    whole = server.text(prompt=RIVER, max_tokens=40)
    stops = [f"never {n}" for n in range(500)] + [whole[11:14]]
    assert server.text(prompt=RIVER, max_tokens=40, stop=stops) == whole[: whole.index(whole[11:14])]


# Fields that work.


def tokens_of(server, text):
    return server.post("/tokenize", {"content": text, "add_special": False}).ok()["tokens"]


def test_stop_token_ids_end_an_answer(server):
    fields = {"prompt": RIVER, "max_tokens": 30, "logit_bias": {"90": 100}}
    letter = tiny_llama.TOKENS[90]
    assert server.text(**fields) == letter * 30
    answer = server.complete(**fields, stop_token_ids=[5, 90], logprobs=1)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"], answer["usage"]["completion_tokens"]) == ("", "stop", 1)
    assert choice["logprobs"]["tokens"] == []
    events = server.stream(COMPLETIONS, **fields, stop_token_ids=[90], min_tokens=3)
    assert [event["choices"][0]["finish_reason"] for event in events][-1] == "stop"
    assert letter not in "".join(event["choices"][0]["text"] for event in events)[:3]


@pytest.mark.parametrize("least", [0, 1, 5, 12])
def test_min_tokens_hold_off_the_end(server, least):
    bias = {"logit_bias": {str(tiny_llama.EOS): 100}}
    answer = server.complete(prompt=RIVER, max_tokens=12, min_tokens=least, **bias)
    (choice,) = answer["choices"]
    assert answer["usage"]["completion_tokens"] == min(least + 1, 12)
    assert choice["finish_reason"] == ("stop" if least < 12 else "length")
    plain = server.text(prompt=RIVER, max_tokens=12)
    assert choice["text"] == plain[: len(choice["text"])] and len(tokens_of(server, choice["text"])) >= min(least, 1)
    stopped = server.complete(prompt=RIVER, max_tokens=12, min_tokens=least, stop=list("abcdefghijklmnopqrstuvwxyz "))
    assert stopped["usage"]["completion_tokens"] > least or least == 12


@pytest.mark.parametrize("name, window", [("repetition_penalty", None), ("repeat_penalty", 64), ("repeat_penalty", 5)])
def test_repetition_penalties_are_those_of_the_references(server, spillway, tiny_model, tmp_path, name, window):
    """Each token is the one that transformers' rule (below 0 times the penalty, above divided by it) makes the likeliest, of the model's own logits:
    over all tokens before it for repetition_penalty, over the last repeat_last_n for llama-server's repeat_penalty."""
    penalty = 1.8
    fields = {name: penalty} | ({"repeat_last_n": window} if window == 5 else {})
    prompt = tokens_of(server, RIVER * 5)
    answer = server.complete(prompt=prompt, max_tokens=40, ignore_eos=True, logprobs=0, **fields)
    text = answer["choices"][0]["text"]
    assert text != server.text(prompt=prompt, max_tokens=40, ignore_eos=True), "it changes the answer"
    ids = prompt + [spelled(token) for token in answer["choices"][0]["logprobs"]["tokens"]]
    rows = read_logits(spillway, tiny_model, ids, tmp_path / "logits")
    for at in range(len(prompt), len(ids)):
        row = list(rows[at - 1])
        for token in set(ids[max(0, at - window) if window else 0 : at]):
            row[token] = row[token] * penalty if row[token] < 0 else row[token] / penalty
        assert row[ids[at]] >= max(row) - 1e-4, at


def spelled(token):
    """The id of a token of the tiny model by its text."""
    letters = tiny_llama.byte_letters()
    spelling = "".join(letters[byte] for byte in token.encode())
    assert spelling in tiny_llama.TOKENS, token
    return tiny_llama.TOKENS.index(spelling)


def test_usage_comes_with_every_piece_where_it_is_asked_for(server):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = server.stream(COMPLETIONS, prompt=RIVER, max_tokens=5, ignore_eos=True, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[-1] == 5 and counts[0] < 5
    assert len({event["usage"]["prompt_tokens"] for event in events}) == 1
    alone = server.post(COMPLETIONS, body_of(COMPLETIONS, stream_options=options)).ok()
    assert alone["usage"]["completion_tokens"] == 4, "also without a stream"


def test_special_tokens_and_the_beginning_of_an_answer_can_be_left_out(server):
    plain = server.post(COMPLETIONS, body_of(COMPLETIONS)).ok()["usage"]["prompt_tokens"]
    assert server.post(COMPLETIONS, body_of(COMPLETIONS, add_special_tokens=False)).ok()["usage"]["prompt_tokens"] == plain - 1
    chat = server.post(CHAT, body_of(CHAT)).ok()["usage"]["prompt_tokens"]
    assert server.post(CHAT, body_of(CHAT, add_generation_prompt=False)).ok()["usage"]["prompt_tokens"] < chat


UNSUPPORTED = {
    "use_beam_search": True, "mirostat": 2, "grammar": "root ::= a", "json_schema": {}, "guided_json": {"type": "object"}, "bad_words": ["x"],
    "allowed_token_ids": [5], "prompt_logprobs": 1, "skip_special_tokens": False, "include_stop_str_in_output": True, "truncate_prompt_tokens": 5,
    "structured_outputs": {"regex": "a"}, "dry_multiplier": 0.8, "xtc_probability": 0.5, "typical_p": 0.5, "dynatemp_range": 0.5, "n_probs": 5,
    "lora": [{"id": 0, "scale": 1}], "top_n_sigma": 1.0, "return_tokens_as_token_ids": True, "logprob_token_ids": [5],
}  # fmt: skip


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
def test_what_would_change_an_answer_and_cannot_be_is_refused(server, route):
    for name, value in UNSUPPORTED.items():
        error = server.post(route, body_of(route, **{name: value})).error(400, "unsupported_parameter", name)
        assert "not supported" in error["message"]
    server.post(CHAT, body_of(CHAT, echo=True)).error(400, "unsupported_parameter", "echo")
