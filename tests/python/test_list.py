# SPDX-License-Identifier: Apache-2.0
"""`spillway list` shows what the cache has, and its names can be used."""

import os
import shutil

import pytest
import tiny_llama


@pytest.fixture
def cache(tmp_path):
    folder = tmp_path / "cache" / "spillway" / "models"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def listed(spillway, cache):
    """Runs a command with that cache."""
    env = os.environ | {"XDG_CACHE_HOME": str(cache.parents[1])}
    return lambda *arguments: spillway.run(*arguments, env=env)


def test_an_empty_cache_says_how_to_get_a_model(listed, cache):
    done = listed("list")
    assert done.code == 0
    assert "fetch_model.sh smollm2" in done.out and str(cache) in done.out
    cache.rmdir()
    assert "fetch_model.sh smollm2" in listed("list").out
    assert listed("list", "--json").json() == {"folder": str(cache), "models": []}


def test_models_are_listed_with_size_type_and_origin(listed, cache, tiny_model, tiny_folder):
    shutil.copy(tiny_model, cache / "b.gguf")
    (cache / "b.gguf.origin").write_text("somewhere, version 2\nmore\n")
    shutil.copytree(tiny_folder, cache / "a")
    (cache / "broken.gguf").write_bytes(b"not a model")
    (cache / ".fetch-1").mkdir()
    (cache / "notes.txt").write_text("x")
    models = listed("list", "--json").json()["models"]
    assert [model["name"] for model in models] == ["a", "b.gguf", "broken.gguf"]
    folder, file, broken = models
    assert file["bytes"] == tiny_model.stat().st_size and file["type"] == "F32" and file["format"] == "GGUF"
    assert file["origin"] == "somewhere, version 2" and file["path"] == str(cache / "b.gguf")
    assert folder["bytes"] == sum(path.stat().st_size for path in tiny_folder.iterdir())
    assert folder["format"] == "Hugging Face" and folder["origin"] is None
    assert folder["parameters"] == file["parameters"] > 0
    assert "GGUF" in broken["problem"]
    text = listed("list").out
    assert "somewhere, version 2" in text and "unknown" in text and "cannot be used" in text
    assert "notes.txt" not in text and ".fetch" not in text


def test_a_split_model_is_one(listed, cache):
    first = tiny_llama.write_gguf(cache / "tiny", shards=3)
    models = listed("list", "--json").json()["models"]
    assert [model["path"] for model in models] == [str(first)]
    assert models[0]["bytes"] == sum(path.stat().st_size for path in cache.glob("*.gguf"))


def test_every_command_takes_the_names(listed, cache, tiny_model):
    shutil.copy(tiny_model, cache / "mine.gguf")
    for name in ("mine", "mine.gguf"):
        assert listed("tokenize", name, "-p", "a", "--json").code == 0
    done = listed("tokenize", "nothing", "-p", "a")
    done.assert_one_line_error(2)
    assert "spillway list" in done.err


def test_a_fetched_model_has_its_short_name(listed, cache, tiny_model):
    file = "SmolLM2-135M-Instruct.Q4_1.gguf"
    shutil.copy(tiny_model, cache / file)
    assert [model["name"] for model in listed("list", "--json").json()["models"]] == ["smollm2"]
    assert listed("tokenize", "smollm2", "-p", "a").code == 0
