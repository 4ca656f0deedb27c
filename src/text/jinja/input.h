// SPDX-License-Identifier: Apache-2.0
// JSON as values of a template.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

#include "text/jinja/heap.h"

namespace spillway::jinja {

// Strings are not copied: `json` must outlive the heap. All strings are of `origin`, but members
// `role` with one of `trusted_roles` are the template's. Throws Error(kInvalidArgument) for what is
// nested too deeply, and for integers of more than 64 bits.
Value from_json(Heap& heap, const nlohmann::ordered_json& json, Origin origin,
                std::span<const std::string_view> trusted_roles);

}  // namespace spillway::jinja
