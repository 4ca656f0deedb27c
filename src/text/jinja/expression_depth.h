// SPDX-License-Identifier: Apache-2.0
// Computes how deep expressions are nested, which is limited because evaluation is recursive.
#pragma once

#include <cstdint>

#include "text/jinja/syntax_tree.h"

namespace spillway::jinja {

// Returns the largest depth of the direct subexpressions; 0 if there are none.
uint32_t depth_inside(const Expression& expression);

}  // namespace spillway::jinja
