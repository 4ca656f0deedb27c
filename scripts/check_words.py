#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds documents, help texts and sources to the project's words: one word for one thing, and the field's own where it has one.

usage: scripts/check_words.py [--root DIR] [--areas docs,help,src] [--list] [--lower]
Areas: docs (every .md file that git does not ignore), help (string literals of src/cli/), src (names, comments and text of
src/). scripts/words_allowed.txt has how often a word may still stand in an area, as
lines `AREA WORD COUNT`; a word that is not in it may not stand there at all, and counts only go down.
--list prints every place, also the allowed ones. --lower writes today's counts where they are smaller.
Prints one `file:line: word: say ...` per finding. Exit codes: 0 clean, 1 findings.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys

ALLOWED = "scripts/words_allowed.txt"


def word(text):
    return re.compile(rf"(?<![A-Za-z])(?:{text})(?![A-Za-z])", re.IGNORECASE)


# Banned names: they count wherever they stand, also in code.
NAMES = {
    "turns": (re.compile(r"(?i)kv_?turn|(?<![a-z])turning|_turning|turn_?sizes|(takes|change|adapts)_turns"), "swapped layers, LayerSwapper"),
    "residency": (re.compile(r"\bk(Here|Away|Coming)\b"), "resident, swapped out, loading"),
    "gives_way": (re.compile(r"(?i)gives_?way|VictimChoice"), "preemption policy"),
    "foresee": (re.compile(r"(?i)foresight|foreseen?"), "predict, predicted"),
    "outgrown": (re.compile(r"(?i)outgrow[ns]?"), "exceeded its prediction"),
    "what_helps": (re.compile(r"\bwhat_helps\b"), "fit suggestions"),
    "fill_from_the_top": (re.compile(r"(?i)fill_?from_?the_?top"), "greedy placement"),
    "slotful": (re.compile(r"(?i)slotful"), "slot group"),
    "stream_order": (re.compile(r"(?i)stream_?orders?\b"), "streaming schedule"),
    "attention_sums": (re.compile(r"(?i)attention_?sums"), "softmax state"),
    "take_rows": (re.compile(r"\bkTakeRows\b"), "hidden states"),
    "step_program": (re.compile(r"StepBatch::program|step_programs\b"), "graph key"),
    "host_lane": (re.compile(r"(?i)host_?lane"), "CPU executor"),
    "waited_for": (re.compile(r"\bk(WaitedFor|ForWhole)\b"), "over-commit, full reservation"),
    "coming": (re.compile(r"\bcoming_\b"), "in-flight prefixes"),
    "at_once": (re.compile(r"at_once(?![a-z])"), "max_concurrent"),
    "apart": (re.compile(r"\bapart_|_apart\b|WhereApart"), "discrete"),
    "hear": (re.compile(r"\bhear\(|\b[Hh]eard(?=[A-Z_(])"), "on_step, notify"),
    "distrust": (re.compile(r"(?i)distrust"), "invalidate"),
    "is_coming": (re.compile(r"\bis_coming_?\b|\bkComing\b"), "in flight, loading"),
    "newcomers_": (re.compile(r"\bmost_newcomers\b|\bNewcomers::"), "max_admissions, new connections"),
    "wants_room": (re.compile(r"\bwants_room\b"), "memory pressure"),
    "settle(": (re.compile(r"\bsettle\("), "drain, compute the footprint"),
    "reckoning": (re.compile(r"(?i)_reckon"), "estimate"),
    "stream_piece": (re.compile(r"kStreamPieceBytes|kPieceSlots|\bpieces_read_ahead\b|\blayer_of_piece"), "weight segment"),
    "attention_parts": (re.compile(r"AttentionParts|attention_parts\.h|\bSequencePart\b|\battend_part\b"), "KV partition, PartitionedAttention"),
    "rows_away": (re.compile(r"\brows_away\b"), "hidden_states_offloaded"),
    "generation_number": (re.compile(r"device/generation\.h|\bGeneration::fresh\b"), "AddressEpoch"),
    "stream_cut": (re.compile(r"\bStreamCut\b"), "StreamSplit"),
    "question_names": (re.compile(r"\b(send|shrink_to|use|say|measure)_what_\w+|\bby_rule\b"), "a verb of the field"),
}

# Banned words of prose, which code may use in another sense.
PROSE = {
    "take turns": (re.compile(r"(?i)\b(layers?|KV)\b[^.,;:|]*\b(takes?|taking|took) turns\b|\btakes? turns on the GPU\b"), "swapped layers"),
    "give way": (word("give way|gives way|gave way|giving way|given way"), "is preempted"),
    "newcomer": (word("newcomers?"), "admissions"),
    "who begins": (word("who (may )?begins?( when| first)?"), "is admitted, admission"),
    "wants room": (word("wants? room"), "memory pressure"),
    "at work": (word("at work"), "running, concurrent"),
    "by rule": (word("by the rule|the rule's|by rule"), "greedy placement"),
    "reckon": (word("reckon(ed|s|ing)?"), "compute, estimate"),
    "asked for": (word("asked for"), "requested"),
    "somebody": (word("somebody|nobody|anybody|somebody's|nobody's"), "name the thing"),
    "books": (word("books"), "bookkeeping"),
    "settle": (word("settles?|settled|settling"), "compute the footprint, or drain"),
}

OPENINGS = {name: (re.compile(rf"^\s*// {name}\b"), "a sentence with a subject") for name in ("Of", "What", "Who")}

CODE_SPAN = re.compile(r"`[^`]*`")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
COMMENT = re.compile(r"//.*")


def listed(root, *patterns):
    """The files that git does not ignore; in a folder that is no repository, all of them."""
    found = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard", *patterns],
                           capture_output=True, text=True, check=False)  # fmt: skip
    if found.returncode != 0:
        return sorted({path for pattern in patterns for path in root.rglob(pattern.rsplit("/", 1)[-1])})
    return sorted(root / name for name in found.stdout.splitlines() if (root / name).exists())


def document_lines(path):
    """(line number, the line, its prose): code has no prose."""
    in_block = False
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if line.lstrip().startswith("```"):
            in_block = not in_block
        is_code = in_block or line.startswith("    ")
        yield number, line, "" if is_code else CODE_SPAN.sub("", line)


def literal_lines(path):
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if line.startswith("#include"):
            continue
        text = " ".join(LITERAL.findall(line))
        yield number, text, text


def source_lines(path):
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        comment = COMMENT.search(line)
        text = " ".join(LITERAL.findall(line[: comment.start()] if comment else line))
        yield number, line, f"{text} {comment.group() if comment else ''}"


def documents(root):
    return listed(root, "*.md")


def helps(root):
    return [path for path in listed(root, "src/cli/*.cc") if not path.name.endswith("_test.cc")]


def sources(root):
    return listed(root, "src/*.cc", "src/*.h", "src/*.cu", "src/*.cuh")


AREAS = {"docs": (documents, document_lines, {}), "help": (helps, literal_lines, {}), "src": (sources, source_lines, OPENINGS)}


def findings_of(root, area):
    """{word: [(place, what to say)]} of an area."""
    paths, lines, openings = AREAS[area]
    found = collections.defaultdict(list)
    for path in paths(root):
        for number, line, prose in lines(path):
            place = f"{path.relative_to(root)}:{number}"
            for rules, text in ((NAMES, line), (PROSE, prose), (openings, line)):
                for name, (pattern, say) in rules.items():
                    found[name] += [(place, say)] * len(pattern.findall(text))
    return {name: places for name, places in found.items() if places}


def read_allowed(path):
    """{(area, word): count}."""
    allowed = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        if line and not line.startswith("#"):
            area, rest = line.split(None, 1)
            name, count = rest.rsplit(None, 1)
            allowed[area, name] = int(count)
    return allowed


def write_allowed(path, allowed):
    comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
    path.write_text("\n".join([*comments, *(f"{area} {name} {count}" for (area, name), count in allowed.items() if count)]) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--areas", default="docs,help,src")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--lower", action="store_true")
    options = parser.parse_args()
    areas = options.areas.split(",")
    allowed = read_allowed(options.root / ALLOWED)
    count, places_allowed = 0, 0
    for area in areas:
        found = findings_of(options.root, area)
        for name in sorted(set(found) | {name for where, name in allowed if where == area}):
            places, most = found.get(name, []), allowed.get((area, name), 0)
            too_many = len(places) > most
            for place, say in places if too_many or options.list else []:
                print(f"{place}: {name}: say {say}")
            if too_many:
                count += 1
                print(f"{area}: {name}: {len(places)} places, {most} allowed")
            else:
                places_allowed += len(places)
                allowed[area, name] = len(places) if options.lower else most
                if len(places) < most and not options.lower:
                    print(f"{ALLOWED}: {area} {name} is {len(places)} by now, not {most}: --lower writes it")
    if options.lower:
        write_allowed(options.root / ALLOWED, allowed)
    print(f"{', '.join(areas)}: {count} words too often, {places_allowed} places allowed")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
