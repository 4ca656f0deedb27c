# SPDX-License-Identifier: Apache-2.0
"""Chat templates: the model's own, and `--template` in place of it."""

import json

import pytest
import tiny_llama

from cli_checks import WRONG_USAGE

GREEDY = ["-n", "8", "--temp", "0", "--repetition-penalty", "1"]


def answer_to(spillway, model, text):
    """The model's answer to this text, in which control tokens are parsed."""
    ids = spillway.run("tokenize", model, "-p", text, "--parse-special", "--no-special", "--json").json()["ids"]
    return spillway.run("run", model, "--ids", ",".join(map(str, ids)), *GREEDY, "--json").json()["text"]


# Shortened templates of Mistral's and Gemma's tokenizers, and the prompts that they make of "Hello there".
TEMPLATES = {
    "mistral": (
        "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
        "{% else %}{{ m['content'] + eos_token }}{% endif %}{% endfor %}",
        "<|endoftext|>[INST] Hello there [/INST]",
    ),
    "gemma": (
        "{% for m in messages %}{{ '<start_of_turn>' + m['role'] + '\n' + m['content'] | trim"
        " + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
        "<start_of_turn>user\nHello there<end_of_turn>\n<start_of_turn>model\n",
    ),
}


def write_model(folder, template):
    tiny_llama.write_folder(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_runs_the_models_own_template(spillway, tmp_path, name):
    template, text = TEMPLATES[name]
    model = write_model(tmp_path / name, template)
    done = spillway.run("chat", model, *GREEDY, stdin="Hello there\n")
    assert done.code == 0, done.err
    assert done.out == answer_to(spillway, model, text) + "\n"


def test_chat_says_what_is_wrong_with_a_models_template(spillway, tmp_path):
    model = write_model(tmp_path / "model", "{% for m in messages %}")
    done = spillway.run("chat", model, stdin="Hello\n")
    done.assert_one_line_error(WRONG_USAGE)
    assert "chat template, line 1" in done.err


def test_chat_takes_a_template_by_name_or_from_a_file(spillway, tiny_model, tmp_path):
    model = write_model(tmp_path / "model", TEMPLATES["gemma"][0])
    expected = spillway.run("chat", tiny_model, *GREEDY, stdin="Hello there\n").out
    (tmp_path / "style.jinja").write_text(tiny_llama.CHAT_TEMPLATE)
    for value in ["chatml", tmp_path / "style.jinja"]:
        done = spillway.run("chat", model, *GREEDY, "--template", value, stdin="Hello there\n")
        assert (done.code, done.out) == (0, expected)
        assert "no token" not in done.err


def test_the_given_template_goes_before_the_models_own(spillway, tiny_model):
    done = spillway.run("chat", tiny_model, *GREEDY, "--template", "llama-2", stdin="Hello there\n")
    assert done.code == 0, done.err
    assert done.out == answer_to(spillway, tiny_model, "<|endoftext|>[INST] Hello there [/INST]") + "\n"


def test_a_template_that_the_vocabulary_cannot_mark_is_said(spillway, tiny_model):
    done = spillway.run("chat", tiny_model, *GREEDY, "--template", "llama-3", stdin="Hello there\n")
    assert done.code == 0 and done.out
    assert "<|start_header_id|>" in done.err and len(done.err.splitlines()) == 1


@pytest.mark.parametrize("value", ["", "chatm", "no/such/file", "broken.jinja", "."])
def test_chat_refuses_what_is_no_template(spillway, tiny_model, tmp_path, value):
    (tmp_path / "broken.jinja").write_text("{{ messages[0 }}")
    done = spillway.run("chat", tiny_model, "--template", value, stdin="Hello\n", cwd=tmp_path)
    done.assert_one_line_error(WRONG_USAGE)
    assert "known are chatml" in done.err or value in (".", "broken.jinja")
