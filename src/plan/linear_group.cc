// SPDX-License-Identifier: Apache-2.0
#include "plan/linear_group.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace spillway {
namespace {

constexpr const char* kNames[kLinearGroups] = {"qkv", "out", "up", "down", "head"};

}  // namespace

LinearGroup group_of(WeightRole role) {
  switch (role) {
    case WeightRole::kQuery:
    case WeightRole::kKey:
    case WeightRole::kValue:
      return LinearGroup::kProject;
    case WeightRole::kAttentionOut:
      return LinearGroup::kAttentionOut;
    case WeightRole::kGate:
    case WeightRole::kUp:
      return LinearGroup::kUp;
    case WeightRole::kDown:
      return LinearGroup::kDown;
    case WeightRole::kHead:
      return LinearGroup::kHead;
    default:
      fail(ErrorCode::kInternal, "internal error: weight role {} is no linear layer's",
           static_cast<int>(role));
  }
}

const char* linear_group_name(LinearGroup group) { return kNames[static_cast<size_t>(group)]; }

std::optional<LinearGroup> try_parse_linear_group(std::string_view name) {
  const auto* const found = std::ranges::find(kNames, name);
  if (found == std::end(kNames)) return std::nullopt;
  return static_cast<LinearGroup>(found - std::begin(kNames));
}

}  // namespace spillway
