// SPDX-License-Identifier: Apache-2.0
// What clients may call the one model that is served.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace spillway {

// Never changes, so threads may share it.
class ModelNames {
 public:
  // `name` is what answers call it. An alias "*" stands for any name. Throws kInvalidArgument for
  // an empty alias.
  explicit ModelNames(std::string name, const std::vector<std::string>& aliases = {});

  const std::string& name() const { return listed_.front(); }
  // Whether a request for `requested` is one for this model; "" is a request that names none.
  bool accepts(std::string_view requested) const;
  // The name and the aliases, each once, without "*".
  const std::vector<std::string>& listed() const { return listed_; }

 private:
  std::vector<std::string> listed_;
  bool accepts_any_ = false;
};

}  // namespace spillway
