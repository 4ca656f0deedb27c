// SPDX-License-Identifier: Apache-2.0
// Whose turn it is among the users of one client, who share what the client gets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

namespace spillway {

// Self-clocked fair queueing inside a queue's place: clients share by QueueOrder, and however many
// users a client names, they only share what it gets. Not thread-safe.
class UserTurns {
 public:
  struct Turn {
    double value = 0;     // lower ones go first, equal ones as they came
    bool passes = false;  // maybe somebody of the same client who came before
  };
  using Client = std::pair<uint64_t, int>;  // and the priority

  // One comes that costs so much.
  Turn arrive(Client client, uint64_t user, double cost);
  // The one with this turn begins, or left before it did: then it cost nothing.
  void began(Client client, double turn);
  void left(Client client, uint64_t user, double cost);

 private:
  struct Queue {
    size_t waiting = 0;
    double clock = 0;                       // the turn of the last that began
    double last = 0;                        // of all
    std::map<uint64_t, double> users = {};  // the last of each; those behind the clock go
    size_t clean_at = 64;
  };
  void forget_one(Client client, Queue& queue);

  std::map<Client, Queue> queues_;  // where somebody waits
};

}  // namespace spillway
