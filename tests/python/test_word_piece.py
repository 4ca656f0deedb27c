# SPDX-License-Identifier: Apache-2.0
"""The words and pieces of BERT's tokenizers, against Hugging Face's, on every character, on random Unicode and on real text."""

import os
import pathlib
import random
import subprocess
import sys

import conftest
import pytest

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import normalizers, pre_tokenizers  # noqa: E402

PER_TEXT = 24  # characters that share a text, a wall of white space between them


@pytest.fixture(scope="session")
def bert_words():
    program = pathlib.Path(os.environ.get("SPILLWAY_BIN") or conftest.ROOT / "build" / "release" / "bin" / "spillway")
    path = program.parent / "bert_words"
    if not os.access(path, os.X_OK):
        pytest.skip(f"{path} is not built")

    def run(rules, texts):
        sent = b"".join(text.encode() + b"\0" for text in texts)
        done = subprocess.run([path, rules], input=sent, capture_output=True, check=True)
        return [line.split(" ") if line else [] for line in done.stdout.decode().split("\n")[:-1]]

    return run


class Reference:
    def __init__(self, rules):
        self.normalizer = normalizers.BertNormalizer(
            clean_text="c" in rules, handle_chinese_chars="i" in rules, strip_accents="a" in rules, lowercase="l" in rules
        )
        self.words = pre_tokenizers.BertPreTokenizer()

    def __call__(self, text):
        return [word for word, _ in self.words.pre_tokenize_str(self.normalizer.normalize_str(text))]


def compare(bert_words, rules, texts):
    reference = Reference(rules)
    for text, words in zip(texts, bert_words(rules, texts), strict=True):
        assert words == reference(text), ascii(text)


def every_character():
    """Every character except NUL, which ends a text of the test, and surrogates."""
    codes = [code for code in range(1, sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    # Only some characters of the planes beyond those in use.
    codes = [code for code in codes if code < 0x20000 or code % 61 == 0 or code % 0x10000 >= 0xFFF0]
    for begin in range(0, len(codes), PER_TEXT):
        yield " ".join(f"A{chr(code)}b {chr(code)}\u0301\u0316" for code in codes[begin : begin + PER_TEXT])


@pytest.mark.parametrize("rules", ["cial", "ci", ""])
def test_every_character_is_treated_as_by_the_reference(bert_words, rules):
    compare(bert_words, rules, list(every_character()))


@pytest.mark.parametrize("rules", ["cial", "cil", "cia", "al", "l", ""])
def test_random_texts_have_the_words_of_the_reference(bert_words, rules):
    generator = random.Random(5)
    blocks = [(0x20, 0x7F), (0x80, 0x250), (0x300, 0x370), (0x370, 0x600), (0x900, 0xE00), (0x1100, 0x1200), (0x1E00, 0x2070),
              (0x3000, 0x3100), (0x4E00, 0x4E80), (0xAC00, 0xAD00), (0xF900, 0xFB00), (0x1D160, 0x1D180), (0x1F600, 0x1F650)]  # fmt: skip
    texts = []
    for _ in range(3000):
        some = generator.sample(blocks, 4)
        texts.append("".join(chr(generator.randrange(*generator.choice(some))) for _ in range(generator.randrange(40))))
    compare(bert_words, rules, texts)


def test_real_text_has_the_words_of_the_reference(bert_words):
    path = conftest.SHARED_DATA / "text" / "wiki.test.raw"
    if not path.is_file():
        pytest.skip("../shared/data/text is not here")
    compare(bert_words, "cial", path.read_text().splitlines())
