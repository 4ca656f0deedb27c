# SPDX-License-Identifier: Apache-2.0
"""What spillway serve answers, held against the OpenAI API's own specification."""

import json

import pytest

from serve_checks import CHAT, COMPLETIONS, NAME, server_fixture
from test_batch_schema import CHATS, TEXTS
from test_serve_api import CASES, body_with

pytestmark = pytest.mark.xdist_group("serve_schema")
server = server_fixture("--ctx", "512")

WHOLE = {CHAT: "CreateChatCompletionResponse", COMPLETIONS: "CreateCompletionResponse"}
PIECE = {CHAT: "CreateChatCompletionStreamResponse", COMPLETIONS: "CreateCompletionResponse"}
# What spillway serve answers beyond spillway batch.
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
    """Of texts OpenAI answers more than its specification says: null for what the first token of an echo cannot have, and null for
    what pieces before the last do not know yet."""
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
    status, raw = server.raw(b"BREW / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert status >= 400
    assert_valid(validator, "ErrorResponse", json.loads(raw.partition(b"\r\n\r\n")[2]))
