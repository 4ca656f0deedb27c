// SPDX-License-Identifier: Apache-2.0
// Names tiers as plans and options do.
#pragma once

#include <string_view>

#include "base/tier.h"

namespace spillway {

// Read "gpu", "host" or "disk"; parse_embeddings() accepts only the first two. Errors name
// `option`.
Tier parse_tier(std::string_view text, std::string_view option);
Tier parse_embeddings(std::string_view text, std::string_view option);
const char* tier_name(Tier tier);

}  // namespace spillway
