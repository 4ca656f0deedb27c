// SPDX-License-Identifier: Apache-2.0
// Writes a vocabulary as keys of a GGUF file.
//
// If GGUF's own keys (tokenizer.ggml.*) cannot say all that a Hugging Face tokenizer does, keys of
// ours (spillway.tokenizer.*) do, so that the vocabulary that is read back is the same. Other
// programs ignore those; the returned notes say what they then do differently.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storage/metadata.h"
#include "text/vocabulary.h"

namespace spillway {

// Adds the keys. The vocabulary is filled up with unused tokens to `embedding_rows`, since readers
// take the number of tokens for the number of rows. Returns what another program would do
// differently, one sentence each; nothing for most tokenizers.
std::vector<std::string> add_tokenizer_keys(const Vocabulary& vocabulary, int64_t embedding_rows,
                                            Metadata& keys);

// Applies our own keys, where a file has them. Throws kInvalidArgument for values that make no
// sense.
void read_own_tokenizer_keys(const Metadata& keys, Vocabulary& vocabulary);

}  // namespace spillway
