// SPDX-License-Identifier: Apache-2.0
// Flattens a JSON object into keys: {"rope": {"factor": 8}} becomes rope.factor = 8.
#pragma once

#include <string>
#include <string_view>

#include "storage/metadata.h"

namespace spillway {

// Adds every value of the object `text` to `metadata`, keyed by `prefix` and its dotted path. Nulls
// are left out. An array of only strings, bools or numbers becomes one value; any other array
// becomes a MixedArray, and its contents are flattened to key.0, key.1, ... Throws kInvalidArgument
// for text that is not a JSON object or repeats a key.
void flatten_json(std::string_view text, const std::string& label, std::string_view prefix,
                  Metadata& metadata);

}  // namespace spillway
