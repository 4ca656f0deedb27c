// SPDX-License-Identifier: Apache-2.0
// Part of Session: makes the KV stores of a runner, which keep KV blocks that its pools evict, and
// estimates by the cost model what loading from them saves.
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/printable.h"
#include "engine/placement_options.h"
#include "engine/session.h"
#include "plan/link_prices.h"

namespace spillway {
namespace {

constexpr int32_t kFewestSlots = 16;
// The cost model estimates prompts of once, twice and four times this many tokens, to find the time
// of a token and how it grows with the position.
constexpr int64_t kShort = 256;

// A group of layers, and its share of what all groups take together.
struct GroupOfStores {
  StateRule rule = {};
  int64_t blocks = 0;       // blocks of this group that a sequence has
  uint64_t slot_bytes = 0;  // bytes of a slot, which holds one block
  double share = 1;         // share of the bytes of all groups
  std::string salt = {};
};

std::vector<GroupOfStores> groups_of(const KvCache& kv, int64_t context, const std::string& salt) {
  std::vector<GroupOfStores> groups;
  double all = 0;
  for (int i = 0; i < kv.groups(); ++i) {
    GroupOfStores& group = groups.emplace_back();
    group.rule = kv.shape(i).rule;
    group.blocks = group.rule.most_blocks(context, 0);
    group.slot_bytes = KvStore::slot_bytes(kv, i);
    // The salt of the first group has no suffix, so that folders of models with one group are
    // found.
    group.salt = i == 0 ? salt : fmt::format("{} group {}", salt, i);
    group.share = static_cast<double>(group.blocks) * static_cast<double>(group.slot_bytes);
    all += group.share;
  }
  for (GroupOfStores& group : groups) group.share /= all;
  return groups;
}

// Returns this group's part of the bytes that all groups have together.
uint64_t part_of(const GroupOfStores& group, uint64_t bytes) {
  if (group.share == 1) return bytes;
  return static_cast<uint64_t>(group.share * static_cast<double>(bytes));
}

}  // namespace

KvCosts Session::kv_costs() const {
  const auto seconds = [&](int64_t prompt) {
    return predict_run({{{.count = 1, .prompt = prompt, .generate = 1}}}, 1).prefill_s;
  };
  // Only differences between prompts count: weights are streamed for a step whatever KV is loaded.
  const double one = seconds(kShort), two = seconds(2 * kShort), four = seconds(4 * kShort);
  const auto tokens = static_cast<double>(kShort);
  const double slope = (two - one) / tokens, later_slope = (four - two) / (2 * tokens);
  KvCosts costs;
  costs.token_position_s = std::max(0.0, (later_slope - slope) / (1.5 * tokens));
  costs.token_s = slope - costs.token_position_s * 1.5 * tokens;
  if (costs.token_s <= 0) costs = {.token_s = std::max(later_slope, 1e-9)};
  const Hardware& known = hardware();
  costs.to_device =
      known.has_device() ? LinkPrices(known).most_up_per_s() : known.host.read_bytes_per_s / 2;
  costs.from_disk = known.disk_read;
  return costs;
}

std::vector<std::unique_ptr<KvStore>> Session::make_kv_stores(const KvCache& kv, int64_t context,
                                                              KvStoreHost wanted) {
  const KvStoreOptions& options = options_.kv_store;
  // An invalid size is an error even if the device has no memory of its own.
  if (!options.host_size.empty()) parse_memory(options.host_size, "--kv-host-size");
  const bool is_discrete = !device->host_visible();
  const bool in_host =
      is_discrete && (wanted == KvStoreHost::kWhereDiscrete || !options.host_size.empty());
  if (options.dir.empty() && !in_host) return {};
  if (kv.device_blocks() == 0) {
    if (!options.dir.empty())
      log_warning("--kv-dir: no KV is on {} by this plan, and none is kept", device->info().name);
    return {};
  }
  const std::vector<GroupOfStores> groups = groups_of(kv, context, kv_salt());
  uint64_t pool_bytes = 0;
  for (int i = 0; i < kv.groups(); ++i)
    pool_bytes +=
        static_cast<uint64_t>(kv.device_blocks(i)) * groups[static_cast<size_t>(i)].slot_bytes;
  std::vector<std::unique_ptr<BlockFolder>> folders(groups.size());
  const uint64_t dir_bytes = options.dir.empty() ? 0 : options.dir_bytes();
  for (size_t i = 0; i < groups.size() && !options.dir.empty(); ++i) {
    BlockFolderOptions folder{
        .dir = options.dir,
        .block_bytes = static_cast<size_t>(kv.block_bytes(static_cast<int>(i))),
        .salt = groups[i].salt,
        .budget_bytes = dir_bytes};
    folder.share = groups[i].share;
    for (size_t other = 0; other < groups.size(); ++other)
      if (other != i)
        folder.kin.push_back(
            {static_cast<size_t>(kv.block_bytes(static_cast<int>(other))), groups[other].salt});
    folders[i] = BlockFolder::try_open(disk_queue, folder);
    if (folders[i]) continue;
    if (!in_host) return {};
    folders.clear();
    folders.resize(groups.size());
    break;
  }
  const auto free = static_cast<uint64_t>(host_memory().available_bytes);
  const uint64_t host_bytes = in_host ? options.host_bytes(free, pool_bytes) : 0;
  // The device refuses allocations beyond --host-memory, but knows nothing of what other parts of
  // the program have of it, or will take in their first step.
  std::optional<uint64_t> most_bytes;
  if (budgets_.host_taken > 0 || (is_discrete && budgets_.host_is_limited)) {
    uint64_t used = host().usage().total();
    if (is_discrete) {
      const Footprint& needs = resolved_.needs;
      used = std::max(used, needs.host.peak_bytes + needs.host_workspace);
    }
    most_bytes = budgets_.host - std::min(budgets_.host, used);
  }
  const KvCosts costs = kv_costs();
  double part_bytes = 0;
  for (int i = 0; i < kv.groups(); ++i)
    if (kv.shape(i).rule.is_paged()) part_bytes += static_cast<double>(kv.block_bytes(i));
  std::vector<std::unique_ptr<KvStore>> stores;
  uint64_t bytes = 0;
  size_t found = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    const GroupOfStores& group = groups[i];
    if (i == 0 && folders[i]) found = folders[i]->blocks().size();
    // Slots for blocks on their way from and to the disk: those of one sequence, and some for
    // blocks that other sequences write.
    uint64_t slots = folders[i] ? static_cast<uint64_t>(group.blocks) * 4 / 3 + kFewestSlots : 0;
    if (in_host) slots = std::max(slots, part_of(group, host_bytes) / group.slot_bytes);
    if (most_bytes) slots = std::min(slots, part_of(group, *most_bytes) / group.slot_bytes);
    const KvStore::Options of{.costs = costs,
                              .group = static_cast<int>(i),
                              .rule = group.rule,
                              .part_bytes = group.rule.is_paged() ? part_bytes : 0};
    auto store = try_make_store(kv, of, slots, folders[i]);
    if (!store) {
      log_warning(
          "there is no memory for KV beyond the pool; it is computed again where it is needed");
      return {};
    }
    bytes += static_cast<uint64_t>(store->slots()) * group.slot_bytes;
    stores.push_back(std::move(store));
  }
  log_info("KV beyond the pool: {} of host memory{}", format_bytes(bytes),
           options.dir.empty() || !stores[0]->lasts()
               ? ""
               : fmt::format(", and {}, where {} tokens are", printable_path(options.dir),
                             found * kKvBlockTokens));
  return stores;
}

// Tries with fewer slots if there is no memory for as many.
std::unique_ptr<KvStore> Session::try_make_store(const KvCache& kv, KvStore::Options options,
                                                 uint64_t slots,
                                                 std::unique_ptr<BlockFolder>& folder) {
  for (; slots >= 2; slots -= (slots + 3) / 4) {
    options.slots = static_cast<int32_t>(std::min<uint64_t>(slots, 1 << 30));
    try {
      return std::make_unique<KvStore>(kv, *transfers, host(), options, std::move(folder));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory) throw;
    }
  }
  return nullptr;
}

}  // namespace spillway
