#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes passages for `spillway eval --last-word` from a text: lines {"text": ...} whose last word stands earlier in the
passage, so that a model that reads its context can guess it (the idea of LAMBADA, and the paper's table 5).

    bench/make_last_word.py TEXT [--count 200] [--min-words 50] [--max-words 150] > passages.jsonl

A paragraph is a line; headings of WikiText (= ... =) end one, and paragraphs between two of them belong together. Spaces
that WikiText puts around punctuation are taken out. Every sentence whose last word has at least four letters, is no
stranger and comes after enough words is a candidate; of these, `count` are taken at equal distances. The same text gives
the same passages.
"""

import argparse
import json
import re
import sys

# A sentence's last word: letters only, before the full stop that ends the sentence.
LAST_WORD = re.compile(r"(?<=\s)([A-Za-z]{4,})(?=[.!?]+[\"']?(\s|$))")
# Too easy to guess from the words beside it, or found in every passage.
COMMON = frozenset("also been from have more most only over some such than that them then they this were what when with would".split())


def natural(text):
    """The text without the spaces that WikiText puts around punctuation."""
    text = re.sub(r" @([-,.])@ ", r"\1", text)
    text = re.sub(r" (['’](s|t|re|ve|d|ll|m)\b)", r"\1", text)
    text = re.sub(r" ([,.;:!?)\]])", r"\1", text)
    text = re.sub(r"([(\[]) ", r"\1", text)
    text = re.sub(r"\" ([^\"]*?) \"", r'"\1"', text)
    return re.sub(r"\s+", " ", text).strip()


def sections(text):
    """Runs of paragraphs between headings."""
    paragraphs = []
    for line in text.splitlines():
        stripped = line.strip()
        if re.fullmatch(r"=.*=", stripped):
            if paragraphs:
                yield natural(" ".join(paragraphs))
            paragraphs = []
        elif stripped:
            paragraphs.append(stripped)
    if paragraphs:
        yield natural(" ".join(paragraphs))


def candidates(text, min_words, max_words):
    for section in sections(text):
        for match in LAST_WORD.finditer(section):
            word = match.group(1)
            before = section[: match.start()].split(" ")[:-1]
            if word.lower() in COMMON or len(before) < min_words:
                continue
            context = before[-max_words:]
            if any(re.fullmatch(rf"\W*{word}(['’]s)?\W*", other, re.IGNORECASE) for other in context):
                yield " ".join([*context, word])


def passages(text, count, min_words=50, max_words=150):
    found = list(candidates(text, min_words, max_words))
    if count >= len(found):
        return found
    return [found[i * len(found) // count] for i in range(count)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--min-words", type=int, default=50, help="words before the last, at least")
    parser.add_argument("--max-words", type=int, default=150, help="words before the last, at most")
    args = parser.parse_args()
    with open(args.text, encoding="utf-8") as file:
        found = passages(file.read(), args.count, args.min_words, args.max_words)
    if not found:
        sys.exit(f"{args.text}: no passages whose last word stands earlier in them")
    for text in found:
        print(json.dumps({"text": text}, ensure_ascii=False))


if __name__ == "__main__":
    main()
