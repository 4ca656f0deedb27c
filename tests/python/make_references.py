#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/python/references/: transformers' logits and tokens for the models of reference_models.py.

usage: "$(scripts/test_venv.sh)/bin/python" tests/python/make_references.py [--all]

Needs torch and transformers as tests/requirements.txt has them for aarch64, where most of the stored files were made. To
be run after a change to the cases: it computes those that are new or were changed, with --all every one.
test_references.py holds the files to what is computed anew.
"""

import copy
import hashlib
import io
import json
import pathlib
import platform
import sys
import tempfile
import zipfile

import numpy
import torch
import transformers

import reference_models
from reference_models import CASES, GREEDY_TOKENS, LONG_PROMPT_CASE, LONG_PROMPT_TOKENS, ONE_FILE, PROMPT_TOKENS, VOCABULARY


# Parameters that transformers saves under another name than the model has them.
SAVED_NAMES = {"GPTNeoX": {"lm_head.weight": "embed_out.weight"}}


def make_model(case):
    """The case's model in its type, with the weights of reference_models.py."""
    config = getattr(transformers, f"{case.family}Config")(**copy.deepcopy(case.config))  # which it may change
    config._attn_implementation = "eager"
    names = (f"{case.family}ForCausalLM", f"{case.family.removesuffix('Text')}ForCausalLM", f"{case.family}LMHeadModel")
    name = next(name for name in names if hasattr(transformers, name))
    model = getattr(transformers, name)(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            saved = SAVED_NAMES.get(case.family, {}).get(name, name)
            parameter.copy_(torch.from_numpy(reference_models.weights(saved, tuple(parameter.shape))))
    return model.to(getattr(torch, case.dtype)).eval()


def save(case, model, folder):
    """Saves the model as transformers does; for a case with `old_config`, config.json is rewritten."""
    model.save_pretrained(folder, max_shard_size=case.shard_size)
    if case.old_config:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(reference_models.json_text(reference_models.old_config(config)))
    return folder


def compute_logits(model, ids):
    """float32 [len(ids), vocabulary], of a model in float32."""
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def greedy_choices(rows):
    """(the best token of each row, the gap between the best two)."""
    best = torch.topk(torch.from_numpy(rows), 2)
    return best.indices[:, 0].tolist(), (best.values[:, 0] - best.values[:, 1]).tolist()


def compute_greedy(model, prompt):
    tokens, gaps = [], []
    while len(tokens) < GREEDY_TOKENS:
        token, gap = greedy_choices(compute_logits(model, [*prompt, *tokens])[-1:])
        tokens += token
        gaps += gap
    return tokens, gaps


def random_prompt(vocabulary, count, seed=7):
    return numpy.random.default_rng(seed).integers(3, vocabulary, count).tolist()


def decided_prompt(model, case):
    """The first of a few prompts all of whose greedy tokens are certain, or else the one that has most of them.

    Only the tolerances of 16 bits may leave some uncertain.
    """
    best, best_decided = None, -1
    for seed in range(7, 13):
        prompt = random_prompt(case.config["vocab_size"], PROMPT_TOKENS, seed)
        tokens, gaps = compute_greedy(model, prompt)
        if case.decided(gaps) > best_decided:
            best, best_decided = (prompt, tokens, gaps), case.decided(gaps)
        if best_decided == GREEDY_TOKENS:
            break
    assert best_decided == GREEDY_TOKENS or case.dtype != "float32"
    return best


def read_header(path):
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    del header["__metadata__"]
    return header


def saved_tensors(folder):
    """(name: shape, the number of the file of each) in the order of names."""
    found = {}
    for number, path in enumerate(sorted(folder.glob("*.safetensors")), 1):
        for name, entry in read_header(path).items():
            found[name] = (entry["shape"], number)
    names = sorted(found)
    return {name: found[name][0] for name in names}, [found[name][1] for name in names]


def check_weights(case, tensors, folder):
    """The model has the weights that the tests write into its files."""
    _, store = reference_models.STORED_TYPES[case.dtype]
    saved = b"".join(path.read_bytes() for path in folder.glob("*.safetensors"))
    for name, shape in tensors.items():
        data = store(reference_models.weights(name, shape)).tobytes()
        assert data in saved, f"{case.family} has {name} under another name: add it to SAVED_NAMES"


def make_reference(name):
    case = CASES[name]
    model = make_model(case)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        model.save_pretrained(folder, max_shard_size=case.shard_size)
        config = json.loads((folder / "config.json").read_text())
        generation_config = json.loads((folder / "generation_config.json").read_text())
        tensors, shards = saved_tensors(folder)
        check_weights(case, tensors, folder)
    assert (max(shards) > 1) == (case.shard_size != ONE_FILE)
    model = model.float()
    prompt, tokens, gaps = decided_prompt(model, case)
    made = reference_models.Reference(
        case=case, case_hash=case.hash(), config=config, generation_config=generation_config, tensors=tensors, shards=shards,
        weights_sha256="", prompt=prompt, tokens=tokens, gaps=[round(gap, 5) for gap in gaps],
        logits=compute_logits(model, prompt),
    )  # fmt: skip
    made.weights_sha256 = reference_models.weights_sha256(made.contents())
    return made


def write_npz(path, arrays):
    """The same bytes for the same arrays: numpy's own function would put the time of day into the file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, array in arrays.items():
            content = io.BytesIO()
            numpy.lib.format.write_array(content, array, version=(1, 0), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, content.getvalue())


def document_text(document):
    """JSON with one line for each case and each list of tensors, so that a change shows as a few lines."""
    parts = []
    for key, value in document.items():
        if key in ("cases", "tensors"):
            inner = ",\n".join(f"    {json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}" for name, one in value.items())
            parts.append(f"  {json.dumps(key)}: {{\n{inner}\n  }}")
        else:
            parts.append(f"  {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def first_with(stored, name, value, same):
    """The name under which `value` is stored, added if it is new."""
    for other, stored_value in stored.items():
        if same(stored_value, value):
            return other
    stored[name] = value
    return name


def kept_reference(name):
    """The stored reference if the case has not changed; else None."""
    cases = reference_models.stored()[0]["cases"]
    if "--all" in sys.argv or name not in cases or cases[name]["case_hash"] != CASES[name].hash():
        return None
    return reference_models.reference(name)


def main():
    torch.set_num_threads(1)
    before = reference_models.stored()[0]["made_with"]
    machines = {platform.machine()} if "--all" in sys.argv else {platform.machine(), *before["machine"].split(" and ")}
    cases, tensors, arrays = {}, {}, {}
    for name in CASES:
        made = kept_reference(name) or make_reference(name)
        values = {key: value for key, value in vars(made).items() if key != "case"}
        values["tensors"] = first_with(tensors, name, made.tensors, lambda a, b: a == b)
        values["logits"] = first_with(arrays, name, reference_models.packed_logits(made.logits), numpy.array_equal)
        cases[name] = values
        print(f"{name}: {made.case.decided(made.gaps)} tokens certain, logits up to {numpy.abs(made.logits).max():.1f}")
    long_prompt = random_prompt(VOCABULARY, LONG_PROMPT_TOKENS)
    if kept_reference(LONG_PROMPT_CASE):
        long_logits = reference_models.long_prompt()[1]
    else:
        long_logits = compute_logits(make_model(CASES[LONG_PROMPT_CASE]).float(), long_prompt)
    arrays["long prompt"] = reference_models.packed_logits(long_logits)

    reference_models.STORED.mkdir(exist_ok=True)
    write_npz(reference_models.LOGITS, arrays)
    document = {
        "made_with": {
            "torch": torch.__version__, "transformers": transformers.__version__, "numpy": numpy.__version__,
            "machine": " and ".join(sorted(machines)),
        },
        "logits_sha256": hashlib.sha256(reference_models.LOGITS.read_bytes()).hexdigest(),
        "long_prompt": long_prompt,
        "cases": cases,
        "tensors": tensors,
    }  # fmt: skip
    reference_models.REFERENCES.write_text(document_text(document))
    for path in (reference_models.LOGITS, reference_models.REFERENCES):
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    sys.exit(main())
