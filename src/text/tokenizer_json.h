// SPDX-License-Identifier: Apache-2.0
// Builds vocabularies from the files of a Hugging Face model folder.
#pragma once

#include <string_view>

#include "text/vocabulary.h"

namespace spillway {

// Reads tokenizer.json and tokenizer_config.json (may be empty) of BPE models, byte-level or with
// byte fallback. `where` names the folder in messages. Throws Error(kInvalidArgument) for bad JSON
// or fields, and Error(kUnsupported) for parts of a tokenizer that Spillway does not have (other
// models, normalizers, pre-tokenizers). The message is one line that names the field.
Vocabulary vocabulary_from_tokenizer_json(std::string_view tokenizer_json,
                                          std::string_view tokenizer_config_json,
                                          std::string_view where);

// Reads vocab.json, merges.txt and tokenizer_config.json (may be empty), the files of GPT-2 and
// OPT. If the configuration names neither BOS nor EOS, OPT is recognized by "<pad>" and "</s>" at
// ids 1 and 2; </s> is then both BOS and EOS, and BOS is added to texts.
Vocabulary vocabulary_from_gpt2_files(std::string_view vocab_json, std::string_view merges_txt,
                                      std::string_view tokenizer_config_json,
                                      std::string_view where);

}  // namespace spillway
