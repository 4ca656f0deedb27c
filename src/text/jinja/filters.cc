// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/filters.h"

#include "base/error.h"
#include "base/printable.h"

namespace spillway::jinja {
namespace {

Filter find_filter(std::string_view name) {
  for (const FilterTable* table :
       {&text_filters(), &value_filters(), &list_filters(), &selecting_filters()}) {
    const auto found = table->find(name);
    if (found != table->end()) return found->second;
  }
  return nullptr;
}

}  // namespace

Value apply_filter(Heap& heap, std::string_view name, const Value& input,
                   const Arguments& arguments) {
  heap.charge_steps(1);
  const Filter filter = find_filter(name);
  SPW_CHECK(filter != nullptr, kInvalidArgument, "there is no filter '{}'", printable(name, 60));
  return filter(heap, input, arguments);
}

bool filter_exists(std::string_view name) { return find_filter(name) != nullptr; }

}  // namespace spillway::jinja
