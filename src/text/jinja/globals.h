// SPDX-License-Identifier: Apache-2.0
// Implements the functions that every chat template can call.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/heap.h"

namespace spillway::jinja {

// Thrown by raise_exception. It is a type of its own because its message is the template's.
struct TemplateRefusal {
  std::string message;
};

// Returns range, dict, namespace, cycler, joiner, raise_exception (which throws TemplateRefusal) or
// strftime_now, which formats `now` or, if that is not set, the local time. Returns nullopt for
// other names.
[[nodiscard]] std::optional<Value> try_global(Heap& heap, std::string_view name,
                                              const std::optional<std::tm>& now);

}  // namespace spillway::jinja
