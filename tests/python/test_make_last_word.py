# SPDX-License-Identifier: Apache-2.0
"""bench/make_last_word.py: passages from a text."""

import importlib.util
import pathlib

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "make_last_word.py"
spec = importlib.util.spec_from_file_location("make_last_word", SCRIPT)
make_last_word = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_last_word)

WIKI = """ = A ship =

 The ship left the harbour , and the crew of the ship sang . It came back to the harbour .
 The captain 's dog ( a small one ) slept @-@ in . Nobody had seen the captain .

 = = Another = =
 The crew had gone . Then they came back to the harbour .
"""


def test_passages_end_with_a_word_that_stands_earlier():
    found = make_last_word.passages(WIKI, 10, min_words=5, max_words=100)
    assert [text.split(" ")[-1] for text in found] == ["harbour", "captain"]
    assert found[0] == "The ship left the harbour, and the crew of the ship sang. It came back to the harbour"
    assert "The captain's dog (a small one) slept-in." in found[1]


def test_a_heading_ends_the_context():
    assert all("Another" not in text and "gone" not in text for text in make_last_word.passages(WIKI, 10, 5, 100))


def test_contexts_have_the_asked_length():
    text = "zero the garden " + " ".join(f"word{i}" for i in range(40)) + " it was a garden."
    assert make_last_word.passages(text, 5, min_words=50) == []
    assert make_last_word.passages(text, 5, min_words=10, max_words=20) == [], "the word is too far back"
    (passage,) = make_last_word.passages(text, 5, min_words=10, max_words=45)
    assert len(passage.split(" ")) == 46 and passage.endswith("it was a garden")


def test_takes_passages_from_all_of_the_text():
    text = "\n".join(f"= {i} =\nThe tiger{'x' * i} saw a tiger{'x' * i}." for i in range(100))
    every = make_last_word.passages(text, 1000, min_words=2)
    some = make_last_word.passages(text, 10, min_words=2)
    assert len(every) == 100 and some == every[::10]
