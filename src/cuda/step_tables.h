// SPDX-License-Identifier: Apache-2.0
// Keeps the indices that the kernels of a step read in device memory, with one upload per step.
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

// The properties of a step that decide which kernels run and where their arguments lie: steps with
// equal shape and graph key can be replayed for each other.
struct StepShape {
  int32_t tokens = 0;
  int32_t sequences = 0;
  int32_t decoding = 0;    // sequences with one row; they come first in the BatchView
  int32_t generating = 0;  // of these, sequences whose row generates; they come first of all
  int32_t logit_rows = 0;
  int32_t max_rows = 0;         // most rows of a sequence in this step
  int32_t max_partitions = 0;   // 256-token partitions of the longest sequence, rounded up to 2^n
  bool values_at_home = false;  // a sequence has V in host memory (SequenceSpan::home)
  bool operator==(const StepShape&) const = default;
  auto operator<=>(const StepShape&) const = default;
};

// The shapes of a step's other span lists, such as those of other groups of layers.
using OtherShapes = std::array<StepShape, kMostStateGroups - 1>;

inline constexpr int kPartTokens = 256;  // attention splits KV at multiples of this

// The sequences of a step, and for each the number of positions that its block table covers.
struct PlacedBatch {
  BatchView view;
  const int32_t* covered = nullptr;
};

// Owns pinned memory and its copy on the device; both grow to the largest step. Used from one
// thread.
class StepTables {
 public:
  StepTables(Device& device, cudaStream_t stream) : device_(device), stream_(stream) {}

  // Copies the batch's arrays to the device, in stream order.
  StepShape upload(const StepBatch& batch);
  // Returns the shapes of this step's other spans; nullopt if it has more of them than there are
  // groups of layers.
  std::optional<OtherShapes> try_other_shapes() const;
  // Forgets the step's arrays: the memory of the spans may be freed after this.
  void end_step() {
    count_ = 0;
    planes_ = {};
  }

  // Returns where `values` lies on the device: as part of the current step's upload, or uploaded
  // now and valid until values are uploaded this way again.
  const int32_t* device_of(std::span<const int32_t> values);
  // Returns where a launch that may be recorded finds kv.k and kv.v; null if the current step does
  // not list where its KV is (StepBatch::kv).
  const KvPlanes* planes_of(const KvLayerView& kv) const;
  // Returns the spans as kernels see them, as part of the current step's upload or uploaded now.
  // Sequences with one row come first, and of these the ones that generate.
  PlacedBatch device_of(std::span<const SequenceSpan> spans, StepShape& shape);

  // Changes when the memory moves, which invalidates everything recorded with the old addresses.
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
  Event sent_;  // signals that the last upload has left the pinned memory
  Buffer memory_;
  size_t capacity_ = 0;
  uint64_t generation_ = 0;
  Known known_[4] = {};
  int count_ = 0;
  std::span<const KvPlanes> planes_;  // lie at the beginning of the memory
  struct KnownBatch {
    std::span<const SequenceSpan> spans;
    PlacedBatch placed;
    StepShape shape;
  };
  std::vector<KnownBatch> batches_;  // the step's spans, then the other spans
};

}  // namespace spillway::cuda
