// SPDX-License-Identifier: Apache-2.0
// Builds WordPiece vocabularies from the files of a Hugging Face folder.
#pragma once

#include <string_view>

#include "text/word_piece.h"

namespace spillway {

// `where` names the folder in messages. Throws kInvalidArgument for bad JSON or fields, and
// kUnsupported for other kinds of tokenizers. The message is one line that names the field.
WordPieceVocabulary word_piece_from_tokenizer_json(std::string_view tokenizer_json,
                                                   std::string_view where);

// Reads vocab.txt, with one piece a line, and tokenizer_config.json (may be empty), the files of
// older models.
WordPieceVocabulary word_piece_from_vocab_txt(std::string_view vocab_txt,
                                              std::string_view tokenizer_config_json,
                                              std::string_view where);

}  // namespace spillway
