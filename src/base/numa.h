// SPDX-License-Identifier: Apache-2.0
// Support for machines with several NUMA nodes: which processors are near which memory, and memory
// spread over all nodes. Asks the kernel directly; on a machine with one node nothing here does
// anything.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

namespace spillway {

// A part of the machine: processors with the memory near them.
struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // ascending, never empty
  bool operator==(const NumaNode&) const = default;
};

// Returns the nodes that have both memory and processors, ascending. Empty if the kernel gives no
// usable answer.
std::vector<NumaNode> read_numa_nodes(
    const std::filesystem::path& root = "/sys/devices/system/node");
// Returns `nodes` with only the `allowed` processors, without nodes that have none of these.
std::vector<NumaNode> nodes_within(std::span<const NumaNode> nodes, std::span<const int> allowed);
// Returns the nodes of this machine that this process may use; they are read once. Thread-safe.
const std::vector<NumaNode>& numa_nodes();

// Returns for each of `workers` the processors that it should run on: neighbouring workers, which
// work on neighbouring rows, share a node, and each node gets workers in proportion to its
// processors. Empty, for no preference, with fewer than two nodes or workers.
std::vector<std::vector<int>> spread_over_nodes(int workers, std::span<const NumaNode> nodes);

// Asks the kernel to take pages of [data, data + bytes) that were not touched yet from all nodes in
// turn, so that reading them uses every memory controller. It is only a hint and never fails.
void interleave_memory(void* data, size_t bytes) noexcept;

// While an object of this class lives, memory that this thread touches first (including pages of
// mapped files) comes from all nodes in turn.
class InterleavedFaults {
 public:
  InterleavedFaults() noexcept;
  ~InterleavedFaults();
  InterleavedFaults(const InterleavedFaults&) = delete;
  InterleavedFaults& operator=(const InterleavedFaults&) = delete;

 private:
  bool active_ = false;
};

}  // namespace spillway
