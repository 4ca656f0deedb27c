// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <string_view>

namespace spillway {

void fail_assertion(const char* condition, const char* file, int line) {
  std::string_view name(file);
  if (const auto slash = name.rfind("src/"); slash != std::string_view::npos)
    name.remove_prefix(slash);
  fail(ErrorCode::kInternal, "internal error: {} does not hold ({}:{}); please report it",
       condition, name, line);
}

}  // namespace spillway
