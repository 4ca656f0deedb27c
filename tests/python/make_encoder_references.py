#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/python/references/encoders.json: transformers' embeddings of the texts of reference_encoders.py.

usage: "$(scripts/test_venv.sh)/bin/python" tests/python/make_encoder_references.py

Needs torch, transformers and tokenizers. To be run after a change to the cases; test_encoder.py holds the file to what is
computed anew where they are installed.
"""

import json
import pathlib
import platform
import sys
import tempfile

import numpy
import reference_encoders
import torch
import transformers
from reference_encoders import CASES, TEXTS, VOCABULARY
from tokenizers.implementations import BertWordPieceTokenizer

# The most tokens of a prompt that Spillway reads (kMostEncoderTokens).
MOST_TOKENS = 64


def make_model(case):
    config = getattr(transformers, f"{case.family}Config")(**case.config)
    config._attn_implementation = "eager"
    extra = {"add_pooling_layer": False} if case.family == "Bert" else {}
    model = getattr(transformers, f"{case.family}Model")(config, **extra)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(reference_encoders.weights(name, tuple(parameter.shape))))
    return model.eval()


def make_tokenizer(positions):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "vocab.txt"
        path.write_text("\n".join(VOCABULARY) + "\n")
        tokenizer = BertWordPieceTokenizer(str(path), lowercase=True)
    tokenizer.enable_truncation(min(positions, MOST_TOKENS))
    return tokenizer


def embed(model, ids):
    with torch.no_grad():
        rows = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    return reference_encoders.unit(rows.double().mean(dim=0).numpy())


def compute(case):
    model = make_model(case)
    tokenizer = make_tokenizer(case.config["max_position_embeddings"])
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    config = model.config.to_dict()
    config.pop("_name_or_path", None)
    return {
        "case_hash": case.hash(),
        "config": config,
        "tensors": {name: list(parameter.shape) for name, parameter in model.named_parameters()},
        "ids": ids,
        "embeddings": [numpy.round(embed(model, each), 7).tolist() for each in ids],
    }


def main():
    if len(sys.argv) > 1:
        print(__doc__)
        return 0 if sys.argv[1] in ("-h", "--help") else 2
    torch.set_num_threads(1)
    made_with = {"torch": torch.__version__, "transformers": transformers.__version__, "machine": platform.machine()}
    document = {"made_with": made_with, "cases": {name: compute(case) for name, case in CASES.items()}}
    reference_encoders.STORED.write_text(json.dumps(document, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
