// SPDX-License-Identifier: Apache-2.0
// Converts JSON into values of a template.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

#include "text/jinja/heap.h"

namespace spillway::jinja {

// Strings are not copied, so `json` must outlive the heap. All strings get `origin`, except that a
// member `role` whose text is one of `trusted_roles` counts as written in the template. Throws
// Error(kInvalidArgument) for values nested too deeply and integers of more than 64 bits.
Value from_json(Heap& heap, const nlohmann::ordered_json& json, Origin origin,
                std::span<const std::string_view> trusted_roles);

}  // namespace spillway::jinja
