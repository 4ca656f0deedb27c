#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""S3's tables and figures beside what Spillway's scheduler and predictor make of the same, on a model of the same machine.

    bench/s3_tables.py --data ../shared/data -m MODEL [-o bench/results/NAME.json] [--batched-attention]
    bench/s3_tables.py --print bench/results/NAME.json

MODEL supplies the tokenizer. The steps are simulated (bench/s3_simulator.h says how long they take), the scheduler and the predictor are real.
Data sets of the paper that are not here, Google-NQ and the Pile, are named and left out. Of figures 1, 4d, 5 and 6 the paper's text has few
numbers; these are printed, and none is read off a drawing. Needs build/release/bin/s3_tables, and for table 5's encoder bin/spillway and
`scripts/fetch_model.sh minilm`; without these that row says so.
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
ENCODER = pathlib.Path.home() / ".cache" / "spillway" / "encoders" / "all-MiniLM-L6-v2"
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
# The numbers in the paper's text about its figures (captions, sections 1, 2.2, 4.1 to 4.3).
PACE_S, FIGURE1_TOKENS = 0.1875, 60
FIGURE5_ORCA10_OVER_S3_6 = 1.0092
FIGURE6_SHARE = 11
UNREAD = "the paper's other values are in its drawing alone, not in its text"
OURS = ("orca", "s3", "oracle", "paging", "spillway", "spillway_mean", "spillway_oracle")
NAMES = {"orca": "ORCA", "s3": "S3", "oracle": "oracle", "paging": "paging", "spillway": "Spillway", "spillway_mean": "no prompt", "spillway_oracle": "our oracle"}


def heading(text):
    print(f"\n{text}\n{'-' * len(text)}")


def row(first, cells, width=11):
    print(f"{first:<22}" + "".join(f"{cell:>{width}}" for cell in cells))


def beside(title, paper, ours, figure, form):
    """A line with the paper's figures of its three systems, then one with ours."""
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
    encoder = result.get("encoder")
    if encoder:
        row(encoder["name"][:21], [f"{100 * encoder['paper_accuracy']:.2f}%", f"{encoder['us_per_prediction'] / 1e3:.1f} ms"])
        print("    (not fine-tuned: 22M weights with a linear model behind them, on this machine's cores; the paper's ran on an A100)")
    else:
        print("an encoder (Spillway): not measured, there is none here, or no bin/spillway")
    row("the most frequent one", [f"{100 * predictor['paper_majority_accuracy']:.2f}%"])
    print(MISSING)


def by_number(of):
    """The items of a dict whose keys are numbers, in their order."""
    return sorted(of.items(), key=lambda item: int(item[0]))


def print_curve(name, figure):
    points = [f"{p['batch']}{'' if p['vanilla'] else '*'}: {p['latency_s']:.2f} s {p['tokens_per_s']:.0f}" for p in figure["curve"]]
    print(f"{name}: " + ", ".join(points))
    print(f"    at most {figure['vanilla_batch']} whole contexts, {figure['exact_batch']} of {FIGURE1_TOKENS} tokens")


def print_figure1(result):
    heading("Figure 1: 60 tokens; batch, s, tokens/s (* beyond what reserving 2048 tokens allows)")
    for name, model in result["models"].items():
        print_curve(name, model["figure1"])
    slo = PACE_S * FIGURE1_TOKENS
    slowest = max(point["latency_s"] for model in result["models"].values() for point in model["figure1"]["curve"])
    print(f"within {slo:.2f} s: in the paper all batches of these models; ours: the slowest takes {slowest:.2f} s")
    print(f"whole contexts of GPT-NEOX: in the paper fewer than 20; ours {result['models']['GPT-NEOX']['figure1']['vanilla_batch']}")
    for gpus, figure in by_number(result.get("gpt3_figure1", {})):
        print_curve(f"GPT-3, {gpus} GPUs", figure)
    if "gpt3_figure1" not in result:
        print("GPT-3 on 6, 8 and 10 GPUs: not in this result")
    print(UNREAD)


def print_figure4d(result):
    heading("Figure 4d: sequences/s with a token in 0.1875 s; share of steps within it")
    row("", [NAMES[name] for name in OURS])
    for name, model in result["models"].items():
        row(name, [f"{model['online'][key]['sequences_per_s']:.2f}" for key in OURS])
        row("", [f"{100 * model['online'][key]['steps_in_pace']:.1f}%" for key in OURS])

    def ratios(over, under):
        return [model["online"][over]["sequences_per_s"] / model["online"][under]["sequences_per_s"] for model in result["models"].values()]

    for over in ("s3", "spillway"):
        ours = ratios(over, "orca")
        print(f"{NAMES[over]} over ORCA: in the paper (S3) 1.13 to 6.49; ours {min(ours):.2f} to {max(ours):.2f}")
    print("S3 beside the oracle: in the paper a similar number, no figure; ours " + ", ".join(f"{ratio:.3f}" for ratio in ratios("s3", "oracle")))
    slow = [name for name, model in result["models"].items() if model["offline"]["oracle"]["slowest_step_s"] > PACE_S]
    print(f"too slow for the oracle without a pace: in the paper GPT-J, LLAMA 13B, GPT-NEOX; ours {', '.join(slow) or 'none'}")
    print(UNREAD)


def print_figure5(result):
    heading("Figure 5: GPT-3, tokens/s on so many GPUs")
    row("", [NAMES[name] for name in OURS])
    for gpus, systems in by_number(result["gpt3"]):
        row(gpus, [f"{systems[key]['tokens_per_s']:.1f}" for key in OURS])
    orca10, s3_6 = result["gpt3"]["10"]["orca"], result["gpt3"]["6"]["s3"]
    ours = orca10["tokens_per_s"] / s3_6["tokens_per_s"]
    print(f"ORCA on 10 over S3 on 6: in the paper {FIGURE5_ORCA10_OVER_S3_6:.4f}; ours {ours:.4f}")
    print(f"    with a batch of S3 that is larger: in the paper 2.33 times; ours {s3_6['batch'] / orca10['batch']:.2f}")
    print(f"    ORCA on 10 over Spillway on 6: {orca10['tokens_per_s'] / result['gpt3']['6']['spillway']['tokens_per_s']:.4f}")
    print(UNREAD)


def print_figure6(result):
    heading("Figure 6: generation, penalty (moved or computed again), overhead (predictor, scheduler; measured here)")
    together = []
    seconds_a_prediction = result["predictor"]["us_per_prediction"] / 1e6
    for name, model in result["models"].items():
        for key in ("s3", "spillway", "spillway_swap", "paging"):
            run = model["offline"][key]
            overhead = run["scheduler_s"] + (0 if key == "paging" else seconds_a_prediction * result["requests"])
            total = run["generation_s"] + run["penalty_s"] + overhead
            shares = [f"{100 * value / total:.2f}%" for value in (run["generation_s"], run["penalty_s"], overhead)]
            row(f"{name} {NAMES.get(key, key)}", shares + [f"{run['preemptions']} preempted", f"{run['recomputed_tokens']} again"], 17)
            if key == "s3":
                together.append(100 - 100 * run["generation_s"] / total)
    print(f"penalty and overhead of S3 together, mean: in the paper {FIGURE6_SHARE}%; ours {sum(together) / len(together):.2f}%")
    print(UNREAD)


def print_figures(result):
    print_figure1(result)
    print_figure4d(result)
    print_figure5(result)
    print_figure6(result)


def print_rest(result):
    heading("Shortest predicted first at 80% load, so many sequences at once: mean and 99th percentile of latency against first come")
    for name, model in result["models"].items():
        for slots, runs in by_number(model["shortest_first"]):
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
    result = json.loads(done.stdout)
    encoder = score_of_encoder(arguments)
    return result | ({"encoder": encoder} if encoder else {})


def score_of_encoder(arguments):
    """Table 5's row for an encoder; None without an encoder or a program that runs it."""
    spillway = pathlib.Path(arguments.program).parent / "spillway"
    if not spillway.is_file() or not (arguments.encoder / "config.json").is_file():
        return None
    data = pathlib.Path(arguments.data) / "text" / "alpaca_small_2000.json"
    command = [spillway, "predictor", "eval", data, "--model", arguments.model, "--encoder", arguments.encoder, "--json"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.strip())
    return {"name": arguments.encoder.name} | json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=ROOT.parent / "shared" / "data", help="the folder with text/ and traces/")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("-m", "--model", help="whose tokens are counted")
    what.add_argument("--print", metavar="FILE", help="a result that was kept, nothing is run")
    parser.add_argument("--program", default=ROOT / "build" / "release" / "bin" / "s3_tables")
    parser.add_argument("--encoder", type=pathlib.Path, default=ENCODER, help="for table 5, where it is there")
    parser.add_argument("--batched-attention", action="store_true", help="attention of all sequences at once, as Spillway computes it")
    parser.add_argument("--seed", type=int, default=4, help="of the order in which requests come")
    parser.add_argument("--first-arrival", type=int, default=0, help="of the trace, from 0")
    parser.add_argument("-o", "--output", help="keep the result as JSON")
    arguments = parser.parse_args()
    result = json.loads(pathlib.Path(arguments.print).read_text()) if arguments.print else run(arguments)
    if arguments.output and not arguments.print:
        kept = {"date": datetime.date.today().isoformat(), "machine": platform.machine(), "command": shlex.join(sys.argv)} | result
        pathlib.Path(arguments.output).write_text(json.dumps(kept, indent=1) + "\n")
    print_tables(result)
    print_figures(result)
    print_rest(result)


if __name__ == "__main__":
    main()
