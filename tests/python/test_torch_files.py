# SPDX-License-Identifier: Apache-2.0
"""Weights that torch.save() wrote give the same answers as the same weights in safetensors, and harm nobody."""

import json
import os
import pickle
import shutil
import zipfile

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is not installed")

import reference_models
import torch_files
from cli_checks import WRONG_USAGE

PROMPT = [5, 99, 42, 7, 200]


def assert_same_answers(spillway, tmp_path, folder, expected):
    ids = [id % 150 for id in PROMPT]
    logits = [spillway.logits(one, ids, tmp_path / "logits.f32") for one in (folder, expected)]
    assert numpy.array_equal(*logits)
    assert spillway.greedy(folder, ids, 8) == spillway.greedy(expected, ids, 8)


@pytest.mark.parametrize(
    "options",
    [{}, {"alignment": 1}, {"shards": 3}, {"are_parameters": True, "alignment": 4096}],
    ids=["one file", "not aligned", "shards", "parameters"],
)
def test_answers_are_those_of_safetensors(spillway, tiny_folder, tmp_path, options):
    folder = torch_files.torch_folder(tiny_folder, tmp_path / "model", **options)
    assert not list(folder.glob("*.safetensors"))
    assert_same_answers(spillway, tmp_path, folder, tiny_folder)
    done = spillway.run("run", folder, "-p", "The river", "-n", "5", "--temp", "0")
    assert done.code == 0 and done.out


@pytest.mark.parametrize("name", ["opt f16", "llama bf16", "opt sharded"])
def test_so_are_those_of_other_types(spillway, tmp_path, name):
    source = reference_models.reference(name).write(tmp_path / "source")
    assert_same_answers(spillway, tmp_path, torch_files.torch_folder(source, tmp_path / "model"), source)


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "by name"])
def test_tied_weights_are_one_storage(spillway, tiny_folder, tmp_path, is_tied):
    """A head that shares the embedding's storage is read by its own name, too, if the configuration does not tie it."""
    contents = [one for one in torch_files.read_safetensors(tiny_folder / "model.safetensors") if one[0] != "lm_head.weight"]
    folders = [shutil.copytree(tiny_folder, tmp_path / name) for name in ("safetensors", "torch")]
    for folder in folders:
        (folder / "model.safetensors").unlink()
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": is_tied}))
    embedding = next(one for one in contents if one[0] == "model.embed_tokens.weight")
    torch_files.write_torch_file(folders[1] / "pytorch_model.bin", contents, [("lm_head.weight", embedding[0])])
    if not is_tied:
        contents.append(("lm_head.weight", *embedding[1:]))
    reference_models.write_safetensors(folders[0] / "model.safetensors", contents)
    assert_same_answers(spillway, tmp_path, folders[1], folders[0])


def test_inspect_and_convert_take_them(spillway, tiny_folder, tmp_path):
    folder = torch_files.torch_folder(tiny_folder, tmp_path / tiny_folder.name, shards=2)
    shown, expected = (spillway.run("inspect", one, "--json", "--tensors").json() for one in (folder, tiny_folder))
    assert shown["model"] == expected["model"]
    assert {one["name"]: one["shape"] for one in shown["tensors"]} == {one["name"]: one["shape"] for one in expected["tensors"]}
    files = [tmp_path / "torch.gguf", tmp_path / "safetensors.gguf"]
    for model, file in zip((folder, tiny_folder), files):
        assert spillway.run("convert", model, file, "--type", "q8_0").code == 0
    assert files[0].read_bytes() == files[1].read_bytes()


def test_buffers_of_other_types_do_no_harm(spillway, tiny_folder, tmp_path):
    contents = [*torch_files.read_safetensors(tiny_folder / "model.safetensors"), ("position_ids", "I64", [1, 4], bytes(32))]
    folder = torch_files.torch_folder(tiny_folder, tmp_path / "model")
    torch_files.write_torch_file(folder / "pytorch_model.bin", contents)
    assert_same_answers(spillway, tmp_path, folder, tiny_folder)


def test_safetensors_come_first(spillway, tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(b"never read")
    assert_same_answers(spillway, tmp_path, folder, tiny_folder)


# Files that are refused.


@pytest.fixture
def folder(tiny_folder, tmp_path):
    return torch_files.torch_folder(tiny_folder, tmp_path / "model")


def refused(spillway, folder):
    """The line with which `run` and `inspect` refuse the folder."""
    for command in (["inspect", folder], ["run", folder, "--ids", "1"]):
        done = spillway.run(*command)
        done.assert_one_line_error(WRONG_USAGE)
        assert "pytorch_model" in done.err
    return done.err


class Call:
    """A value whose pickle calls a function when it is loaded."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_no_pickle_is_ever_run(spillway, folder, tmp_path, protocol):
    marker = tmp_path / "was run"
    harmful = pickle.dumps({"model.norm.weight": Call(os.system, f"touch '{marker}'")}, protocol=protocol)
    torch_files.write_archive(folder / "pytorch_model.bin", {"data.pkl": harmful})
    line = refused(spillway, folder)
    assert not marker.exists()
    assert {0: "protocol", 2: "'posix.system'", 4: "pickle protocol 4"}[protocol] in line
    pickle.loads(harmful)
    assert marker.exists(), "the pickle is harmless"


def test_what_is_no_state_dict_is_named(spillway, folder):
    for value, word in (([1], "opcode EMPTY_LIST"), ({"step": 3}, "'step' is a number"), (0.5, "opcode BINFLOAT")):
        torch_files.write_archive(folder / "pytorch_model.bin", {"data.pkl": pickle.dumps(value, protocol=2)})
        line = refused(spillway, folder)
        assert word in line and "convert the folder to safetensors or GGUF" in line


def test_compressed_archives_are_refused(spillway, folder):
    torch_files.write_archive(folder / "pytorch_model.bin", {"data.pkl": bytes(1 << 20)}, compression=zipfile.ZIP_DEFLATED)
    assert "compressed" in refused(spillway, folder)


def test_files_of_old_torch_are_refused_with_advice(spillway, folder):
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2) + pickle.dumps(1001, protocol=2))
    assert "torch.save()" in refused(spillway, folder)


@pytest.mark.parametrize("keep", [0, 0.001, 0.5, 0.999])
def test_truncated_files_are_refused(spillway, folder, keep):
    path = folder / "pytorch_model.bin"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    assert "download it again" in refused(spillway, folder)


def test_a_missing_shard_is_named(spillway, tiny_folder, tmp_path):
    folder = torch_files.torch_folder(tiny_folder, tmp_path / "shards", shards=3)
    (folder / "pytorch_model-00002-of-00003.bin").unlink()
    assert "pytorch_model-00002-of-00003.bin" in refused(spillway, folder)


def test_a_file_of_a_folder_is_no_model(spillway, folder):
    done = spillway.run("inspect", folder / "pytorch_model.bin")
    done.assert_one_line_error(WRONG_USAGE)
    assert "give the folder" in done.err


# With torch itself.


@pytest.mark.xdist_group("torch")
def test_torch_saves_what_we_read(spillway, tiny_folder, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed: its files are written by torch_files.py")
    folder = torch_files.torch_folder(tiny_folder, tmp_path / "model", are_parameters=True)
    path = folder / "pytorch_model.bin"
    state = torch.load(path, weights_only=True)  # what torch_files.py writes is what torch reads
    for name, _, shape, data in torch_files.read_safetensors(tiny_folder / "model.safetensors"):
        assert list(state[name].shape) == shape and state[name].detach().numpy().tobytes() == data
    state["another name"] = state["model.embed_tokens.weight"]
    for saved in (state, {name: value.detach() for name, value in state.items()}):
        torch.save(saved, path)
        assert_same_answers(spillway, tmp_path, folder, tiny_folder)
    torch.save(state, path, _use_new_zipfile_serialization=False)
    assert "torch.save()" in refused(spillway, folder)
