// SPDX-License-Identifier: Apache-2.0
// How many connections each client has open.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace spillway {

// Thread-safe. It may be destroyed before what it has given out.
class ClientConnections {
 public:
  // 0: any number.
  explicit ClientConnections(size_t most) : most_(most), counts_(std::make_shared<Counts>()) {}

  // Counts a connection of this client, which any text may name, as long as the result is held;
  // null where there are as many as there may be.
  using Place = std::shared_ptr<const void>;
  [[nodiscard]] Place try_take(const std::string& client);

  size_t most() const { return most_; }

 private:
  struct Counts {
    std::mutex mutex;
    std::unordered_map<std::string, size_t> by_client;
  };
  size_t most_;
  std::shared_ptr<Counts> counts_;
};

}  // namespace spillway
