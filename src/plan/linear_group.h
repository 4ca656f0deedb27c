// SPDX-License-Identifier: Apache-2.0
// The linear ops of a layer: matrices that are multiplied with the same input.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "model/weight_slots.h"

namespace spillway {

// In order.
enum class LinearGroup : uint8_t {
  kProject,       // q, k and v
  kAttentionOut,  //
  kUp,            // with the gate, where there is one
  kDown,          //
  kHead,          // behind the last layer
};
inline constexpr int kLinearGroups = 5;

// Throws kInternal for a role that is no matrix of these.
LinearGroup group_of(WeightRole role);
// As plans have it: "qkv", "out", "up", "down", "head".
const char* linear_group_name(LinearGroup group);
std::optional<LinearGroup> try_parse_linear_group(std::string_view name);

}  // namespace spillway
