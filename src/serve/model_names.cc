// SPDX-License-Identifier: Apache-2.0
#include "serve/model_names.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace spillway {

ModelNames::ModelNames(std::string name, const std::vector<std::string>& aliases)
    : listed_{std::move(name)} {
  for (const std::string& alias : aliases) {
    SPW_CHECK(!alias.empty(), kInvalidArgument, "--alias is empty; give a name, or '*' for any");
    if (alias == "*") {
      accepts_any_ = true;
    } else if (std::ranges::find(listed_, alias) == listed_.end()) {
      listed_.push_back(alias);
    }
  }
}

bool ModelNames::accepts(std::string_view requested) const {
  return requested.empty() || accepts_any_ ||
         std::ranges::find(listed_, requested) != listed_.end();
}

}  // namespace spillway
