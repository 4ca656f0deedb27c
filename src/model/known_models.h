// SPDX-License-Identifier: Apache-2.0
// The shapes of published models, for dummy:NAME and for planning.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/transformer_shape.h"

namespace spillway {

// Finds "opt-30b", "llama-2-7b", "gpt-3", ...; nullopt for a name that is not in the table.
[[nodiscard]] std::optional<TransformerShape> try_known_model(std::string_view name);
std::vector<std::string> known_model_names();

}  // namespace spillway
