// SPDX-License-Identifier: Apache-2.0
#include "schedule/user_turns.h"

#include <algorithm>

namespace spillway {

UserTurns::Turn UserTurns::arrive(Client client, uint64_t user, double cost) {
  Queue& queue = queues_[client];
  ++queue.waiting;
  double& last = queue.users[user];
  last = std::max(queue.clock, last) + cost;
  const Turn turn{.value = last, .may_overtake = last < queue.last};
  queue.last = std::max(queue.last, last);
  if (queue.users.size() > queue.clean_at) {
    std::erase_if(queue.users, [&](const auto& entry) { return entry.second <= queue.clock; });
    queue.clean_at = std::max<size_t>(64, 2 * queue.users.size());
  }
  return turn;
}

void UserTurns::began(Client client, double turn) {
  const auto found = queues_.find(client);
  if (found == queues_.end()) return;
  found->second.clock = std::max(found->second.clock, turn);
  forget_one(client, found->second);
}

void UserTurns::left(Client client, uint64_t user, double cost) {
  const auto found = queues_.find(client);
  if (found == queues_.end()) return;
  const auto last = found->second.users.find(user);
  if (last != found->second.users.end()) last->second -= cost;
  forget_one(client, found->second);
}

void UserTurns::forget_one(Client client, Queue& queue) {
  if (--queue.waiting == 0) queues_.erase(client);
}

}  // namespace spillway
