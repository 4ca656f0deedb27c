#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes bert_tables.cc, from what Hugging Face's tokenizers do with each character:
"$(scripts/test_venv.sh)/bin/python" src/text/generate_bert_tables.py > src/text/bert_tables.cc

Their classes of characters are those of several versions of Unicode, none of which is this Python's.
"""
import sys

from tokenizers import normalizers, pre_tokenizers

SURROGATES = range(0xD800, 0xE000)


def bert(**switched_on):
    off = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**off | switched_on)


def ranges(chosen):
    found = []
    for code in range(sys.maxunicode + 1):
        if code in SURROGATES or not chosen(chr(code)):
            continue
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def main():
    clean, chinese, accents = bert(clean_text=True), bert(handle_chinese_chars=True), bert(strip_accents=True)
    words = pre_tokenizers.BertPreTokenizer()
    tables = {
        "removed": lambda c: clean.normalize_str(f"a{c}b") == "ab",
        "ideograph": lambda c: chinese.normalize_str(c) != c,
        "accent": lambda c: accents.normalize_str(f"a{c}b") == "ab",
        "punctuation": lambda c: len(words.pre_tokenize_str(f"a{c}b")) == 3,
    }
    print("// SPDX-License-Identifier: Apache-2.0")
    print("// Written by generate_bert_tables.py; do not edit.")
    print('#include "text/bert_tables.h"\n')
    print("// clang-format off")
    print("namespace spillway {")
    for name, chosen in tables.items():
        entries = [f"{{0x{first:X},0x{last:X}}}," for first, last in ranges(chosen)]
        print(f"\nstd::span<const CodePointRange> {name}_ranges() {{")
        print("  static constexpr CodePointRange kRanges[] = {")
        for begin in range(0, len(entries), 6):
            print("    " + " ".join(entries[begin : begin + 6]))
        print("  };\n  return kRanges;\n}")
    print("\n}  // namespace spillway")


if __name__ == "__main__":
    main()
