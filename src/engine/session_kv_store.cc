// SPDX-License-Identifier: Apache-2.0
// Of a session: the KV store behind a runner's pools, and what it is worth by the cost model.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/printable.h"
#include "engine/placement_options.h"
#include "engine/session.h"

namespace spillway {
namespace {

constexpr int32_t kFewestSlots = 16;
// Of prompts of these lengths the cost model is asked: what a token more takes, and one further on.
constexpr int64_t kShort = 256;

}  // namespace

KvCosts Session::kv_costs() const {
  const auto seconds = [&](int64_t prompt) {
    return predict_run({{{.count = 1, .prompt = prompt, .generate = 1}}}, 1).prefill_s;
  };
  // Weights that stream through for a step are paid for whatever is loaded.
  const double one = seconds(kShort), two = seconds(2 * kShort), four = seconds(4 * kShort);
  const auto tokens = static_cast<double>(kShort);
  const double slope = (two - one) / tokens, later_slope = (four - two) / (2 * tokens);
  KvCosts costs;
  costs.token_position_s = std::max(0.0, (later_slope - slope) / (1.5 * tokens));
  costs.token_s = slope - costs.token_position_s * 1.5 * tokens;
  if (costs.token_s <= 0) costs = {.token_s = std::max(later_slope, 1e-9)};
  const Hardware& known = hardware();
  costs.to_device = known.has_device() ? known.to_device.best() : known.host.read_bytes_per_s / 2;
  costs.from_disk = known.disk_read;
  return costs;
}

std::unique_ptr<KvStore> Session::make_kv_store(const KvCache& kv, int64_t context,
                                                KvStoreHost wanted) {
  const KvStoreOptions& options = options_.kv_store;
  // What is no size is an error wherever the device's memory is.
  if (!options.host_size.empty()) parse_memory(options.host_size, "--kv-host-size");
  const bool is_apart = !device->host_visible();
  const bool in_host =
      is_apart && (wanted == KvStoreHost::kWhereApart || !options.host_size.empty());
  if (options.dir.empty() && !in_host) return nullptr;
  if (kv.device_blocks() == 0) {
    if (!options.dir.empty())
      log_warning("--kv-dir: no KV is on {} by this plan, and none is kept", device->info().name);
    return nullptr;
  }
  const uint64_t each = KvStore::slot_bytes(kv.shape());
  std::unique_ptr<BlockFolder> folder;
  if (!options.dir.empty()) {
    folder = BlockFolder::try_open(disk_queue,
                                   {.dir = options.dir,
                                    .block_bytes = static_cast<size_t>(kv.shape().block_bytes()),
                                    .salt = kv_salt(),
                                    .budget_bytes = options.dir_bytes()});
    if (!folder && !in_host) return nullptr;
  }
  // On its way from and to the disk: what a sequence may have, and some of what others write.
  uint64_t slots =
      folder ? static_cast<uint64_t>(blocks_for_tokens(context)) * 4 / 3 + kFewestSlots : 0;
  if (in_host) {
    const auto free = static_cast<uint64_t>(host_memory().available_bytes);
    const uint64_t pool = static_cast<uint64_t>(kv.device_blocks()) * each;
    slots = std::max(slots, options.host_bytes(free, pool) / each);
  }
  // The device refuses what is beyond --host-memory, but knows nothing of what others have of it,
  // or will take in their first step.
  if (budgets_.host_taken > 0 || (is_apart && budgets_.host_is_limited)) {
    uint64_t used = host().usage().total();
    if (is_apart) {
      const Footprint needs = needs_of(runner_size(size_.tokens, size_.sequences));
      used = std::max(used, needs.host.peak_bytes + needs.host_workspace);
    }
    slots = std::min(slots, (budgets_.host - std::min(budgets_.host, used)) / each);
  }
  const size_t found = folder ? folder->blocks().size() : 0;
  for (; slots >= 2; slots -= (slots + 3) / 4) {
    try {
      auto store = std::make_unique<KvStore>(
          kv, *device, host(),
          KvStore::Options{.slots = static_cast<int32_t>(std::min<uint64_t>(slots, 1 << 30)),
                           .costs = kv_costs()},
          std::move(folder));
      log_info("KV beyond the pool: {} of host memory{}", format_bytes(slots * each),
               options.dir.empty() || !store->lasts()
                   ? ""
                   : fmt::format(", and {}, where {} tokens are", printable_path(options.dir),
                                 found * kKvBlockTokens));
      return store;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory) throw;
    }
  }
  log_warning("there is no memory for KV beyond the pool; it is computed again where it is needed");
  return nullptr;
}

}  // namespace spillway
