// SPDX-License-Identifier: Apache-2.0
// The functions every chat template can call.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/heap.h"

namespace spillway::jinja {

// Told apart from other errors: its message is the template's own.
struct TemplateRefusal {
  std::string message;
};

// range, dict, namespace, cycler, joiner, raise_exception (which throws TemplateRefusal) and
// strftime_now, which tells `now` or, without it, the local time. Nothing for other names.
[[nodiscard]] std::optional<Value> try_global(Heap& heap, std::string_view name,
                                              const std::optional<std::tm>& now);

}  // namespace spillway::jinja
