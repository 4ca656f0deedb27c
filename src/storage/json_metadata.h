// SPDX-License-Identifier: Apache-2.0
// A JSON object as flat keys: {"rope": {"factor": 8}} becomes rope.factor = 8.
#pragma once

#include <string>
#include <string_view>

#include "storage/metadata.h"

namespace spillway {

// Adds every value of the object `text` to `metadata` under `prefix` + its dotted path. Nulls are
// left out. An array of strings, of bools or of numbers is one value; any other array is a
// MixedArray, and what it contains is flattened to key.0, key.1, ... Throws kInvalidArgument for
// text that is not a JSON object or repeats a key.
void flatten_json(std::string_view text, const std::string& label, std::string_view prefix,
                  Metadata& metadata);

}  // namespace spillway
