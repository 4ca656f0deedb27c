// SPDX-License-Identifier: Apache-2.0
// Of a session: KV memory that more sequences share than would fit, were all as long as they may
// be. Who finds no room waits, and who runs out of it is preempted.
#include <algorithm>

#include "engine/session.h"
#include "plan/memory_fit.h"

namespace spillway {
int64_t Session::sequences_at_once(Room room) const {
  const int64_t planned = plan.sequences.value_or(1);
  const bool expands = options_.placement.kv_expansion != "off" && !device->host_visible();
  // A plan may have been made for more than are asked for now.
  if (room == Room::kWaitedFor && size_.at_once > 0)
    return std::min(size_.at_work(), std::max(planned, run_.at_once));
  if (!expands && room == Room::kForWhole) return planned;
  if (needs_of(runner_size(size_.tokens, planned)).layout.blocks_away() > 0) return planned;
  // Rows of logits of all of them must fit beside the KV, whose size is decided.
  int64_t most = std::max({planned, run_.sequences, run_.at_once});
  const auto has_room = [&] {
    RunSize size = runner_size(size_.tokens, planned);
    size.at_once = most;
    return fit_of(needs_of(size), !device->host_visible(), budgets_).fits();
  };
  while (most > planned && !has_room()) most = planned + (most - planned) / 2;
  return most;
}

}  // namespace spillway
