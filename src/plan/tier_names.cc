// SPDX-License-Identifier: Apache-2.0
#include "plan/tier_names.h"

#include <array>

#include "plan/named_value.h"

namespace spillway {
namespace {

constexpr std::array<const char*, kTierCount> kTierNames = {"gpu", "host", "disk"};

}  // namespace

Tier parse_tier(std::string_view text, std::string_view option) {
  return named_value<Tier>(kTierNames, text, option);
}
Tier parse_embeddings(std::string_view text, std::string_view option) {
  return named_value<Tier>(std::span(kTierNames).first(2), text, option);
}
const char* tier_name(Tier tier) { return kTierNames[static_cast<size_t>(tier)]; }

}  // namespace spillway
