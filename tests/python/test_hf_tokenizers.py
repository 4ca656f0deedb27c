# SPDX-License-Identifier: Apache-2.0
"""`spillway tokenize` gives the same ids as Hugging Face's tokenizers, on real text and on random Unicode."""

import functools
import json
import lzma
import os
import pathlib
import random
import subprocess
import unicodedata

import pytest

tokenizers = pytest.importorskip("tokenizers")

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
MODELS = ["gpt2", "llama2", "llama3", "qwen2_5", "opt"]
OPT_BOS = 2

if not (DATA / "tokenizers").is_dir():
    pytest.skip("../shared/data/tokenizers is not here", allow_module_level=True)


@pytest.fixture(scope="session")
def program():
    path = pathlib.Path(os.environ.get("SPILLWAY_BIN") or ROOT / "build" / "release" / "bin" / "spillway")
    if not os.access(path, os.X_OK):
        pytest.skip(f"{path} is not built")
    return path


class Pair:
    """One tokenizer, as Spillway and as Hugging Face read it."""

    def __init__(self, name, folder, program):
        self.name, self.folder, self.program = name, folder, program
        for source in (DATA / "tokenizers" / name).iterdir():
            data = source.read_bytes()
            if source.suffix == ".xz":
                (folder / source.stem).write_bytes(lzma.decompress(data))
            else:
                (folder / source.name).write_bytes(data)
        if name == "opt":
            model = tokenizers.models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
            self.reference = tokenizers.Tokenizer(model)
            self.reference.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
            self.reference.add_special_tokens(["</s>", "<pad>"])
        else:
            self.reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    def expected(self, text):
        ids = self.reference.encode(text).ids
        return [OPT_BOS] + ids if self.name == "opt" else ids

    def actual(self, text):
        path = self.folder / "text"
        path.write_bytes(text.encode())
        command = [self.program, "tokenize", self.folder, "-f", path, "--parse-special", "--json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["ids"]

    def check(self, text):
        expected, actual = self.expected(text), self.actual(text)
        if expected == actual:
            return
        at = next((i for i, (e, a) in enumerate(zip(expected, actual)) if e != a), min(len(expected), len(actual)))
        near = self.reference.decode(expected[max(0, at - 3):at + 3])
        pytest.fail(f"differs at token {at} near {near!r}: {expected[at:at + 5]} != {actual[at:at + 5]}")


# The tests of a tokenizer run one after the other, since reading it takes as long as some of them.
@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in MODELS])
def pair(request, program, tmp_path_factory):
    return Pair(request.param, tmp_path_factory.mktemp(request.param), program)


def text_files():
    return sorted(path for path in (DATA / "text").iterdir() if ".json" in path.name or ".raw" in path.name)


def read(path):
    data = path.read_bytes()
    return (lzma.decompress(data) if path.suffix == ".xz" else data).decode()


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


@pytest.mark.parametrize("path", text_files(), ids=lambda path: path.name)
def test_whole_files(pair, path):
    pair.check(read(path))


@pytest.mark.parametrize("path", text_files(), ids=lambda path: path.name)
def test_pieces(pair, path):
    text = read(path)
    pieces = list(strings(json.loads(text))) if ".json" in path.name else text.split("\n")
    pieces = [piece for piece in pieces if piece]
    for piece in random.Random(1).sample(pieces, 5):
        pair.check(piece)
    # All pieces joined; for JSON this is its text without escapes.
    pair.check("\n".join(pieces))


@functools.cache
def assigned_characters():
    return [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Co", "Cs")]


@functools.cache
def character_pools():
    assigned = assigned_characters()
    marks = [c for c in assigned if unicodedata.combining(c)]
    composed = [c for c in assigned if unicodedata.decomposition(c)]
    spaces = [c for c in assigned if c.isspace()] + ["\u180e", "\u200b", "\ufeff"]
    words = ["'s", "'S", "'\u017f", "'Re", "'LL", "<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|eot_id|>",
             "<tool_call>", "<pad>", "\r\n", "\n", "  ", "\t", " ", "1234", "\u0663\u0664", "\u00bd", "Hello", "\u2581",
             "<0x0A>", "\u0120", "\u212a", "!!!", "---"]
    ascii_characters = [chr(c) for c in range(32, 127)]
    return [words, ascii_characters, assigned, marks, composed, spaces]


def random_text(rng, count):
    """Random Unicode, rich in characters that tokenizers treat specially."""
    pools = character_pools()
    return "".join(rng.choice(rng.choices(pools, weights=[6, 6, 3, 2, 2, 2])[0]) for _ in range(count))


@functools.cache
def long_random_text(seed):
    return random_text(random.Random(seed), 100_000)


@pytest.mark.parametrize("seed", range(3))
def test_random_unicode(pair, seed):
    pair.check(long_random_text(seed))


def test_short_random_texts(pair):
    rng = random.Random(99)
    for _ in range(5):
        pair.check(random_text(rng, rng.randrange(1, 20)))


def test_every_assigned_character(pair):
    pair.check("".join(f"a{c}b {c}{c}1 '{c}\n{c}" for c in assigned_characters()))
