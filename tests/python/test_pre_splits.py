# SPDX-License-Identifier: Apache-2.0
"""Every way to cut text into words, character by character against Hugging Face's tokenizers.

The references are the pre-tokenizers that the tokenizer.json files of these models define. Cuts are compared, in bytes.
"""

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
# The pre-split for GGUF files that name none: it is no model's own, so its formulas are the only reference.
FORMULAS = {
    "default": sequence(
        words(r"[\p{P}\$\+<=>\^~\|`]+"),
        words(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
        words(r"\p{N}+"), words("[0-9][0-9][0-9]"),
    ),
}  # fmt: skip

# Some of every category and script: alone, beside letters, digits, marks and its like, in contractions, and around white
# space. A wall between them that no word reaches over.
CONTEXTS = ["{0}", "a{0}b", "1{0}2", "{0}{0}", " {0}", "{0} ", "'{0}", "{0}'s", "!{0}?", "A{0}a\n", "\n{0}", "{0}\u0301x"]
WALL = "\n\n"
PLAIN_LETTERS = 10  # one in this many of the letters without case, which are most characters
# Every code point of the first two planes, also those that are new to tokenizers and not yet to this Python; of long uniform
# blocks (ideographs, Hangul, Tangut, private use, the planes behind) only some.
SHORT_CONTEXTS = ["a{0}b", "1{0} "]
ALL_CODES = [
    *range(1, 0x3400), *range(0x3400, 0xA000, 53), *range(0xA000, 0xAC00), *range(0xAC00, 0xD800, 53),
    *range(0xE000, 0xF900, 53), *range(0xF900, 0x17000), *range(0x17000, 0x18D00, 53), *range(0x18D00, 0x20000),
    *range(0x20000, 0x34000, 97),
]  # fmt: skip
# The first and last of what patterns and newer versions of Unicode have, and what is beside them.
BORDERS = [
    0x4DBF, 0x4E00, 0x9FA5, 0x9FFF, 0xD7A3, 0x18CFF, 0x2A6DF, 0x2B739, 0x2CEA1, 0x2EBF0, 0x2EE5D, 0x2FA1D, 0x3134A, 0x31350,
    0x323AF, 0xE0100, 0xF0000,
]  # fmt: skip
EDGES = [border + beside for border in BORDERS for beside in (-1, 0, 1)]


def all_texts():
    texts = []
    for number, code in enumerate(ALL_CODES + EDGES):
        category = unicodedata.category(chr(code))
        if category in ("Cn", "Co") or (category == "Lo" and number % PLAIN_LETTERS):
            continue
        texts.append(WALL.join(context.format(chr(code)) for context in CONTEXTS))
    codes = ALL_CODES + EDGES
    for begin in range(0, len(codes), 16):
        some = codes[begin : begin + 16]
        texts.append(WALL.join(context.format(chr(code)) for code in some for context in SHORT_CONTEXTS))
    return texts


def cuts(pieces):
    """The byte offsets at which the pieces of a text begin. The pieces are spelled in ByteLevel's letters, one for each byte."""
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
    return all_texts()


def compare(split_words, name, reference, texts):
    """The differences as text, at most five."""
    found = []
    for text, lengths in zip(texts, split_words(name, texts), strict=True):
        expected = cuts([letters for letters, _ in reference.pre_tokenize_str(text)])
        actual = cuts(["x" * length for length in lengths])
        if expected != actual:
            wrong = min(set(expected) ^ set(actual))
            around = text.encode()[max(0, wrong - 4) : wrong + 4].decode(errors="replace")
            found.append(f"{'a cut is missing' if wrong in expected else 'a cut too many'} in the middle of {around!a}")
        if len(found) == 5:
            break
    return found


@pytest.mark.parametrize("name", REFERENCES)
def test_words_are_those_of_the_reference(split_words, texts, name):
    assert compare(split_words, name, REFERENCES[name], texts) == []


@pytest.mark.parametrize("name", FORMULAS)
def test_words_are_those_of_the_formulas(split_words, texts, name):
    # ByteLevel at the end only spells bytes and does not split further.
    assert compare(split_words, name, sequence(FORMULAS[name], byte_level(False)), texts) == []
