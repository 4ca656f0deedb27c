// SPDX-License-Identifier: Apache-2.0
#include "cli/value_check.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <utility>
#include <vector>

namespace spillway {
namespace {

template <class Validator>
ValueCheck check_of(Validator validator, std::string placeholder = "") {
  return ValueCheck(std::make_shared<const CLI::Validator>(std::move(validator)),
                    std::move(placeholder));
}

}  // namespace

ValueCheck::ValueCheck(std::function<std::string(const std::string&)> problem,
                       const std::string& placeholder)
    : validator_(std::make_shared<const CLI::Validator>(
          [problem = std::move(problem)](std::string& value) { return problem(value); },
          placeholder)),
      placeholder_(placeholder) {}

ValueCheck in_range(int low, int high) { return check_of(CLI::Range(low, high)); }
ValueCheck in_range(double low, double high) { return check_of(CLI::Range(low, high)); }
ValueCheck positive_number() { return check_of(CLI::PositiveNumber); }

ValueCheck one_of(std::initializer_list<std::string> values) {
  return check_of(CLI::IsMember(std::vector<std::string>(values)),
                  fmt::format("{}", fmt::join(values, "|")));
}

ValueCheck not_negative() {
  return ValueCheck([](const std::string& value) {
    return value.starts_with('-') ? "is " + value + "; give 0 or more" : std::string();
  });
}

ValueCheck not_empty() {
  return ValueCheck([](const std::string& value) {
    return value.empty() ? "is empty; give some text" : std::string();
  });
}

}  // namespace spillway
