// SPDX-License-Identifier: Apache-2.0
// What a run of a loaded model needs besides it, by plan: KV cache, streams, decoder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "engine/loaded_model.h"
#include "kv/kv_cache.h"
#include "plan/fill.h"
#include "plan/plan.h"
#include "runtime/decoder.h"
#include "runtime/weight_stream.h"

namespace spillway {

// How much is to be run.
struct RunSize {
  int64_t tokens = 0;      // of a sequence: prompt and answer
  int64_t sequences = 1;   // at once
  int micro_tokens = 512;  // most tokens that go through a layer together
  KvType kv_type = KvType::kF16;
  std::filesystem::path disk_dir = {};  // for KV on disk
  uint64_t disk_bytes = ~uint64_t{0};
};

struct Runner {
  std::unique_ptr<WeightStream> stream;  // null where all weights are on the device
  KvCache kv;
  Decoder decoder;
};

// Sizes for fill_from_the_top(). Budgets of 0: what the device and the host have free.
struct Budgets {
  uint64_t device = 0, host = 0, disk = 0;
};
FillRequest fill_request(const Device& device, const Model& model, const RunSize& size,
                         const Budgets& budgets);

// `host` is the CPU; the device itself where that is the CPU. The model's weights were placed by
// the same plan. All must outlive the runner. Throws kOutOfMemory before any work.
Runner make_runner(Device& device, Device& host, const LoadedModel& loaded, const Plan& plan,
                   const RunSize& size);

}  // namespace spillway
