// SPDX-License-Identifier: Apache-2.0
// Shares a client's turns among its users.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

namespace spillway {

// Does self-clocked fair queueing within a client: clients share by QueueOrder, and however many
// users a client names, they only share what it gets. Not thread-safe.
class UserTurns {
 public:
  struct Turn {
    double value = 0;           // lower ones go first, equal ones in order of arrival
    bool may_overtake = false;  // may overtake earlier requests of the same client
  };
  using Client = std::pair<uint64_t, int>;  // with the priority

  // Called when a request of this cost arrives.
  Turn arrive(Client client, uint64_t user, double cost);
  // Called when the request with this turn begins, or leaves before it began and so costs nothing.
  void began(Client client, double turn);
  void left(Client client, uint64_t user, double cost);

 private:
  struct Queue {
    size_t waiting = 0;
    double clock = 0;  // the turn of the last request that began
    double last = 0;   // the largest turn of any request
    // Each user's last turn; those below the clock are removed.
    std::map<uint64_t, double> users = {};
    size_t clean_at = 64;
  };
  void forget_one(Client client, Queue& queue);

  std::map<Client, Queue> queues_;  // clients with waiting requests
};

}  // namespace spillway
