// SPDX-License-Identifier: Apache-2.0
// The indices that the kernels of a step read, in device memory: one upload per step.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cuda/cuda_handles.h"
#include "cuda/kernel_args.h"
#include "device/device.h"
#include "tensor/state_rule.h"

namespace spillway::cuda {

// What of a step decides which kernels run and where their arguments lie: steps that are equal in
// this and in their program can be replayed for each other.
struct StepShape {
  int32_t tokens = 0;
  int32_t sequences = 0;
  int32_t decoding = 0;    // of the sequences: with one row; they come first in the BatchView
  int32_t generating = 0;  // of these: with a row that generates; they come first of all
  int32_t logit_rows = 0;
  int32_t max_rows = 0;   // of a sequence in this step
  int32_t max_parts = 0;  // of 256 tokens, of the longest sequence, rounded up to a power of two
  bool values_at_home = false;  // of some sequence (SequenceSpan::home)
  bool operator==(const StepShape&) const = default;
  auto operator<=>(const StepShape&) const = default;
};

// The shapes of a step's further spans, such as those of further groups of layers.
using OtherShapes = std::array<StepShape, kMostStateGroups - 1>;

inline constexpr int kPartTokens = 256;  // attention splits KV at its multiples

// Sequences of a step, and of each the positions that its table covers.
struct PlacedBatch {
  BatchView view;
  const int32_t* covered = nullptr;
};

// Owns pinned memory and its copy on the device, both growing to the largest step. Used from one
// thread.
class StepTables {
 public:
  StepTables(Device& device, cudaStream_t stream) : device_(device), stream_(stream) {}

  // Copies the batch's arrays, in stream order.
  StepShape upload(const StepBatch& batch);
  // Those of the step at hand; nullopt where it has more of them than groups of layers bring.
  std::optional<OtherShapes> try_other_shapes() const;
  // Forgets them: the spans may be gone.
  void end_step() {
    count_ = 0;
    planes_ = {};
  }

  // Where `values` lies on the device: of the step at hand, or uploaded now, until the next such.
  const int32_t* device_of(std::span<const int32_t> values);
  // Where a launch that may be recorded finds what kv.k and kv.v are; null where the step at hand
  // does not say where KV is.
  const KvPlanes* planes_of(const KvLayerView& kv) const;
  // Of the step at hand, or uploaded now; sequences with one row first, and of these the
  // generating.
  PlacedBatch device_of(std::span<const SequenceSpan> spans, StepShape& shape);

  // Changes when the memory moves: what was recorded with the old addresses is void.
  uint64_t generation() const { return generation_; }

 private:
  struct Known {
    const void* host;
    size_t count;
    size_t offset;  // in elements
  };
  void reserve(size_t elements);
  void remember(const void* host, size_t count, size_t offset);
  std::optional<size_t> try_find(const void* host, size_t count) const;
  size_t append(std::span<const int32_t> values, size_t at);
  size_t append_batch(std::span<const SequenceSpan> spans, StepShape& shape, size_t at,
                      PlacedBatch& placed);
  void send(size_t begin, size_t end);
  const int32_t* at(size_t offset) const {
    return reinterpret_cast<const int32_t*>(memory_.data()) + offset;
  }

  Device& device_;
  cudaStream_t stream_;
  PinnedMemory pinned_;
  Event sent_;  // the last upload has left the pinned memory
  Buffer memory_;
  size_t capacity_ = 0;
  uint64_t generation_ = 0;
  Known known_[4] = {};
  int count_ = 0;
  std::span<const KvPlanes> planes_;  // at the beginning of the memory
  struct KnownBatch {
    std::span<const SequenceSpan> spans;
    PlacedBatch placed;
    StepShape shape;
  };
  std::vector<KnownBatch> batches_;  // the step's spans, then the others
};

}  // namespace spillway::cuda
