// SPDX-License-Identifier: Apache-2.0
// Makes the streaming schedule: for weights of a step that do not live on the device, which
// segments are copied there in which order, and which rows the CPU multiplies in host memory
// (HeteGen, 4.2).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/small_vector.h"
#include "base/tier.h"
#include "model/model.h"
#include "plan/device_traits.h"
#include "plan/plan.h"

namespace spillway {

struct MatrixRows {
  int matrix = 0;  // index among the op's matrices
  int64_t first = 0, count = 0;
  size_t weight = 0;  // its index in Model::weights
};

// Rows of the matrices of an op. A search makes thousands of plans with thousands of these each, so
// nothing is allocated for as many matrices as most ops have.
using OpRows = SmallVector<MatrixRows, 3>;

// A linear op some of whose matrices are not on the device. Each row of those is either multiplied
// by the CPU or copied to the device.
struct StreamedLinear {
  int layer = 0;    // layer_count() for the head
  int op = 0;       // index in its list as devices run it (LoweredLayer::ops)
  int spec_op = 0;  // index in its list as the model has it, by which weights are found
  std::string_view name = {};
  OpRows on_cpu = {};  // the first rows of the op
  std::vector<OpRows> segments = {};
};

struct StreamingSchedule {
  std::vector<StreamedLinear> linears = {};  // in the order of use
  int layers = 0;                            // of the model
  bool by_layers = false;                    // slots hold layers (SlotContent::kLayers)

  // Returns the number of each weight segment's slot group, which is the segments that share a
  // slot. When a group has been used, its slot is free for the group that comes as many groups
  // later as there are slots.
  std::vector<int> slot_groups() const;
  bool uses_cpu() const;
};

// The contents of a slot. With one micro-batch per layer (kSegments), a slot takes a segment of at
// most kStreamSegmentBytes: a segment is multiplied while the next one is loaded, and little memory
// is needed. With several micro-batches (kLayers), a layer must stay until the last of them is
// through: a slot takes all of it, and its segments are whole ops. The head is divided so that it
// needs no larger slots than layers do.
inline constexpr uint64_t kStreamSegmentBytes = uint64_t{32} << 20;
enum class SlotContent : uint8_t { kSegments, kLayers };
// Slots in the device's memory: one holds what is computed, and the others are being filled.
inline constexpr int kSegmentSlots = 6, kLayerSlots = 2;

struct StreamSplit {
  SlotContent slots = SlotContent::kLayers;
  CpuLinearShare cpu = {};
  uint64_t segment_bytes = kStreamSegmentBytes;
};
// Returns the streaming schedule. `homes` has the memory in which each of model.weights lives. The
// CPU multiplies its share of the bytes of each op, split at a multiple of 16 rows: q, k and v are
// split as one matrix, gate and up at the same rows. It has no part in an op whose matrices are not
// all in host memory, or all on disk.
StreamingSchedule streaming_schedule(const Model& model, std::span<const Tier> homes,
                                     const StreamSplit& split);
// Returns a streaming schedule for each of a plan's shares, and at the end one without the CPU.
std::vector<StreamingSchedule> streaming_schedules(const Model& model, std::span<const Tier> homes,
                                                   const std::vector<CpuLinearShare>& shares,
                                                   SlotContent slots,
                                                   uint64_t segment_bytes = kStreamSegmentBytes);
// Returns the index of the streaming schedule for a step whose largest micro-batch has `tokens`
// tokens.
size_t schedule_for(const std::vector<CpuLinearShare>& shares, int64_t tokens);
// Returns the bytes of a slot in the device's memory.
uint64_t slot_bytes(const DeviceTraits& traits, const Model& model, std::span<const Tier> homes,
                    std::span<const StreamingSchedule> schedules);
// Returns the bytes of a buffer into which the CPU's rows of an op are read from disk
// (runtime/disk_rows.h); 0 if there are none.
uint64_t disk_rows_bytes(const DeviceTraits& traits, const Model& model,
                         std::span<const Tier> homes, std::span<const StreamingSchedule> schedules);
inline constexpr int kDiskRowsBuffers = 2;
// Returns the number of staging buffers through which weights are copied from disk to a device with
// memory of its own. If other weights come from host memory in between, there are more of them, to
// hold the largest op that is on disk, so that it is read meanwhile; these take at most
// kMostReadAheadBytes.
inline constexpr uint64_t kMostReadAheadBytes = uint64_t{512} << 20;
int stream_stages(const Model& model, std::span<const Tier> homes,
                  std::span<const StreamingSchedule> schedules);
// Returns how many slots a run with these streaming schedules has.
int slot_count(SlotContent content, std::span<const StreamingSchedule> schedules);

// For the steps of one streaming schedule, which have at most `tokens` tokens: the most rows of a
// linear op that the CPU multiplies. Rows of gate and up both count.
struct CpuRows {
  int64_t tokens = 0, rows = 0;
};
// Returns these for the schedules that streaming_schedules() has made, without those in which the
// CPU has no rows.
std::vector<CpuRows> cpu_rows(std::span<const StreamingSchedule* const> schedules,
                              const std::vector<CpuLinearShare>& shares, int64_t most_tokens);

}  // namespace spillway
