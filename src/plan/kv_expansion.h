// SPDX-License-Identifier: Apache-2.0
// Whether layers' KV is swapped on the device, so that it has room for more sequences (Pie, 3.1).
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
