// SPDX-License-Identifier: Apache-2.0
// A number that the KV cache could not hold.
#pragma once

#include <cstdint>
#include <optional>

#include "tensor/kv_format.h"

namespace spillway {

// Names a layer whose key or value was a number but became NaN in its page
// (KvStored::kBeyondRange).
struct KvFault {
  int layer = 0;
  KvPart part = KvPart::kKeys;
  // If true, the device's activations overflowed, not the page's type: no KV type helps.
  bool in_activations = false;

  // The fault as one word, which many threads may report and of which the first stays; 0 means
  // none.
  constexpr uint32_t word() const {
    return 1U + (static_cast<uint32_t>(layer) << 2 | static_cast<uint32_t>(part) << 1 |
                 (in_activations ? 1U : 0U));
  }
  static constexpr std::optional<KvFault> from_word(uint32_t word) {
    if (word == 0) return std::nullopt;
    const uint32_t bits = word - 1;
    return KvFault{static_cast<int>(bits >> 2), static_cast<KvPart>(bits >> 1 & 1),
                   (bits & 1) != 0};
  }
};

}  // namespace spillway
