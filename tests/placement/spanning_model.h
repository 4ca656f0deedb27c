// SPDX-License-Identifier: Apache-2.0
// A tiny model with a long context, whose KV cache is in up to three memories.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpu/cpu_device.h"
#include "cpu/emulated_accelerator.h"
#include "cuda/cuda.h"
#include "runtime/decoder.h"
#include "runtime/weight_mover.h"
#include "storage/test_folder.h"
#include "tests/generation/tiny_models.h"

namespace spillway::placement {

// Sizes of the memories that KV is in, in blocks of 16 tokens, and how attention is shared.
struct Pools {
  std::string name;
  int32_t device = 0, host = 0, disk = 0;
  int32_t staging = 0;
  int most_swapped = 0;  // most swapped layers
  double host_share = 1;
  int64_t fixed_blocks = 0;
  int micro_tokens = 200;
  bool overlap = true;
  bool on_cpu = false;  // no accelerator: the host is the device
  uint64_t pinnable_bytes = ~uint64_t{0};
};

struct SpanningModel {
  static constexpr int64_t kContext = 4096;

  SpanningModel(bool cuda, const Pools& pools, const std::string& kind, KvType kv_type,
                bool deterministic, DType dtype = DType::kF32)
      : host(CpuDeviceOptions{.threads = 2}), device(make_device(cuda, pools)) {
    model.spec = testing_models::tiny_spec(kind, kContext);
    for (const WeightSlot& slot : weight_slots(model.spec))
      model.weights.push_back({slot, slot.is_vector() ? DType::kF32 : dtype, std::nullopt});
    weights.emplace(load_weights(*device, model, {}, {}));
    device->ops().set_deterministic(deterministic);
    host.ops().set_deterministic(deterministic);
    kv.emplace(*device, host, kv_shapes(model.spec.states, kv_type),
               KvCache::Sizes{.device_blocks = pools.device,
                              .host_blocks = pools.host,
                              .disk_blocks = pools.disk,
                              .queue = &queue,
                              .disk_dir = folder.path(),
                              .most_swapped = pools.most_swapped});
    decoder.emplace(*device, model.spec, *weights,
                    DecoderOptions{.max_tokens = 1024,
                                   .micro_tokens = pools.micro_tokens,
                                   .host = &host,
                                   .host_share = pools.host_share,
                                   .staging_blocks = pools.staging,
                                   .partitioned = true,
                                   .fixed_blocks = pools.fixed_blocks,
                                   .queue = &queue,
                                   .disk_dir = folder.path(),
                                   .overlap = pools.overlap});
  }

  static std::unique_ptr<Device> make_device(bool cuda, const Pools& pools) {
    if (pools.on_cpu) return std::make_unique<CpuDevice>(CpuDeviceOptions{.threads = 2});
    if (cuda) return make_cuda_device({.index = 0, .memory_bytes = uint64_t{2} << 30});
    EmulatedAcceleratorOptions options;
    options.max_delay_us = 60;
    options.pinnable_bytes = pools.pinnable_bytes;
    options.seed = std::hash<std::string>()(pools.name);
    return std::make_unique<EmulatedAccelerator>(options);
  }

  // Runs a step, and returns its logits in host memory.
  std::vector<float> step(const std::vector<StepSequence>& sequences) {
    const Activations logits = decoder->step(*kv, sequences);
    std::vector<float> values(static_cast<size_t>(logits.rows * logits.cols));
    if (!values.empty()) {
      device->copy_to_host(reinterpret_cast<std::byte*>(values.data()), logits.data,
                           values.size() * sizeof(float));
    }
    return values;
  }

  TempFolder folder;
  CpuDevice host;
  std::unique_ptr<Device> device;
  IoQueue queue;
  Model model;
  std::optional<ModelWeights> weights;
  std::optional<KvCache> kv;
  std::optional<Decoder> decoder;
};

}  // namespace spillway::placement
