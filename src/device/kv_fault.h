// SPDX-License-Identifier: Apache-2.0
// A number that the KV cache could not hold.
#pragma once

#include <cstdint>
#include <optional>

#include "tensor/kv_format.h"

namespace spillway {

// A key or value of a layer that was a number, and NaN in its page (KvStored::kBeyondRange).
struct KvFault {
  int layer = 0;
  KvPart part = KvPart::kKeys;
  // Not the page is too narrow, but what the device computes with: no KV type helps.
  bool in_activations = false;

  // As one word that many threads may report, of which the first stays; 0 is none.
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
