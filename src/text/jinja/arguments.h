// SPDX-License-Identifier: Apache-2.0
// Matches the arguments of a call to the parameters of a built-in function.
#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace spillway::jinja {

class Parameters {
 public:
  // Throws Error(kInvalidArgument) for arguments that `function` does not take or that are given
  // twice.
  Parameters(std::string_view function, const Arguments& arguments,
             std::initializer_list<std::string_view> names);

  bool has(size_t index) const { return given_[index]; }
  // The accessors throw Error(kInvalidArgument) for an argument that is missing or of another type.
  const Value& value(size_t index) const;
  Value value_or(size_t index, const Value& otherwise) const;
  const Text& text(size_t index) const;
  int64_t integer(size_t index) const;
  int64_t integer_or(size_t index, int64_t otherwise) const;
  bool flag_or(size_t index, bool otherwise) const;  // takes any value, by its truth

 private:
  std::string_view function_;
  std::vector<std::string_view> names_;
  std::vector<Value> values_;
  std::vector<bool> given_;
};

}  // namespace spillway::jinja
