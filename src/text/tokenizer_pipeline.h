// SPDX-License-Identifier: Apache-2.0
// The stages around the model in tokenizer.json: normalizer, pre-tokenizer, post-processor.
#pragma once

#include "text/json_field.h"
#include "text/vocabulary.h"

namespace spillway {

// Decides between byte-level BPE and SentencePiece and sets how text is normalized and split.
// Throws Error(kUnsupported) for a stage that is not known.
void read_pipeline(const JsonField& root, Vocabulary& vocabulary);

// Sets bos, eos, add_bos and add_eos from a template; false when there is none, so that nothing is
// known. The tokens must have been read.
bool read_post_processor(const JsonField& root, Vocabulary& vocabulary);

}  // namespace spillway
