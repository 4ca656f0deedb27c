// SPDX-License-Identifier: Apache-2.0
// How deep expressions are nested: what evaluates them is recursive.
#pragma once

#include <cstdint>

#include "text/jinja/syntax_tree.h"

namespace spillway::jinja {

// The largest depth of the expressions right inside; 0 when there are none.
uint32_t depth_inside(const Expression& expression);

}  // namespace spillway::jinja
