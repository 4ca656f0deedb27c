// SPDX-License-Identifier: Apache-2.0
#include "base/numa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "base/cpu_list.h"

namespace spillway {
namespace {

// These are from linux/mempolicy.h, which is not installed on every system.
constexpr int kPolicyDefault = 0, kPolicyInterleave = 3;
constexpr int kMaxNodes = 1024;

std::optional<std::vector<int>> try_read_list(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return try_parse_cpu_list(text);
}

// A mask with a bit set for each of numa_nodes().
struct NodeMask {
  unsigned long words[kMaxNodes / (8 * sizeof(unsigned long))] = {};
  NodeMask() {
    constexpr int kBits = 8 * sizeof(unsigned long);
    for (const NumaNode& node : numa_nodes()) {
      if (node.id < kMaxNodes) words[node.id / kBits] |= 1UL << (node.id % kBits);
    }
  }
};

}  // namespace

std::vector<NumaNode> read_numa_nodes(const std::filesystem::path& root) {
  const auto online = try_read_list(root / "online");
  if (!online) return {};
  const auto with_memory = try_read_list(root / "has_memory");
  std::vector<NumaNode> nodes;
  for (const int id : *online) {
    const bool memory = !with_memory || std::find(with_memory->begin(), with_memory->end(), id) !=
                                            with_memory->end();
    auto cpus = try_read_list(root / ("node" + std::to_string(id)) / "cpulist");
    if (!memory || !cpus || cpus->empty()) continue;
    std::sort(cpus->begin(), cpus->end());
    nodes.push_back({id, std::move(*cpus)});
  }
  std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return nodes;
}

std::vector<NumaNode> nodes_within(std::span<const NumaNode> nodes, std::span<const int> allowed) {
  std::vector<NumaNode> left;
  for (const NumaNode& node : nodes) {
    NumaNode kept{node.id, {}};
    for (const int cpu : node.cpus) {
      if (std::find(allowed.begin(), allowed.end(), cpu) != allowed.end()) kept.cpus.push_back(cpu);
    }
    if (!kept.cpus.empty()) left.push_back(std::move(kept));
  }
  return left;
}

const std::vector<NumaNode>& numa_nodes() {
  static const std::vector<NumaNode> nodes = nodes_within(read_numa_nodes(), allowed_cpus());
  return nodes;
}

std::vector<std::vector<int>> spread_over_nodes(int workers, std::span<const NumaNode> nodes) {
  if (nodes.size() < 2 || workers < 2) return {};
  size_t cpus = 0;
  for (const NumaNode& node : nodes) cpus += node.cpus.size();
  std::vector<std::vector<int>> placed;
  size_t before = 0;
  for (const NumaNode& node : nodes) {
    before += node.cpus.size();
    // Worker i goes to the node in which its share of the processors ends.
    const size_t until = (static_cast<size_t>(workers) * before + cpus / 2) / cpus;
    while (placed.size() < until) placed.push_back(node.cpus);
  }
  return placed;
}

void interleave_memory(void* data, size_t bytes) noexcept {
  if (numa_nodes().size() < 2) return;
  const NodeMask mask;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  if (begin >= end) return;
  // The kernel reads one bit less than the length that it is given.
  static_cast<void>(syscall(SYS_mbind, begin, end - begin, kPolicyInterleave, mask.words,
                            static_cast<unsigned long>(kMaxNodes) + 1, 0U));
}

InterleavedFaults::InterleavedFaults() noexcept {
  if (numa_nodes().size() < 2) return;
  const NodeMask mask;
  active_ = syscall(SYS_set_mempolicy, kPolicyInterleave, mask.words,
                    static_cast<unsigned long>(kMaxNodes) + 1) == 0;
}

InterleavedFaults::~InterleavedFaults() {
  if (active_) static_cast<void>(syscall(SYS_set_mempolicy, kPolicyDefault, nullptr, 0UL));
}

}  // namespace spillway
