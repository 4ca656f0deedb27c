// SPDX-License-Identifier: Apache-2.0
// Machines whose memory is in several places: which processors are near which, and memory spread
// over all of them. Asks the kernel directly; on a machine with one node nothing here does
// anything.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

namespace spillway {

// A part of the machine: processors, with memory near them.
struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // ascending, never empty
  bool operator==(const NumaNode&) const = default;
};

// The nodes that have both memory and processors, ascending. Empty where the kernel says nothing
// that makes sense.
std::vector<NumaNode> read_numa_nodes(
    const std::filesystem::path& root = "/sys/devices/system/node");
// What is left of them for `allowed` processors.
std::vector<NumaNode> nodes_within(std::span<const NumaNode> nodes, std::span<const int> allowed);
// Those of this machine that this process may use, asked once. Thread-safe.
const std::vector<NumaNode>& numa_nodes();

// For each of `workers` the processors it should run on: neighbouring workers, which work on
// neighbouring rows, share a node, and nodes get workers by their processors. Empty, for no
// preference, on fewer than two nodes or for one worker.
std::vector<std::vector<int>> spread_over_nodes(int workers, std::span<const NumaNode> nodes);

// Asks that pages of [data, data + bytes) not touched yet come from all nodes in turn, so that
// reading uses every memory controller. A hint: it never fails.
void interleave_memory(void* data, size_t bytes) noexcept;

// While it lives, memory that this thread touches first (pages of mapped files too) comes from all
// nodes in turn.
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
