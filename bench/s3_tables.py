#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""S3's tables and figures beside what Spillway's scheduler and predictor make of the same, on a model of the same machine.

    bench/s3_tables.py --data ../shared/data -m MODEL [-o bench/results/NAME.json] [--batched-attention]

MODEL supplies the tokenizer. The steps are simulated (bench/s3_simulator.h says how long they take), the scheduler and the predictor are real.
Data sets of the paper that are not here, Google-NQ and the Pile, are named and left out. Needs build/release/bin/s3_tables.
"""

import argparse
import datetime
import json
import pathlib
import platform
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
MISSING = "Google-NQ, The Pile: not in shared data, nothing to compare"
# ORCA, S3, oracle
TABLE2 = {"GPT-J": (2061.16, 2349.67, 2569.09), "LLAMA 13B": (1018.15, 1641.55, 1907.09), "GPT-NEOX": (490.15, 1344.94, 1530.05), "LLAMA 33B": (91.46, 593.73, 834.30)}
# batch and iterations of each
TABLE3 = {
    "GPT-J": ((69.94, 7988), (530, 1054), (564.88, 989)),
    "LLAMA 13B": ((31.61, 17675), (274.66, 2034), (527.04, 1060)),
    "GPT-NEOX": ((16.89, 33069), (157.59, 3545), (292.19, 1912)),
    "LLAMA 33B": ((4, 139790), (42.47, 13155), (77.35, 7223)),
}
TABLE4 = {"6": ((11.95, 46734), (114.22, 4891), (209.47, 2667)), "8": ((28.68, 19482), (247.85, 2254), (470.65, 1187)), "10": ((48.99, 11403), (399.62, 1398), (564.88, 989))}
TABLE5 = {"MS-minibert 22M": (98.06, 2.3), "Distilbert-base 66M": (98.6, 4.1), "Bert-base 110M": (99.54, 7.6), "Bert-large 340M": (99.6, 14.5)}
OURS = ("orca", "s3", "oracle", "paging", "spillway", "spillway_mean", "spillway_oracle")
NAMES = {"orca": "ORCA", "s3": "S3", "oracle": "oracle", "paging": "paging", "spillway": "Spillway", "spillway_mean": "no prompt", "spillway_oracle": "our oracle"}


def heading(text):
    print(f"\n{text}\n{'-' * len(text)}")


def row(first, cells, width=11):
    print(f"{first:<22}" + "".join(f"{cell:>{width}}" for cell in cells))


def beside(title, paper, ours, figure, form):
    """A line of the paper's three systems, then one of ours."""
    row(f"{title} paper", [form(value) for value in paper])
    row(f"{title} ours", [form(figure(ours[name])) for name in OURS])


def print_tables(result):
    heads = [NAMES[name] for name in OURS]
    offline = {name: model["offline"] for name, model in result["models"].items()}
    heading("Table 2: tokens/s, Alpaca")
    row("", heads)
    for name, paper in TABLE2.items():
        beside(name, paper, offline[name], lambda r: r["tokens_per_s"], lambda v: f"{v:.0f}")
        orca, paging = (offline[name][key]["tokens_per_s"] for key in ("orca", "paging"))
        ours = offline[name]["spillway"]["tokens_per_s"]
        print(f"    S3 over ORCA in the paper {paper[1] / paper[0]:.2f}; Spillway over ORCA {ours / orca:.2f}, over paging {ours / paging:.3f}")
    for number, table, results in ((3, TABLE3, offline), (4, TABLE4, result["gpt3"])):
        heading(f"Table {number}: mean batch size, then iterations" + (", GPT-3 on so many GPUs" if number == 4 else ""))
        row("", heads)
        for name, paper in table.items():
            beside(name, [cell[0] for cell in paper], results[name], lambda r: r["batch"], lambda v: f"{v:.1f}")
            beside(name, [cell[1] for cell in paper], results[name], lambda r: r["iterations"], lambda v: f"{v:.0f}")
    heading("Table 5: right buckets of 2048/10, Alpaca, and what a prediction takes")
    for name, (accuracy, runtime) in TABLE5.items():
        row(name, [f"{accuracy:.2f}%", f"{runtime:.1f} ms"])
    predictor = result["predictor"]
    row("n-grams (Spillway)", [f"{100 * predictor['paper_accuracy']:.2f}%", f"{predictor['us_per_prediction'] / 1e3:.4f} ms"])
    row("the most frequent one", [f"{100 * predictor['paper_majority_accuracy']:.2f}%"])
    print(MISSING)


def print_figures(result):
    heading("Figure 1: 60 tokens; batch, s, tokens/s (* beyond what reserving 2048 tokens allows)")
    for name, model in result["models"].items():
        points = [f"{p['batch']}{'' if p['vanilla'] else '*'}: {p['latency_s']:.2f} s {p['tokens_per_s']:.0f}" for p in model["figure1"]["curve"]]
        print(f"{name}: " + ", ".join(points))
    heading("Figure 4d: sequences/s with a token in 0.1875 s; share of steps within it")
    row("", [NAMES[name] for name in OURS])
    for name, model in result["models"].items():
        row(name, [f"{model['online'][key]['sequences_per_s']:.2f}" for key in OURS])
        row("", [f"{100 * model['online'][key]['steps_in_pace']:.1f}%" for key in OURS])
    heading("Figure 5: GPT-3, tokens/s on so many GPUs")
    row("", [NAMES[name] for name in OURS])
    for gpus, systems in result["gpt3"].items():
        row(gpus, [f"{systems[key]['tokens_per_s']:.1f}" for key in OURS])
    heading("Figure 6: generation, penalty (moved or computed again), overhead (predictor, scheduler; measured here); the paper: 11% together")
    seconds_a_prediction = result["predictor"]["us_per_prediction"] / 1e6
    for name, model in result["models"].items():
        for key in ("s3", "spillway", "spillway_swap", "paging"):
            run = model["offline"][key]
            overhead = run["scheduler_s"] + (0 if key == "paging" else seconds_a_prediction * result["requests"])
            total = run["generation_s"] + run["penalty_s"] + overhead
            shares = [f"{100 * value / total:.2f}%" for value in (run["generation_s"], run["penalty_s"], overhead)]
            row(f"{name} {NAMES.get(key, key)}", shares + [f"{run['preemptions']} preempted", f"{run['recomputed_tokens']} again"], 17)


def print_rest(result):
    heading("Shortest predicted first at 80% load, so many sequences at once: mean and 99th percentile of latency against first come")
    for name, model in result["models"].items():
        for slots, runs in model["shortest_first"].items():
            first, cells = runs["first_come"], []
            for key in ("shortest", "shortest_oracle"):
                cells.append(f"mean {first['mean_latency_s'] / runs[key]['mean_latency_s']:.2f}x lower")
                cells.append(f"p99 {runs[key]['p99_latency_s'] / first['p99_latency_s']:.2f}x")
            row(f"{name}, {slots}", cells, 19)


def run(arguments):
    data = pathlib.Path(arguments.data)
    command = [arguments.program, data / "text" / "alpaca_small_2000.json", "-m", arguments.model]
    trace = data / "traces" / "AzureLLMInferenceTrace_conv.csv"
    if trace.is_file():
        command += ["--arrivals", trace]
    command += ["--seed", arguments.seed, "--first-arrival", arguments.first_arrival]
    if arguments.batched_attention:
        command.append("--batched-attention")
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.strip())
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=ROOT.parent / "shared" / "data", help="the folder with text/ and traces/")
    parser.add_argument("-m", "--model", required=True, help="whose tokens are counted")
    parser.add_argument("--program", default=ROOT / "build" / "release" / "bin" / "s3_tables")
    parser.add_argument("--batched-attention", action="store_true", help="attention of all sequences at once, as Spillway computes it")
    parser.add_argument("--seed", type=int, default=4, help="of the order in which requests come")
    parser.add_argument("--first-arrival", type=int, default=0, help="of the trace, from 0")
    parser.add_argument("-o", "--output", help="keep the result as JSON")
    arguments = parser.parse_args()
    result = run(arguments)
    if arguments.output:
        kept = {"date": datetime.date.today().isoformat(), "machine": platform.machine(), "command": shlex.join(sys.argv)} | result
        pathlib.Path(arguments.output).write_text(json.dumps(kept, indent=1) + "\n")
    print_tables(result)
    print_figures(result)
    print_rest(result)


if __name__ == "__main__":
    main()
