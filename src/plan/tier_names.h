// SPDX-License-Identifier: Apache-2.0
// Tiers as plans and options name them.
#pragma once

#include <string_view>

#include "base/tier.h"

namespace spillway {

// "gpu", "host" or "disk"; of embeddings one of the first two. `option` is named in errors.
Tier parse_tier(std::string_view text, std::string_view option);
Tier parse_embeddings(std::string_view text, std::string_view option);
const char* tier_name(Tier tier);

}  // namespace spillway
