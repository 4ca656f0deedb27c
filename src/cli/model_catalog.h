// SPDX-License-Identifier: Apache-2.0
// Models known by a short name, kept in the user's cache.
#pragma once

#include <string>

namespace spillway {

// "smollm2" becomes its path in the cache; dummy:NAME and paths stay as they are. A path that
// exists wins over a name. Throws kInvalidArgument for a known model that was not fetched yet,
// saying how to, and for what is neither.
std::string resolve_model(const std::string& reference);

}  // namespace spillway
