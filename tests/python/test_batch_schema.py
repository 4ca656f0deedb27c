# SPDX-License-Identifier: Apache-2.0
"""Checks spillway batch's answers against the OpenAI API's own specification."""

import json

import tiny_llama

from test_batch import ERRORS, NO_REQUESTS, Job, chat, request

SCHEMAS = {"/v1/chat/completions": "CreateChatCompletionResponse", "/v1/completions": "CreateCompletionResponse"}

CHATS = {
    "plain": {},
    "greedy": {"temperature": 0, "max_tokens": 3},
    "logprobs": {"logprobs": True, "max_tokens": 6},
    "no top": {"logprobs": True, "top_logprobs": 0, "max_tokens": 6},
    "top": {"logprobs": True, "top_logprobs": 20, "max_tokens": 6, "temperature": 0},
    "any byte": {"logprobs": True, "top_logprobs": 20, "max_tokens": 40, "temperature": 100, "seed": 3},
    "stop": {"stop": ["e", "a"], "logprobs": True, "max_completion_tokens": 50},
    "end": {"logprobs": True, "logit_bias": {str(tiny_llama.EOS): 100}},
    "newest seed": {"seed": 2**64 - 1, "max_tokens": 2},
    "oldest seed": {"seed": -(2**63), "max_tokens": 2},
    "without effect": {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "max_tokens": 2},
    "long": {"ignore_eos": True, "logprobs": True},
}
TEXTS = {
    "plain": {},
    "greedy": {"temperature": 0, "max_tokens": 3},
    "logprobs": {"logprobs": 0},
    "top": {"logprobs": 5, "temperature": 0},
    "any byte": {"logprobs": 20, "max_tokens": 40, "temperature": 100, "seed": 3},
    "stop": {"stop": "e", "logprobs": 2, "max_tokens": 50},
    "end": {"logprobs": 2, "logit_bias": {str(tiny_llama.EOS): 100}},
    "ids": {"prompt": [5, 6, 7], "logprobs": 1},
    "list": {"prompt": ["The river"], "max_tokens": 1},
    "lists": {"prompt": ["The river", [5, 6, 7]], "n": 2, "max_tokens": 2},
    "echo": {"echo": True, "max_tokens": 3},
    "nothing": {"echo": True, "max_tokens": 0},
    "penalties": {"presence_penalty": 2, "frequency_penalty": -2, "top_p": 0.5, "top_k": 5, "min_p": 0.1},
}


def requests():
    for name, fields in CHATS.items():
        yield chat(f"chat {name}", "The river was wide", **fields)
    for name, fields in TEXTS.items():
        yield request(f"text {name}", {"prompt": "The river"} | fields)
    system = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Name a river."}]}]
    yield request("parts", {"messages": system, "max_tokens": 4}, "/v1/chat/completions")
    for url in SCHEMAS:
        prompt = {"messages": [{"role": "user", "content": "x"}]} if "chat" in url else {"prompt": "x"}
        for name, seed in (("above", 2**64), ("below", -(2**63) - 1), ("fraction", 1.5), ("text", "5")):
            yield request(f"seed {name} {url}", prompt | {"seed": seed}, url)
    yield request("good 0", {"prompt": "x"})  # a line of NO_REQUESTS has the same custom_id
    for name, (bad, *_) in ERRORS.items():
        yield bad | {"custom_id": f"error {name}"}
    for bad, _ in NO_REQUESTS.values():
        yield bad


def assert_results_valid(validator, lines, results):
    """Checks each result by the schema of its request's url, and errors by ErrorResponse; returns the number of each kind."""
    asked = {line["custom_id"]: line for line in lines if isinstance(line, dict) and isinstance(line.get("custom_id"), str)}
    seen = {}
    for result in results:
        assert list(result) == ["id", "custom_id", "response", "error"]
        assert isinstance(result["id"], str)
        if result["response"] is None:
            assert result["custom_id"] is None and result["error"]["code"] and result["error"]["message"]
            continue
        response = result["response"]
        assert isinstance(response["request_id"], str)
        status = response["status_code"]
        name = SCHEMAS[asked[result["custom_id"]]["url"]] if status == 200 else "ErrorResponse"
        seen[name] = seen.get(name, 0) + 1
        problems = [f"{'/'.join(map(str, e.absolute_path))}: {e.message}" for e in validator(name).iter_errors(response["body"])]
        assert not problems, f"{result['custom_id']}: {problems}\n{json.dumps(response['body'])}"
    return seen


def test_the_specification_is_one_that_refuses(validator):
    """A validator that takes everything would prove nothing."""
    chat_body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    choice = {"index": 0, "message": {"role": "assistant", "content": "x", "refusal": None}, "finish_reason": "stop"}
    schema = validator("CreateChatCompletionResponse")
    assert schema.is_valid(chat_body | {"choices": [choice | {"logprobs": None}]})
    assert not schema.is_valid(chat_body | {"choices": [choice]})
    assert not schema.is_valid(chat_body | {"choices": [choice | {"logprobs": {"content": []}}]})
    assert not validator("CreateCompletionResponse").is_valid(chat_body | {"choices": []})
    assert not validator("ErrorResponse").is_valid({"error": {"message": "x"}})


def test_every_body_is_what_the_specification_says(spillway, tiny_model, tmp_path, validator):
    lines = [*requests()]
    results = Job(spillway, tiny_model, tmp_path, lines).results()
    assert len(results) == len(lines)
    seen = assert_results_valid(validator, lines, results)
    assert seen["CreateChatCompletionResponse"] == len(CHATS) + 1
    assert seen["CreateCompletionResponse"] == len(TEXTS) + 1
    assert seen["ErrorResponse"] == len(ERRORS) + 8
    by_id = {result["custom_id"]: result for result in results}
    for name in ("above", "below", "fraction", "text"):
        for url in SCHEMAS:
            response = by_id[f"seed {name} {url}"]["response"]
            assert (response["status_code"], response["body"]["error"]["param"]) == (400, "seed")
    reasons = {r["response"]["body"]["choices"][0]["finish_reason"] for r in results if r["error"] is None}
    assert reasons == {"stop", "length"}


def test_bodies_of_a_model_without_a_tokenizer_are_valid_too(spillway, tmp_path, validator):
    lines = [request("ids", {"prompt": [5, 6], "max_tokens": 3, "logprobs": 2}), request("text", {"prompt": "x"}), chat("chat", "x")]
    results = Job(spillway, "dummy:opt-125m", tmp_path, lines).results()
    assert assert_results_valid(validator, lines, results) == {"CreateCompletionResponse": 1, "ErrorResponse": 2}


def test_what_a_damaged_model_answers_is_valid_too(spillway, models, tmp_path, validator):
    model = tiny_llama.write_gguf(models / "schema-nan.gguf", damage=float("nan"))
    lines = [request("a", {"prompt": "x", "logprobs": 3}), chat("b", "x", logprobs=True, top_logprobs=3)]
    results = Job(spillway, model, tmp_path, lines).results()
    assert assert_results_valid(validator, lines, results) == {"ErrorResponse": 2}
    assert {result["response"]["status_code"] for result in results} == {500}
