// SPDX-License-Identifier: Apache-2.0
// Makes what a run of a loaded model needs besides it by its plan: KV cache, weight stream,
// decoder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "engine/loaded_model.h"
#include "kv/kv_cache.h"
#include "memory/transfer_scheduler.h"
#include "plan/resolved_plan.h"
#include "runtime/decoder.h"
#include "runtime/weight_stream.h"
#include "storage/async_io.h"

namespace spillway {

struct Runner {
  std::unique_ptr<WeightStream> stream;  // null where all weights are on the device
  KvCache kv;
  Decoder decoder;
};

// The folder and the bytes for KV and activations on disk.
struct RunDisk {
  std::filesystem::path dir = {};
  uint64_t bytes = ~uint64_t{0};
};

// `host` is the CPU, or the device itself if that is the CPU. Weights, KV and activations on disk
// share `queue`. The model's weights were placed by the same plan. All must outlive the runner.
// Takes the memory that the plan needs, or throws kOutOfMemory before any work.
// `most_device_bytes`: the device's budget.
Runner make_runner(TransferScheduler& transfers, Device& host, IoQueue& queue,
                   const LoadedModel& loaded, const ResolvedPlan& resolved,
                   const RunDisk& disk = {}, uint64_t most_device_bytes = ~uint64_t{0});

// Returns the number of sequences that may run concurrently: `wanted` if there is memory for their
// rows of logits, else `planned`.
int with_rows(Decoder& decoder, int64_t planned, int64_t wanted);

}  // namespace spillway
