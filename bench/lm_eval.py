#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does lm-eval, as it comes from PyPI, work with a server, and are its figures what the server says?

    bench/lm_eval.py --spillway build/release/bin/spillway smollm2
    bench/lm_eval.py --spillway build/release/bin/spillway model.gguf -- --device cuda --template chatml
    bench/lm_eval.py --url :8080 --tokenizer HF_FOLDER --items 3

Runs `local-completions` (multiple choice: log-likelihoods by echo and logprobs; and answers) and `local-chat-completions` (answers)
over a few questions of its own, shows lm-eval's tables, and asks the server itself about every choice: log-likelihoods must be within
--tolerance of lm-eval's. --spillway starts `spillway serve MODEL --port 0`, options behind -- included, and ends it. lm-eval counts a
context's tokens itself: with the tokenizer of a Hugging Face folder (--tokenizer), or of the server: by /tokenizer_info where it has
that, else by /tokenize. lm-eval is installed once, under the user's cache folder: only that needs a network.
Exit codes: 0 all is well, 1 a figure is wrong or missing, 2 it could not run.
"""

import argparse
import contextlib
import datetime
import json
import math
import os
import pathlib
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from serve_bench import processor_name
from serve_client import Endpoint

REQUIREMENTS = ["lm-eval[api]>=0.4.9", "transformers"]  # transformers: tokenizers only, there is no torch
LOADING_S = 600

CHOICES = [
    ("The capital of France is", ["London", "Paris", "Rome", "Berlin"], 1),
    ("The opposite of hot is", ["cold", "blue", "seven", "walk"], 0),
    ("Two and two make", ["nine", "red", "four", "a hundred"], 2),
    ("A cat says", ["moo", "quack", "woof", "meow"], 3),
    ("In the morning the sun", ["rises in the east", "is made of cheese", "reads a book"], 0),
    ("Fish live in", ["the sky", "the water", "the fire"], 1),
    ("She drank a café au lait, which is coffee with", ["milk", "sand", "paper"], 0),
    ("Lily was sad because she lost her toy. She began to", ["cry", "multiply", "melt"], 0),
]
QUESTIONS = [
    ("Which city is the capital of France? Answer with one word.", "Paris"),
    ("What is the opposite of hot? Answer with one word.", "Cold"),
    ("How much is two and two? Answer with one number.", "4"),
    ("Which animal says meow? Answer with one word.", "Cat"),
    ("Which colour has the sky on a clear day? Answer with one word.", "Blue"),
    ("In which season does it snow? Answer with one word.", "Winter"),
]
TASKS = {  # YAML is a superset of JSON
    "own_choices": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")],
    },
    "own_questions": {
        "output_type": "generate_until",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 24, "do_sample": False, "temperature": 0},
        "filter_list": [
            {"name": "first-word", "filter": [{"function": "regex", "regex_pattern": "(\\w+)"}, {"function": "take_first"}]}
        ],
        "metric_list": [
            {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True, "ignore_case": True}
        ],
    },
}
# transformers loads this in place of a model's tokenizer: it asks the server.
SERVER_TOKENIZER = '''
import json
import os
import types
import urllib.request


class ServerTokenizer:
    bos_token_id = eos_token_id = eos_token = None

    @classmethod
    def register_for_auto_class(cls, *_):
        pass

    @classmethod
    def from_pretrained(cls, *_, **__):
        return cls()

    def ask(self, path, fields):
        headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("OPENAI_API_KEY", "")}
        request = urllib.request.Request(os.environ["TOKENIZING_SERVER"] + path, json.dumps(fields).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def encode(self, text, add_special_tokens=False):
        return self.ask("/tokenize", {"content": text, "add_special": add_special_tokens})["tokens"]

    def __call__(self, text, add_special_tokens=False, **_):
        several = not isinstance(text, str)
        ids = [self.encode(each, add_special_tokens) for each in text] if several else self.encode(text, add_special_tokens)
        return types.SimpleNamespace(input_ids=ids)

    def batch_decode(self, batch):
        return [self.ask("/detokenize", {"tokens": ids})["content"] for ids in batch]
'''


class CannotRun(Exception):
    pass


def say(text):
    print(text, file=sys.stderr, flush=True)


def parse_arguments():
    own, options = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, options = own[:at], own[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="http://HOST:PORT, or :PORT on this machine")
    where.add_argument("--spillway", nargs=2, metavar=("PROGRAM", "MODEL"), help="start this one; options behind -- go to it")
    parser.add_argument("--model", default="", help="default: the first one that the server lists")
    parser.add_argument("--api-key-file", help="its first line goes to the server")
    parser.add_argument("--tokenizer", metavar="FOLDER", help="a Hugging Face tokenizer (default: the server's)")
    parser.add_argument("--items", type=int, default=len(CHOICES), help="questions of each kind (default: all)")
    parser.add_argument("--batch", type=int, default=2, help="prompts in a request of local-completions (2)")
    parser.add_argument("--clients", type=int, default=2, help="requests at once (2)")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of log-likelihoods (0.001)")
    parser.add_argument("--no-chat", action="store_true", help="local-completions only: for models without a chat template")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="write the figures as JSON, with date, machine and command")
    parser.add_argument("--venv", type=pathlib.Path, help="where lm-eval is, or goes (default: in the user's cache folder)")
    args = parser.parse_args(own)
    if options and not args.spillway:
        parser.error("options behind -- need --spillway")
    if min(args.items, args.batch, args.clients) < 1:
        parser.error("counts are above 0")
    if args.url and args.url.startswith(":"):
        args.url = f"http://127.0.0.1{args.url}"
    args.venv = args.venv or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "spillway/lm-eval-venv"
    return args, options


def make_environment(folder):
    """lm-eval in a virtual environment, unless it is there already."""
    program, mark = folder / "bin/lm-eval", folder / "requirements.json"
    if program.exists() and mark.exists() and json.loads(mark.read_text()) == REQUIREMENTS:
        return program
    if folder.exists() and not (folder / "pyvenv.cfg").exists() and any(folder.iterdir()):
        raise CannotRun(f"{folder} has something else in it")
    say(f"installing {' '.join(REQUIREMENTS)} into {folder} (once, a minute or two)")
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS], check=True)
    except subprocess.CalledProcessError as error:
        raise CannotRun(f"lm-eval cannot be installed: {error}") from error
    mark.write_text(json.dumps(REQUIREMENTS))
    return program


@contextlib.contextmanager
def running_server(program, model, options, scratch):
    """The URL of a server that ends with the block."""
    log = scratch / "server.log"
    with log.open("w") as errors:
        server = subprocess.Popen([program, "serve", model, "--port", "0", *options], stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        for line in server.stdout:
            if " at http://" in line:
                yield line.rsplit(" at ", 1)[1].strip()
                break
        else:
            raise CannotRun(f"{program} serve {model} did not start:\n{log.read_text()}")
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def wait_until_ready(endpoint):
    until = time.monotonic() + LOADING_S
    while endpoint.ask("GET", "/health")[0] == 503 and time.monotonic() < until:
        time.sleep(0.2)
    endpoint.find_model()


def write_tasks(folder, items):
    folder.mkdir()
    rows = {
        "own_choices": [dict(zip(("text", "choices", "answer"), row)) for row in CHOICES[:items]],
        "own_questions": [dict(zip(("question", "answer"), row)) for row in QUESTIONS[:items]],
    }
    for name, fields in TASKS.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows[name]))
        source = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
        (folder / f"{name}.yaml").write_text(json.dumps(source | fields, indent=2))


def tokenize(endpoint, text, add_special):
    status, answer = endpoint.ask("POST", "/tokenize", {"content": text, "add_special": add_special})
    if status != 200:
        raise CannotRun(f"/tokenize is answered {status}: {answer}")
    return answer["tokens"]


def tokenizer_arguments(args, endpoint, scratch):
    """lm-eval's arguments that make it count tokens as the server does."""
    # lm-eval sends ids, so it must itself add the token that begins every text; its remote tokenizer cannot.
    begins = tokenize(endpoint, "a", True) != tokenize(endpoint, "a", False)
    if args.tokenizer:
        chosen = {"tokenizer": os.path.abspath(args.tokenizer)}
    elif not begins and not endpoint.key and endpoint.ask("GET", "/tokenizer_info")[0] == 200:
        return {"tokenizer_backend": "remote"}
    else:
        folder = scratch / "tokenizer"
        folder.mkdir()
        (folder / "config.json").write_text('{"model_type": "llama"}')
        auto = {"AutoTokenizer": ["server_tokenizer.ServerTokenizer", None]}
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ServerTokenizer", "auto_map": auto}))
        (folder / "server_tokenizer.py").write_text(SERVER_TOKENIZER)
        chosen = {"tokenizer": str(folder), "trust_remote_code": True}
    return {"tokenizer_backend": "huggingface", "add_bos_token": begins} | chosen


def reasons_in(log):
    """The server's answers to requests that it refused, or the end of the log if it refused none."""
    refused = dict.fromkeys(line[line.index("API request failed") :] for line in log.splitlines() if "API request failed" in line)
    return "\n".join(list(refused)[:5]) if refused else log[-4000:]


def run_lm_eval(program, kind, route, tasks, arguments, more, endpoint, scratch):
    """Runs lm-eval, which prints its table; returns (results, samples by task)."""
    out = scratch / kind
    base = f"http://{endpoint.host}:{endpoint.port}{endpoint.path}"
    everything = {"model": endpoint.model, "base_url": base + route, "max_retries": 2} | arguments
    command = [program, "run", "--model", kind, "--model_args", ",".join(f"{key}={value}" for key, value in everything.items())]
    command += ["--tasks", ",".join(tasks), "--include_path", scratch / "tasks", "--output_path", out, "--log_samples", *more]
    environment = os.environ | {
        "HF_HOME": str(scratch / "hf"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TOKENIZING_SERVER": base,
        "OPENAI_API_KEY": endpoint.key,
    }
    environment.pop("PYTHONPATH", None)  # this file has the name of lm-eval's package and must not be imported in its place
    say(f"lm-eval --model {kind}: {', '.join(tasks)}")
    log = scratch / f"{kind}.log"
    with log.open("w") as errors:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
    if done.returncode:
        raise CannotRun(f"lm-eval --model {kind} ends with {done.returncode}:\n{done.stdout}{reasons_in(log.read_text())}")
    print(done.stdout, flush=True)
    results = json.loads(next(out.rglob("results_*.json")).read_text())["results"]
    samples = {}
    for task in tasks:
        with next(out.rglob(f"samples_{task}_*.jsonl")).open() as file:
            samples[task] = [json.loads(line) for line in file]
    return results, samples


def check_results(kind, tasks, results, samples):
    """The list of errors in figures and answers."""
    wrong = []
    for task in tasks:
        figures = {
            name: value
            for name, value in results.get(task, {}).items()
            if name.startswith(("acc", "exact_match")) and "_stderr" not in name
        }
        if not figures:
            wrong.append(f"{kind}, {task}: no accuracy")
        for name, value in figures.items():
            if not isinstance(value, (int, float)) or not math.isfinite(value) or not 0 <= value <= 1:
                wrong.append(f"{kind}, {task}: {name} is {value}")
    answers = [sample["resps"][0][0] for sample in samples.get("own_questions", [])]
    if answers and not any(answer.strip() for answer in answers):
        wrong.append(f"{kind}, own_questions: all answers are empty")
    return wrong


def log_likelihood(endpoint, context, continuation):
    """(sum, is greedy) of a continuation's tokens, found by their offsets in the text that the server echoes."""
    fields = {"model": endpoint.model, "prompt": context + continuation, "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0}
    status, answer = endpoint.ask("POST", "/v1/completions", fields, timeout_s=LOADING_S)
    if status != 200:
        raise CannotRun(f"/v1/completions is answered {status}: {answer}")
    choice = answer["choices"][0]
    said = choice["logprobs"]
    begin = len(choice["text"]) - len(continuation)
    at = [place for place, offset in enumerate(said["text_offset"]) if offset >= begin]
    own = [said["token_logprobs"][place] for place in at]
    return sum(own), all(value == max(said["top_logprobs"][place].values()) for place, value in zip(at, own))


def check_log_likelihoods(endpoint, samples, tolerance):
    """The list of lm-eval's log-likelihoods that differ from the server's for the same texts."""
    wrong, largest, count = [], 0.0, 0
    for sample in samples:
        for number, response in enumerate(sample["resps"]):
            pair = sample["arguments"][f"gen_args_{number}"]
            context, continuation = pair["arg_0"], pair["arg_1"]
            theirs, is_greedy = float(response[0][0]), str(response[0][1]) == "True"
            ours, should_be_greedy = log_likelihood(endpoint, context, continuation)
            count += 1
            difference = abs(theirs - ours)
            if not math.isfinite(theirs) or not difference <= tolerance:
                wrong.append(f"{context!r} + {continuation!r}: {theirs:.6f} by lm-eval, {ours:.6f} by the server")
            elif is_greedy != should_be_greedy:
                wrong.append(f"{context!r} + {continuation!r}: greedy is {is_greedy} by lm-eval, {should_be_greedy} by the server")
            largest = max(largest, difference if math.isfinite(difference) else math.inf)
    if not count:
        wrong.append("there are no log-likelihoods")
    print(f"log-likelihoods: {count} compared with direct requests, largest difference {largest:.2g} (allowed: {tolerance:g})")
    return wrong, {"compared": count, "largest_difference": largest}


def figures_of(results):
    """lm-eval's figures, by task."""
    return {task: {name: value for name, value in found.items() if isinstance(value, float)} for task, found in results.items()}


def write_figures(path, figures, wrong):
    figures = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {processor_name()}, {os.cpu_count()} cores",
        "command": shlex.join(["bench/lm_eval.py", *sys.argv[1:]]),
        "works": not wrong,
        "wrong": wrong,
    } | figures
    path.write_text(json.dumps(figures, indent=1) + "\n")


def evaluate(args, program, url, scratch):
    key = ""
    if args.api_key_file:
        key = pathlib.Path(args.api_key_file).read_text().partition("\n")[0].strip()
    endpoint = Endpoint(url, model=args.model, key=key)
    wait_until_ready(endpoint)
    write_tasks(scratch / "tasks", args.items)
    arguments = tokenizer_arguments(args, endpoint, scratch) | {"num_concurrent": args.clients}
    more = ["--batch_size", str(args.batch)]
    kind = "local-completions"
    results, samples = run_lm_eval(program, kind, "/v1/completions", list(TASKS), arguments, more, endpoint, scratch)
    wrong = check_results(kind, TASKS, results, samples)
    figures = {"model": endpoint.model, kind: figures_of(results)}
    more_wrong, figures["log_likelihoods"] = check_log_likelihoods(endpoint, samples["own_choices"], args.tolerance)
    wrong += more_wrong
    if not args.no_chat:
        kind, tasks = "local-chat-completions", ["own_questions"]
        arguments = {"num_concurrent": args.clients}
        more = ["--apply_chat_template"]
        results, samples = run_lm_eval(program, kind, "/v1/chat/completions", tasks, arguments, more, endpoint, scratch)
        wrong += check_results(kind, tasks, results, samples)
        figures[kind] = figures_of(results)
    if args.output:
        write_figures(args.output, figures, wrong)
    return wrong


def main():
    args, options = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="lm-eval-"))
    try:
        program = make_environment(args.venv)
        with contextlib.ExitStack() as stack:
            url = args.url or stack.enter_context(running_server(*args.spillway, options, scratch))
            wrong = evaluate(args, program, url, scratch)
    except (CannotRun, OSError, RuntimeError, ValueError) as error:
        say(f"lm_eval.py: {error}")
        return 2
    except KeyboardInterrupt:
        say("lm_eval.py: stopped")
        return 2
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for line in wrong:
        print(f"WRONG: {line}")
    print("lm-eval works with this server" if not wrong else f"{len(wrong)} things are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
