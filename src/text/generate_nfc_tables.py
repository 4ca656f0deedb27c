#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes nfc_tables.cc from the Unicode database of this Python: python3 generate_nfc_tables.py > nfc_tables.cc"""
import sys
import unicodedata

HANGUL = range(0xAC00, 0xD7A4)  # composed by arithmetic

# Characters that came after Unicode 9 are left out: the tokenizers that Spillway must agree with normalize as Unicode 9
# did, and leave later marks where they are.
AFTER_UNICODE_9 = """
    7FD 898-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1ACE 1DF6-1DFA A82C 10D24-10D27 10EAB-10EAC 10F46-10F50
    10F82-10F85 11070 1133B 1145E 11839-1183A 11938 1193D-1193E 11943 119E0 11A34 11A47 11A99 11D42 11D44-11D45 11D97
    16FF0-16FF1 1E130-1E136 1E2AE 1E2EC-1E2EF
""".split()


def rows(items, per_line):
    for i in range(0, len(items), per_line):
        print("    " + " ".join(items[i:i + per_line]))


def left_out():
    codes = set()
    for text in AFTER_UNICODE_9:
        bounds = [int(bound, 16) for bound in text.split("-")]
        codes.update(range(bounds[0], bounds[-1] + 1))
    return codes


def main():
    later = left_out()
    pairs, one_way, classes = [], [], []
    for code in range(sys.maxunicode + 1):
        if code in later:
            continue
        char = chr(code)
        combining = unicodedata.combining(char)
        if combining:
            if classes and classes[-1][1] == code - 1 and classes[-1][2] == combining:
                classes[-1][1] = code
            else:
                classes.append([code, code, combining])
        parts = unicodedata.decomposition(char).split()
        if not parts or parts[0].startswith("<") or code in HANGUL:
            continue
        values = [int(part, 16) for part in parts] + [0]
        composes = len(parts) == 2 and unicodedata.normalize("NFC", char) == char
        (pairs if composes else one_way).append((code, values[0], values[1]))

    print("// SPDX-License-Identifier: Apache-2.0")
    print("// Written by generate_nfc_tables.py; do not edit. Characters up to Unicode 9.")
    print('#include "text/nfc_tables.h"\n')
    print("// clang-format off")
    print("namespace spillway {\n")
    for name, table in (("kCanonicalPairs", pairs), ("kOneWayDecompositions", one_way)):
        print(f"const std::array<CanonicalDecomposition, {len(table)}> {name} = {{{{")
        rows(["{%s}," % ",".join(f"0x{value:X}" for value in entry) for entry in table], 5)
        print("}};\n")
    print(f"const std::array<CombiningRange, {len(classes)}> kCombiningRanges = {{{{")
    rows([f"{{0x{first:X},0x{last:X},{value}}}," for first, last, value in classes], 6)
    print("}};\n\n}  // namespace spillway")


if __name__ == "__main__":
    main()
