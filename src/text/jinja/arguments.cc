// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/arguments.h"

#include <algorithm>

#include "base/error.h"
#include "base/printable.h"
#include "text/jinja/compare.h"

namespace spillway::jinja {

Parameters::Parameters(std::string_view function, const Arguments& arguments,
                       std::initializer_list<std::string_view> names)
    : function_(function), names_(names), values_(names.size()), given_(names.size()) {
  SPW_CHECK(arguments.positional.size() <= names.size(), kInvalidArgument,
            "{} takes at most {} arguments, not {}", function, names.size(),
            arguments.positional.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    values_[i] = arguments.positional[i];
    given_[i] = true;
  }
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    SPW_CHECK(found != names_.end(), kInvalidArgument, "{} takes no argument '{}'", function,
              printable(name));
    const auto i = static_cast<size_t>(found - names_.begin());
    SPW_CHECK(!given_[i], kInvalidArgument, "{} is given '{}' twice", function, name);
    values_[i] = value;
    given_[i] = true;
  }
}

const Value& Parameters::value(size_t index) const {
  SPW_CHECK(given_[index], kInvalidArgument, "{} wants the argument '{}'", function_,
            names_[index]);
  return values_[index];
}

Value Parameters::value_or(size_t index, const Value& otherwise) const {
  return given_[index] ? values_[index] : otherwise;
}

const Text& Parameters::text(size_t index) const {
  const Value& found = value(index);
  if (found.is_undefined()) fail_undefined(found);
  SPW_CHECK(found.is_string(), kInvalidArgument, "{} wants a string for '{}', not '{}'", function_,
            names_[index], type_name(found));
  return found.text();
}

int64_t Parameters::integer(size_t index) const {
  const Value& found = value(index);
  if (found.is_undefined()) fail_undefined(found);
  SPW_CHECK(found.is_integral(), kInvalidArgument, "{} wants a whole number for '{}', not '{}'",
            function_, names_[index], type_name(found));
  return found.integer();
}

int64_t Parameters::integer_or(size_t index, int64_t otherwise) const {
  return given_[index] ? integer(index) : otherwise;
}

bool Parameters::flag_or(size_t index, bool otherwise) const {
  return given_[index] ? is_true(values_[index]) : otherwise;
}

}  // namespace spillway::jinja
