// SPDX-License-Identifier: Apache-2.0
// What a run of a loaded model needs besides it, by plan: KV cache, streams, decoder.
#pragma once

#include <memory>

#include "engine/loaded_model.h"
#include "engine/run_sizes.h"
#include "kv/kv_cache.h"
#include "plan/plan.h"
#include "runtime/decoder.h"
#include "runtime/weight_stream.h"
#include "storage/async_io.h"

namespace spillway {

struct Runner {
  std::unique_ptr<WeightStream> stream;  // null where all weights are on the device
  KvCache kv;
  Decoder decoder;
};

// `host` is the CPU; the device itself where that is the CPU. Weights, KV and activations on disk
// share `queue`. The model's weights were placed by the same plan. All must outlive the runner.
// Throws kOutOfMemory before any work.
Runner make_runner(Device& device, Device& host, IoQueue& queue, const LoadedModel& loaded,
                   const Plan& plan, const RunSize& size);

}  // namespace spillway
