// SPDX-License-Identifier: Apache-2.0
// Reads the stages around the model in tokenizer.json: normalizer, pre-tokenizer, post-processor.
#pragma once

#include "text/json_field.h"
#include "text/vocabulary.h"

namespace spillway {

// Decides between byte-level BPE and SentencePiece and sets how text is normalized and split.
// Throws Error(kUnsupported) for a stage that is not known.
void read_pipeline(const JsonField& root, Vocabulary& vocabulary);

// Sets bos, eos, add_bos and add_eos from the post-processor. Returns false if there is none that
// says which tokens to add. The tokens must have been read before.
bool read_post_processor(const JsonField& root, Vocabulary& vocabulary);

}  // namespace spillway
