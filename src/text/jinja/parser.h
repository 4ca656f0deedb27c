// SPDX-License-Identifier: Apache-2.0
// Parses templates into syntax trees.
#pragma once

#include <string_view>

#include "text/jinja/syntax_tree.h"

namespace spillway::jinja {

// Throws Error(kInvalidArgument) with the line and the reason, also for statements that would read
// other files and for nesting that is too deep to evaluate.
Tree parse_template(std::string_view source);

}  // namespace spillway::jinja
