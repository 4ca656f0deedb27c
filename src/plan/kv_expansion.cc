// SPDX-License-Identifier: Apache-2.0
#include "plan/kv_expansion.h"

#include <charconv>

#include "base/error.h"
#include "base/printable.h"

namespace spillway {

KvExpansion parse_kv_expansion(std::string_view text, std::string_view option) {
  if (text == "auto") return {.layers = std::nullopt};
  if (text == "off") return {};
  int layers = -1;
  const char* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, layers);
  SPW_CHECK(error == std::errc() && last == end && layers >= 0, kInvalidArgument,
            "{} is '{}'; give auto, off, or the number of swapped layers", option, printable(text));
  return {.layers = layers};
}

std::string kv_expansion_text(const KvExpansion& expansion) {
  if (expansion.adapts()) return "auto";
  return *expansion.layers == 0 ? "off" : std::to_string(*expansion.layers);
}

}  // namespace spillway
