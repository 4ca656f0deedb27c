// SPDX-License-Identifier: Apache-2.0
#include "serve/http/client_connections.h"

namespace spillway {
ClientConnections::Place ClientConnections::try_take(const std::string& client) {
  const std::lock_guard lock(counts_->mutex);
  size_t& count = counts_->by_client[client];
  if (most_ > 0 && count >= most_) return nullptr;
  ++count;
  // The pointer is never dereferenced; it only must not be null.
  return {counts_.get(), [counts = counts_, client](const void*) {
            const std::lock_guard guard(counts->mutex);
            const auto found = counts->by_client.find(client);
            if (--found->second == 0) counts->by_client.erase(found);
          }};
}

}  // namespace spillway
