// SPDX-License-Identifier: Apache-2.0
// Checks of option values, with readable messages.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

namespace CLI {
class Validator;
}

namespace spillway {

// A check of one value as it was typed. Help shows `placeholder`, if not empty, for the value.
// Copies share the validator.
class ValueCheck {
 public:
  // `problem` returns what is wrong with a value, or "" for a good one.
  explicit ValueCheck(std::function<std::string(const std::string&)> problem,
                      const std::string& placeholder = "");
  explicit ValueCheck(std::shared_ptr<const CLI::Validator> validator, std::string placeholder = "")
      : validator_(std::move(validator)), placeholder_(std::move(placeholder)) {}

  const CLI::Validator& validator() const { return *validator_; }
  const std::string& placeholder() const { return placeholder_; }

 private:
  std::shared_ptr<const CLI::Validator> validator_;
  std::string placeholder_;
};

// These accept numbers from `low` to `high`, both included.
ValueCheck in_range(int low, int high);
ValueCheck in_range(double low, double high);
ValueCheck positive_number();
ValueCheck one_of(std::initializer_list<std::string> values);
ValueCheck not_negative();
ValueCheck not_empty();

}  // namespace spillway
