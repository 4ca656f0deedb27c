# SPDX-License-Identifier: Apache-2.0
"""Small random encoders (BERT, DistilBERT), and their stored embeddings of some texts by transformers, without torch.

The weights are made here from their names, as in reference_models.py. references/encoders.json has the rest: config.json, the
names and shapes of the tensors as transformers saves them, and the embeddings (make_encoder_references.py wrote it all).
"""

import dataclasses
import functools
import hashlib
import json
import math
import string

import numpy
import reference_models

STORED = reference_models.STORED / "encoders.json"
TOLERANCE = 1e-5  # for embeddings of length 1

WORDS = ["name", "write", "the", "river", "poem", "list", "##ing", "##ed", "##s", "un", "##able", "caf", "naive"]
MARKS = list("!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~") + ["\u201c", "\u201d", "\u2026"]
OTHERS = list("\u6cb3\u6d41\u65e5\u3042\u0430\u0431\u03b1\u1112") + ["##\u1161", "##\u11ab", "\u00df", "\u00f8", "##\u0430", "##\u0438"]
VOCABULARY = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *MARKS, *OTHERS, *string.ascii_lowercase + string.digits,
    *("##" + letter for letter in string.ascii_lowercase + string.digits),
]  # fmt: skip

TEXTS = [
    "",
    "Name the rivers.",
    "Write a poem about an unnamed river, please!",
    "Caf\u00e9 na\u00efve \u6cb3\u6d41 listing 1234 things: (a) \u201cone\u201d; (b) two\u2026",
    "\ud55c\u0430\u0438 \U0001f600 " + "x" * 120 + " river",
    "the river " * 40,
]


@dataclasses.dataclass
class Case:
    family: str  # a class of transformers is named after it
    config: dict

    def hash(self):
        """A hash of all that the reference depends on."""
        described = json.dumps([self.family, self.config, VOCABULARY, TEXTS], sort_keys=True)
        return hashlib.sha256(described.encode()).hexdigest()[:16]


def bert(**overrides):
    config = dict(
        vocab_size=len(VOCABULARY), hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=160,
        max_position_embeddings=80, type_vocab_size=2, hidden_act="gelu", pad_token_id=0,
    )  # fmt: skip
    return config | overrides


def distilbert(**overrides):
    config = dict(vocab_size=len(VOCABULARY), dim=48, n_layers=2, n_heads=3, hidden_dim=96, max_position_embeddings=40, pad_token_id=0)
    return config | overrides


CASES = {
    "bert": Case("Bert", bert()),
    "bert gelu_new, few positions": Case("Bert", bert(hidden_act="gelu_new", max_position_embeddings=24, layer_norm_eps=1e-5)),
    "bert odd sizes": Case("Bert", bert(hidden_size=36, num_attention_heads=3, intermediate_size=50, type_vocab_size=1)),
    "distilbert": Case("DistilBert", distilbert()),
    "distilbert relu": Case("DistilBert", distilbert(activation="relu", sinusoidal_pos_embds=False)),
}


def weights(name, shape):
    """Makes weights like those of other models; norms have several spellings here."""
    values = reference_models.weights(name, shape)
    is_norm = "norm.weight" in name.lower() and not name.endswith("norm.weight")
    return values + numpy.float32(1) if is_norm else values


@dataclasses.dataclass
class Reference:
    """A case's encoder, and transformers' results for the texts."""

    case: Case
    case_hash: str
    config: dict
    tensors: dict  # name: shape
    ids: list  # token ids of each text
    embeddings: list  # the mean over its tokens, of length 1

    def write(self, folder):
        assert self.case_hash == self.case.hash(), "the case was changed: run make_encoder_references.py"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(reference_models.json_text(self.config))
        (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
        contents = [(name, "F32", shape, weights(name, shape).astype("<f4").tobytes()) for name, shape in self.tensors.items()]
        reference_models.write_safetensors(folder / "model.safetensors", contents)
        return folder


@functools.cache
def stored():
    return json.loads(STORED.read_text())


def reference(name):
    return Reference(CASES[name], **stored()["cases"][name])


def unit(vector):
    return vector / math.sqrt(float((vector.astype(numpy.float64) ** 2).sum()))
