// SPDX-License-Identifier: Apache-2.0
// Templates to syntax trees.
#pragma once

#include <string_view>

#include "text/jinja/syntax_tree.h"

namespace spillway::jinja {

// Throws Error(kInvalidArgument) with the line and what is wrong; also for statements that reach
// for other files, and for nesting that would be too deep to evaluate.
Tree parse_template(std::string_view source);

}  // namespace spillway::jinja
