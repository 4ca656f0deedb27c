# SPDX-License-Identifier: Apache-2.0
"""OpenAI's own Python client, unchanged, against spillway serve."""

import asyncio

import pytest

from serve_checks import NAME, Server, server_fixture

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.xdist_group("serve_client")
server = server_fixture("--ctx", "512")


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def test_models(client):
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_a_model_with_a_slash_in_its_name(spillway, tiny_model, tmp_path):
    name = "org/my model"
    with Server(spillway, tiny_model, tmp_path, "--name", name) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
            assert client.models.retrieve(name).id == name
            assert client.completions.create(model=name, prompt="x", max_tokens=1).model == name


def test_completions(client, server):
    made = client.completions.create(model=NAME, prompt="The river", max_tokens=12, temperature=0, logprobs=2)
    assert made.choices[0].text == server.text(prompt="The river", max_tokens=12)
    assert made.usage.completion_tokens == 12 and len(made.choices[0].logprobs.tokens) == 12
    pieces = list(client.completions.create(model=NAME, prompt="The river", max_tokens=12, temperature=0, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces) == made.choices[0].text
    scored = client.completions.create(model=NAME, prompt=["a", [5, 6]], max_tokens=0, echo=True, logprobs=0)
    assert [choice.logprobs.token_logprobs[0] for choice in scored.choices] == [None, None]


def test_chats(client):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    made = client.chat.completions.create(
        model=NAME, messages=messages, max_completion_tokens=9, temperature=0, n=2, logprobs=True, top_logprobs=3, seed=1
    )
    assert made.choices[0].message.content == made.choices[1].message.content
    assert len(made.choices[0].logprobs.content) == 9 and len(made.choices[0].logprobs.content[0].top_logprobs) == 3
    stream = client.chat.completions.create(
        model=NAME, messages=messages, max_completion_tokens=9, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    *pieces, last = stream
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == made.choices[0].message.content
    assert last.usage.completion_tokens == 9 and last.choices == []
    extra = client.chat.completions.create(
        model=NAME, messages=messages, max_tokens=9, temperature=0, extra_body={"top_k": 5, "ignore_eos": True, "priority": 1}
    )
    assert extra.choices[0].message.content == made.choices[0].message.content


def test_the_clients_own_streaming_helper(client):
    fields = {"model": NAME, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 30, "temperature": 0}
    whole = client.chat.completions.create(**fields).choices[0].message.content
    with client.chat.completions.stream(**fields, stop=whole[10:13]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole[: whole.index(whole[10:13])] and final.choices[0].finish_reason == "stop"


def test_errors_have_their_classes(client):
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "x"}], temperature=-1)
    assert caught.value.param == "temperature" and caught.value.code == "invalid_value"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=NAME, prompt=[200] * 600)
    assert caught.value.code == "context_length_exceeded"


def test_many_at_once(server):
    async def ask_all():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=5, timeout=60) as client:

            async def ask(number):
                prompt = f"The river {number % 4}"
                stream = await client.completions.create(model=NAME, prompt=prompt, max_tokens=20, temperature=0, stream=True)
                return prompt, "".join([piece.choices[0].text async for piece in stream])

            return await asyncio.gather(*(ask(number) for number in range(16)))

    answers = asyncio.run(ask_all())
    assert len(set(answers)) == 4, "equal prompts have equal answers, whoever else is served"
    for prompt, text in set(answers):
        assert text == server.text(prompt=prompt, max_tokens=20)


def test_a_stream_that_is_left_is_given_up(client, server):
    stream = client.completions.create(model=NAME, prompt="The river", max_tokens=400, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    server.wait_until_idle()
