// SPDX-License-Identifier: Apache-2.0
// The names that clients may use for the served model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace spillway {

// Immutable, so threads may share it.
class ModelNames {
 public:
  // `name` is the model's name in answers. An alias "*" stands for any name. Throws
  // kInvalidArgument for an empty alias.
  explicit ModelNames(std::string name, const std::vector<std::string>& aliases = {});

  const std::string& name() const { return listed_.front(); }
  // Returns whether a request for `requested` is for this model; "" means that the request names
  // none.
  bool accepts(std::string_view requested) const;
  // Returns the name and the aliases, each once, without "*".
  const std::vector<std::string>& listed() const { return listed_; }

 private:
  std::vector<std::string> listed_;
  bool accepts_any_ = false;
};

}  // namespace spillway
