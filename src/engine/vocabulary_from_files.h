// SPDX-License-Identifier: Apache-2.0
// Finds a model's vocabulary in its files, whatever their format.
#pragma once

#include "storage/tensor_index.h"
#include "text/vocabulary.h"

namespace spillway {

// From GGUF metadata, tokenizer.json, or vocab.json with merges.txt. Throws kInvalidArgument naming
// file and field where there is none or it is not sound, kUnsupported for a kind of tokenizer that
// is not known.
Vocabulary vocabulary_from_files(const ModelFiles& files);

}  // namespace spillway
