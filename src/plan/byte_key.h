// SPDX-License-Identifier: Apache-2.0
// Builds keys for caches of a search: everything that decides a result, as bytes. Keys are for maps
// in memory only, because their bytes are in this processor's format.
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "plan/plan.h"
#include "plan/weight_plan.h"

namespace spillway {

class ByteKey {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void add(T value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value)); }
  template <class... T>
  void add_all(T... values) {
    (add(values), ...);
  }
  void add(const std::string& text) {
    add(text.size());
    bytes_ += text;
  }
  void add(const TierShares& shares) { add_all(shares.device, shares.host, shares.disk); }
  void add(const WeightPlan& plan) {
    add(plan.shares);
    add_all(plan.embeddings, plan.overrides.size());
    for (const WeightOverride& entry : plan.overrides) {
      add(entry.layers.size());
      for (const LayerRange& range : entry.layers) add_all(range.first, range.last);
      add(entry.matrix);
      add(entry.home);
    }
  }
  void add(const CpuLinearShare& share) {
    add_all(share.tokens, share.share, share.modules.size());
    for (const auto& [op, of] : share.modules) {
      add(op);
      add(of);
    }
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

}  // namespace spillway
