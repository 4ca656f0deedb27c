# SPDX-License-Identifier: Apache-2.0
"""Checks spillway serve's answers against the OpenAI API's own specification."""

import json

import pytest

from serve_checks import CHAT, COMPLETIONS, NAME, server_fixture
from test_batch_schema import CHATS, TEXTS
from test_serve_api import CASES, body_with

pytestmark = pytest.mark.xdist_group("serve_schema")
server = server_fixture("--ctx", "512")

WHOLE = {CHAT: "CreateChatCompletionResponse", COMPLETIONS: "CreateCompletionResponse"}
PIECE = {CHAT: "CreateChatCompletionStreamResponse", COMPLETIONS: "CreateCompletionResponse"}
# Answers of spillway serve that spillway batch does not give.
MORE_CHATS = {
    "three": {"n": 3, "temperature": 1, "max_tokens": 4},
    "three with logprobs": {"n": 3, "logprobs": True, "top_logprobs": 2, "max_tokens": 4},
    "tools": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}], "max_tokens": 4},
    "kwargs": {"chat_template_kwargs": {"a": True}, "max_tokens": 4},
    "priority": {"priority": 7, "user": "me", "max_tokens": 4},
}
MORE_TEXTS = {
    "three": {"n": 3, "best_of": 3, "temperature": 1, "max_tokens": 4},
    "prompts": {"prompt": ["The river", "was wide", "é"], "max_tokens": 3, "n": 2},
    "prompts of ids": {"prompt": [[5, 6, 7], [8]], "max_tokens": 3},
    "echo": {"echo": True, "max_tokens": 3},
    "echo with logprobs": {"echo": True, "logprobs": 2, "max_tokens": 3},
    "nothing": {"max_tokens": 0},
    "score": {"max_tokens": 0, "echo": True, "logprobs": 1},
    "score one": {"prompt": [5], "max_tokens": 0, "echo": True, "logprobs": 1},
}
REQUESTS = {f"chat {name}": (CHAT, fields) for name, fields in {**CHATS, **MORE_CHATS}.items()}
REQUESTS |= {f"text {name}": (COMPLETIONS, fields) for name, fields in {**TEXTS, **MORE_TEXTS}.items()}


def assert_valid(validator, name, body):
    problems = [f"{'/'.join(map(str, e.absolute_path))}: {e.message}" for e in validator(name).iter_errors(body)]
    assert not problems, f"{name}: {problems}\n{json.dumps(body)}"


def as_specified(body):
    """Replaces what OpenAI's text completions send beyond its specification: null for values that the first token of an echo cannot have,
    and null for values that chunks before the last do not know yet."""
    if body["object"] != "text_completion":
        return body
    body = {name: value for name, value in body.items() if (name, value) != ("usage", None)}
    for choice in body["choices"]:
        assert choice["finish_reason"] in (None, "stop", "length")
        choice["finish_reason"] = choice["finish_reason"] or "length"
        if logprobs := choice["logprobs"]:
            logprobs["top_logprobs"] = [{} if top is None else top for top in logprobs["top_logprobs"]]
            logprobs["token_logprobs"] = [0.0 if value is None else value for value in logprobs["token_logprobs"]]
    return body


def body_of(route, fields):
    prompt = {"prompt": "The river"} if route == COMPLETIONS else {"messages": [{"role": "user", "content": "The river was wide"}]}
    return {"model": NAME} | prompt | fields


@pytest.mark.parametrize("name", REQUESTS)
def test_a_whole_answer_is_valid(server, validator, name):
    route, fields = REQUESTS[name]
    answer = server.post(route, body_of(route, fields)).ok()
    assert all(choice["finish_reason"] for choice in answer["choices"]) and answer["usage"]
    assert_valid(validator, WHOLE[route], as_specified(answer))


@pytest.mark.parametrize("usage", [False, True], ids=["plain", "usage"])
@pytest.mark.parametrize("name", REQUESTS)
def test_every_piece_of_a_stream_is_valid(server, validator, name, usage):
    route, fields = REQUESTS[name]
    fields = dict(fields) | ({"stream_options": {"include_usage": True}} if usage else {})
    body = body_of(route, fields)
    del body["model"]
    for event in server.stream(route, **body):
        assert_valid(validator, PIECE[route], as_specified(event))


def test_the_specification_is_one_that_refuses(validator):
    """A validator that takes everything would prove nothing."""
    piece = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choice = {"index": 0, "delta": {"content": "x"}, "finish_reason": None}
    schema = validator("CreateChatCompletionStreamResponse")
    assert schema.is_valid(piece | {"choices": [choice]}) and schema.is_valid(piece | {"choices": [], "usage": None})
    assert not schema.is_valid(piece | {"choices": [choice | {"finish_reason": "over"}]})
    assert not schema.is_valid(piece | {"choices": [choice | {"logprobs": {"content": [5], "refusal": None}}]})
    assert not schema.is_valid(piece)
    assert not validator("Model").is_valid({"id": "x", "object": "model"})


def test_models_are_valid(server, validator):
    assert_valid(validator, "ListModelsResponse", server.get("/v1/models").ok())
    assert_valid(validator, "Model", server.get(f"/v1/models/{NAME}").ok())


def test_errors_are_valid(server, validator):
    answers = [server.post(route, body_with(route, case[0])) for route, _, case in CASES]
    answers += [server.get("/nowhere"), server.get("/v1/models/other"), server.get(COMPLETIONS), server.post(CHAT, b"{")]
    answers += [server.post("/tokenize", {}), server.post("/detokenize", {"tokens": "x"})]
    for answer in answers:
        assert 400 <= answer.status < 500, answer
        assert_valid(validator, "ErrorResponse", answer.json())
    status, raw = server.raw(b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status >= 400
    assert_valid(validator, "ErrorResponse", json.loads(raw.partition(b"\r\n\r\n")[2]))


# The treatment of each field of a request that is in the specification.

USED = "used"  # the field changes the answer, or how it is sent
IGNORED = "ignored"  # the field changes nothing in an answer here, and is no error
# For each field a value with an effect, and the treatment; for refused fields also a value that passes, since it has no effect.
COMMON_FIELDS = {
    "model": (NAME, USED), "frequency_penalty": (0.5, USED), "presence_penalty": (0.5, USED), "logit_bias": ({"5": 1}, USED), "n": (2, USED),
    "max_tokens": (3, USED), "seed": (5, USED), "stop": (["x"], USED), "stream": (False, USED), "temperature": (0.5, USED), "top_p": (0.5, USED),
    "user": ("me", USED), "stream_options": ({"include_usage": True, "include_obfuscation": True}, USED),
}  # fmt: skip
CHAT_FIELDS = COMMON_FIELDS | {
    "messages": ([{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "refusal": "No."}, {"role": "user", "content": "y"}], USED),
    "max_completion_tokens": (3, USED), "logprobs": (True, USED), "top_logprobs": (2, USED), "safety_identifier": ("me", USED),
    "tools": ([{"type": "function", "function": {"name": "f"}}], USED),
    "metadata": ({"a": "b"}, IGNORED), "store": (True, IGNORED), "service_tier": ("flex", IGNORED), "prompt_cache_key": ("k", IGNORED),
    "prompt_cache_retention": ("24h", IGNORED), "prompt_cache_options": ({"ttl": "30m"}, IGNORED), "moderation": ({"model": "m"}, IGNORED),
    "audio": ({"voice": "ash", "format": "wav"}, None), "modalities": (["text", "audio"], ["text"]), "reasoning_effort": ("high", "none"),
    "verbosity": ("low", "medium"), "web_search_options": ({}, None), "response_format": ({"type": "json_object"}, {"type": "text"}),
    "prediction": ({"type": "content", "content": "x"}, None), "tool_choice": ("required", "auto"), "parallel_tool_calls": (None, True),
    "function_call": ({"name": "f"}, "none"), "functions": ([{"name": "f"}], []),
}  # fmt: skip
TEXT_FIELDS = COMMON_FIELDS | {
    "prompt": ("x", USED), "best_of": (1, USED), "echo": (True, USED), "logprobs": (2, USED), "suffix": ("x", ""),
}  # fmt: skip
FIELDS = {CHAT: ("CreateChatCompletionRequest", CHAT_FIELDS), COMPLETIONS: ("CreateCompletionRequest", TEXT_FIELDS)}
NEEDS = {"stream_options": {"stream": True}, "top_logprobs": {"logprobs": True}}


def properties_of(schemas, schema):
    """All properties of an object, including those of the schemas that it is composed of."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rsplit("/", 1)[1]]
    found = set(schema.get("properties", {}))
    for part in schema.get("allOf", []):
        found |= properties_of(schemas, part)
    return found


@pytest.mark.parametrize("route", FIELDS)
def test_every_field_of_the_specification_is_known_here(specification, route):
    """For a new field somebody must decide whether it is used, ignored or refused."""
    schema, fields = FIELDS[route]
    schemas = specification["components"]["schemas"]
    assert properties_of(schemas, schemas[schema]) == set(fields)


CHOSEN = [(route, name) for route, (_, fields) in FIELDS.items() for name in fields]


@pytest.mark.parametrize("route, name", CHOSEN, ids=[f"{route.split('/')[2]} {name}" for route, name in CHOSEN])
def test_what_becomes_of_a_field(server, route, name):
    value, fate = FIELDS[route][1][name]
    body = {"temperature": 0, "max_tokens": 4, "seed": 1} | NEEDS.get(name, {})
    answer = server.post(route, body_of(route, body | {name: value}))
    if fate == USED:
        assert answer.status == 200, answer.raw
    elif fate == IGNORED:
        plain = server.post(route, body_of(route, body)).ok()
        assert answer.ok()["choices"] == plain["choices"]
    else:
        if value is not None:
            error = answer.error(400, "unsupported_parameter", name)
            assert "not supported" in error["message"], "and why"
        server.post(route, body_of(route, body | {name: fate})).ok()
        server.post(route, body_of(route, body | {name: None})).ok()
