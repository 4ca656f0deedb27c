// SPDX-License-Identifier: Apache-2.0
// WordPiece vocabularies from the files of a Hugging Face folder.
#pragma once

#include <string_view>

#include "text/word_piece.h"

namespace spillway {

// `where` names the folder in messages. Throws kInvalidArgument for bad JSON or fields,
// kUnsupported for other kinds of tokenizers; one line naming the field.
WordPieceVocabulary word_piece_from_tokenizer_json(std::string_view tokenizer_json,
                                                   std::string_view where);

// From vocab.txt, a piece a line, and tokenizer_config.json (may be empty), as older models have
// them.
WordPieceVocabulary word_piece_from_vocab_txt(std::string_view vocab_txt,
                                              std::string_view tokenizer_config_json,
                                              std::string_view where);

}  // namespace spillway
