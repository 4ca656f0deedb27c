// SPDX-License-Identifier: Apache-2.0
// How many layers are swapped: their KV lives in host memory and is on the device only for their
// part of a step, so that the device has room for more sequences (Pie, 3.1). The paper's expansion
// is the ratio n / (n - m), for n layers of which m are swapped.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace spillway {

struct KvExpansion {
  // This many layers are swapped from the first step on. Nothing: the run finds out how many are
  // good, up to RunSize::most_swapped.
  std::optional<int> layers = 0;

  bool adapts() const { return !layers.has_value(); }
  bool operator==(const KvExpansion&) const = default;
};

// Reads "off", "auto" or a number of layers. `option` is named in errors (kInvalidArgument).
KvExpansion parse_kv_expansion(std::string_view text, std::string_view option);
// Returns the text that parse_kv_expansion() reads.
std::string kv_expansion_text(const KvExpansion& expansion);

}  // namespace spillway
