// SPDX-License-Identifier: Apache-2.0
// Finds a model's vocabulary in its files, whatever their format.
#pragma once

#include "storage/tensor_index.h"
#include "text/vocabulary.h"

namespace spillway {

// Reads GGUF metadata, tokenizer.json, or vocab.json with merges.txt. Throws kInvalidArgument
// naming file and field if there is no vocabulary or it is not sound, kUnsupported for an unknown
// kind of tokenizer.
Vocabulary vocabulary_from_files(const ModelFiles& files);

}  // namespace spillway
