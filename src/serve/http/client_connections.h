// SPDX-License-Identifier: Apache-2.0
// Counts the open connections of each client.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace spillway {

// Thread-safe. It may be destroyed before the places that it gave out.
class ClientConnections {
 public:
  // `most` is the limit per client; 0: any number.
  explicit ClientConnections(size_t most) : most_(most), counts_(std::make_shared<Counts>()) {}

  // Counts a connection of `client`, which is any text that identifies it, while the result is
  // held; returns null if the client has as many as it may have.
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
