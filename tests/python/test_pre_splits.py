# SPDX-License-Identifier: Apache-2.0
"""Every way to cut text into words, character by character against Hugging Face's tokenizers.

The references are the pre-tokenizers that the tokenizer.json files of these models define. Cuts are compared, in bytes.
"""

import bisect
import os
import pathlib
import subprocess
import unicodedata

import pytest

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import Regex, pre_tokenizers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = [rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"]


def words(*alternatives):
    return pre_tokenizers.Split(Regex("|".join(alternatives)), "isolated")


def sequence(*stages):
    return pre_tokenizers.Sequence(list(stages))


def byte_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def digits(individual):
    return pre_tokenizers.Digits(individual_digits=individual)


def llama3(numbers):
    return words(CONTRACTIONS, r"[^\r\n\p{L}\p{N}]?\p{L}+", numbers, r" ?[^\s\p{L}\p{N}]+[\r\n]*", SPACES)


# By the name that GGUF has for each.
REFERENCES = {
    "gpt-2": byte_level(True),
    "llama-bpe": sequence(llama3(r"\p{N}{1,3}"), byte_level(False)),
    "qwen2": sequence(llama3(r"\p{N}"), byte_level(False)),
    "smollm": sequence(digits(True), byte_level(True)),
    "falcon": sequence(
        pre_tokenizers.Punctuation("contiguous"), byte_level(True), digits(False), words("[0-9][0-9][0-9]")
    ),
    "gpt-4o": sequence(
        words(*(cased + CONTRACTIONS + "?" for cased in CASED), r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", SPACES),
        byte_level(False),
    ),
    "tekken": sequence(words(*CASED, r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", SPACES), byte_level(False)),
    "deepseek-coder": sequence(
        words(r"[\r\n]"), words(r"\s?\p{L}+"), words(r"\s?\p{P}+"), words("[一-龥ࠀ-一가-퟿]+"), digits(True), byte_level(False)
    ),
    "deepseek-v3": sequence(
        words(r"\p{N}{1,3}"), words("[一-龥぀-ゟ゠-ヿ]+"),
        words(
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
            r" ?[\p{P}\p{S}]+[\r\n]*", SPACES,
        ),
        byte_level(False),
    ),
}  # fmt: skip
# What GGUF files say that name no way: no model's own, so there is no reference but its formulas.
FORMULAS = {
    "default": sequence(
        words(r"[\p{P}\$\+<=>\^~\|`]+"),
        words(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
        words(r"\p{N}+"), words("[0-9][0-9][0-9]"),
    ),
}  # fmt: skip

# A character alone, beside letters, digits, marks and its like, in contractions, and around white space.
CONTEXTS = ["{0}", "a{0}b", "1{0}2", "{0}{0}", " {0}", "{0} ", "'{0}", "{0}'s", "!{0}?", "A{0}a\n", "\n{0}", "{0}\u0301x"]


def characters():
    """All assigned characters, but of the long uniform blocks (ideographs, Hangul, private use) only some."""
    chosen = []
    for code in range(1, 0x110000):
        category = unicodedata.category(chr(code))
        uniform = category in ("Co", "Cn") or 0x3400 <= code < 0xA000 or 0xAC00 <= code < 0xD7A4 or 0x17000 <= code < 0x18D00
        uniform = uniform or 0x20000 <= code < 0x33480 or 0x13000 <= code < 0x14700
        if category == "Cs" or (uniform and code % 97 and code not in EDGES):
            continue
        # Some blocks are new to tokenizers and not yet to this Python.
        if category == "Cn" and not (0x10000 <= code < 0x20000 or code < 0x3400):
            continue
        chosen.append(chr(code))
    return chosen


# First and last of ranges that patterns name or that were lengthened, and what is beside them.
EDGES = {
    edge + beside
    for edge in (0x4DBF, 0x4E00, 0x9FA5, 0x9FFF, 0xAC00, 0xD7A3, 0x2A6DF, 0x2B739, 0x2EBF0, 0x2EE5D, 0x31350, 0x323AF)
    for beside in (-1, 0, 1)
} | set(range(0x11DE0, 0x11DEA)) | set(range(0x16FF4, 0x16FF7)) | set(range(0x1342F, 0x13460)) | set(range(0x1CC00, 0x1CEB4, 7))  # fmt: skip


def cuts(pieces):
    """Where the pieces of a text begin, in its bytes. They are in ByteLevel's letters, one for each byte."""
    begins, position = [], 0
    for letters in pieces:
        begins.append(position)
        position += len(letters)
    return begins


@pytest.fixture(scope="session")
def split_words():
    program = pathlib.Path(os.environ.get("SPILLWAY_BIN") or ROOT / "build" / "release" / "bin" / "spillway")
    path = program.parent / "split_words"
    if not os.access(path, os.X_OK):
        pytest.skip(f"{path} is not built")

    def run(name, texts):
        sent = b"".join(text.encode() + b"\0" for text in texts)
        done = subprocess.run([path, name], input=sent, capture_output=True, check=True)
        return [[int(length) for length in line.split()] for line in done.stdout.splitlines()]

    return run


@pytest.fixture(scope="session")
def texts():
    """The contexts of one character side by side, with a wall between them that no word reaches over."""
    return ["\n\n".join(context.format(c) for context in CONTEXTS) for c in characters()]


def compare(split_words, name, reference, texts):
    """What differs, at most five of it, in words."""
    found = []
    for text, lengths in zip(texts, split_words(name, texts), strict=True):
        pieces = reference.pre_tokenize_str(text)
        expected, actual = cuts([piece for piece, _ in pieces]), cuts(["x" * length for length in lengths])
        if expected == actual:
            continue
        starts = []  # of the contexts, in bytes
        for context in text.split("\n\n"):
            starts.append(starts[-1] + last if starts else 0)
            last = len(context.encode()) + 2
        wrong = min(set(expected) ^ set(actual))
        character = text[0]
        where = bisect.bisect_right(starts, wrong) - 1
        found.append(
            f"U+{ord(character):04X} {unicodedata.category(character)} in {text.split(chr(10) * 2)[min(where, 11)]!r}:"
            f" {'a cut is missing' if wrong in expected else 'a cut too many'}"
        )
        if len(found) == 5:
            break
    return found


@pytest.mark.parametrize("name", REFERENCES)
def test_words_are_those_of_the_reference(split_words, texts, name):
    assert compare(split_words, name, REFERENCES[name], texts) == []


@pytest.mark.parametrize("name", FORMULAS)
def test_words_are_those_of_the_formulas(split_words, texts, name):
    # ByteLevel at the end only spells: it cuts nothing more.
    assert compare(split_words, name, sequence(FORMULAS[name], byte_level(False)), texts) == []
