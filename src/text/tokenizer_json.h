// SPDX-License-Identifier: Apache-2.0
// Vocabularies from the files of a Hugging Face model folder.
#pragma once

#include <string_view>

#include "text/vocabulary.h"

namespace spillway {

// From tokenizer.json and tokenizer_config.json (may be empty): BPE models, byte-level or with byte
// fallback. `where` names the folder in messages. Throws Error(kInvalidArgument) for bad JSON or
// fields, Error(kUnsupported) for parts of a tokenizer that Spillway does not have (other models,
// normalizers, pre-tokenizers); one line naming the field.
Vocabulary vocabulary_from_tokenizer_json(std::string_view tokenizer_json,
                                          std::string_view tokenizer_config_json,
                                          std::string_view where);

// From vocab.json, merges.txt and tokenizer_config.json (may be empty), as GPT-2 and OPT have them.
// Without a configuration, OPT is known by its "<pad>" and "</s>" at 1 and 2: </s> is then BOS and
// EOS, and BOS is added.
Vocabulary vocabulary_from_gpt2_files(std::string_view vocab_json, std::string_view merges_txt,
                                      std::string_view tokenizer_config_json,
                                      std::string_view where);

}  // namespace spillway
