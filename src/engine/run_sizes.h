// SPDX-License-Identifier: Apache-2.0
// How much a run of a model takes by a plan, before anything is taken.
#pragma once

#include <cstdint>
#include <filesystem>

#include "device/device.h"
#include "kv/kv_cache.h"
#include "memory/weight_load_options.h"
#include "model/model.h"
#include "plan/fill.h"
#include "plan/plan.h"
#include "runtime/decoder.h"

namespace spillway {

// How much is to be run.
struct RunSize {
  int64_t tokens = 0;      // of a sequence: prompt and answer
  int64_t sequences = 1;   // at once
  int micro_tokens = 512;  // most tokens that go through a layer together
  KvType kv_type = KvType::kF16;
  std::filesystem::path disk_dir = {};  // for KV and activations on disk
  uint64_t disk_bytes = ~uint64_t{0};
};

struct Budgets {
  uint64_t device = 0, host = 0, disk = 0;
  // Whether somebody said how much host memory to use: then mapped weights count as such. Otherwise
  // they are pages of files, which the system takes back where it needs room.
  bool host_is_limited = false;
};
// Sizes for fill_from_the_top().
FillRequest fill_request(const Device& device, const Model& model, const RunSize& size,
                         const Budgets& budgets);

// The parts of a run that plan and size decide.
struct RunLayout {
  KvShape kv_shape;
  KvCache::Sizes kv;
  int64_t sequence_blocks = 0;  // of one sequence
  DecoderOptions decoder;       // its sizes and shares; who moves what is for others to add
  int32_t blocks_away() const { return kv.host_blocks + kv.disk_blocks; }
};
// `streams_weights`: not all of them are on the device. Throws kInvalidArgument for a cache that
// cannot be.
RunLayout layout_run(const Device& device, const ModelSpec& spec, const Plan& plan,
                     const RunSize& size, bool streams_weights);

// What kernels and libraries take while they run, about.
int64_t workspace_bytes(const Device& device, const Model& model, const RunSize& size);
// The same of a micro-batch, where a kernel wants its input in another type.
int64_t conversion_bytes(const ModelSpec& spec, int64_t micro_tokens);

// What a run takes at least, by what it is for.
struct RunNeeds {
  Device::Usage device;  // of the host where that is the device
  Device::Usage host;
  Device::Usage disk;
  uint64_t mapped = 0;  // of the host's memory, beside that
};
RunNeeds run_needs(const Device& device, const Model& model, const Plan& plan, const RunSize& size,
                   const WeightLoadOptions& load);

// Throws kOutOfMemory where the needs exceed a budget, in one line that says of each memory that is
// too small what needs how much of it; kInvalidArgument where something is to be on disk and
// --disk-memory is 0. What to do about it: what_helps().
void check_fits(const RunNeeds& needs, bool has_device, const Budgets& budgets);

}  // namespace spillway
