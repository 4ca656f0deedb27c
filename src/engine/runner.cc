// SPDX-License-Identifier: Apache-2.0
#include "engine/runner.h"

#include <algorithm>
#include <utility>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/log.h"
#include "kv/block_allocator.h"

namespace spillway {
namespace {

// The share of the sequences with KV in host memory that the CPU attends to, so that it and the bus
// end together: share * kv / cpu = (weights + (1 - share) * kv) / bus. Until the planner measures,
// a guess from one machine (16 x86 threads, PCIe 5): its bus moves 43 to 48 GB/s beside the CPU, a
// thread reads 3.3 to 4 GB/s of F16 pages and 1.3 to 1.5 of int4; int8 was not measured. They meet
// after every layer: less than what the CPU could do, so that the bus does not wait for it.
double guess_cpu_share(const Device& host, const ModelWeights& weights, const KvCache& kv,
                       const RunSize& size) {
  constexpr double kBus = 45e9, kMemory = 90e9;
  const double thread = size.kv_type == KvType::kInt4   ? 1.3e9
                        : size.kv_type == KvType::kInt8 ? 2.5e9
                                                        : 3.5e9;
  const double cpu = 0.85 * std::min(kMemory, thread * host.info().threads);
  double streamed = 0;
  for (const auto& layer : weights.streamed) {
    for (const StreamedWeight& weight : layer) {
      if (weight.host != nullptr) streamed += static_cast<double>(weight.view.bytes());
    }
  }
  const auto pages = static_cast<double>(kv.shape().block_bytes()) * kv.host_blocks();
  return std::clamp(cpu * (streamed + pages) / (pages * (kBus + cpu)), 0.0, 1.0);
}

}  // namespace

Runner make_runner(Device& device, Device& host, IoQueue& queue, const LoadedModel& loaded,
                   const Plan& plan, const RunSize& size) {
  const ModelSpec& spec = loaded.model.spec;
  const bool apart = !device.host_visible();
  const RunLayout layout = layout_run(device, spec, plan, size, !loaded.weights.streamed.empty());
  KvCache::Sizes sizes = layout.kv;
  sizes.queue = &queue;
  const int32_t away = layout.blocks_away();
  const int64_t sequence_blocks = layout.sequence_blocks, budget = device.info().memory_bytes;
  DecoderOptions options = layout.decoder;
  options.host = &host;
  options.queue = &queue;

  std::unique_ptr<WeightStream> stream;
  if (!loaded.weights.streamed.empty()) {
    stream = std::make_unique<WeightStream>(device, host, queue, loaded.weights,
                                            WeightStreamOptions{.overlap = plan.overlap});
    options.stream = stream.get();
  }
  KvCache kv(device, host, layout.kv_shape, sizes);
  if (away > 0) {
    // What is left of the device, but for what grows later; at most all there is to swap.
    const auto used = static_cast<int64_t>(device.usage().total());
    const auto activations = static_cast<int64_t>(
        activation_needs(options, spec, device.activation_type(loaded.weights.matrix_type()),
                         !apart, size.sequences)
            .device);
    const int64_t later = activations + workspace_bytes(device, loaded.model, size) +
                          conversion_bytes(spec, options.micro_tokens);
    const auto block = static_cast<int64_t>(KvSwap::device_bytes(kv.shape(), 1));
    const int64_t room = (budget - used - later) / (KvSwap::kBuffers * block);
    const int64_t wanted = std::max<int64_t>(
        blocks_for_tokens(size.micro_tokens) + size.sequences,
        plan.attention == AttentionPlace::kCpu ? int64_t{sizes.disk_blocks} : away);
    options.staging_blocks =
        static_cast<int32_t>(std::clamp<int64_t>(std::min(room, wanted), 0, away));
    if (options.staging_blocks < sequence_blocks) {
      SPW_CHECK(
          sizes.disk_blocks == 0, kOutOfMemory,
          "KV on disk comes to {} for a layer at a time, which takes {} for one sequence, and "
          "{} are left; keep fewer weights there (--weights), or raise {}",
          device.info().name,
          format_bytes(static_cast<uint64_t>(KvSwap::kBuffers * block * sequence_blocks)),
          format_bytes(static_cast<uint64_t>(std::max<int64_t>(0, budget - used - later))),
          apart ? "--gpu-memory" : "--host-memory");
      log_warning("{} left on {} hold no sequence's KV of a layer: the CPU attends to prompts too",
                  format_bytes(static_cast<uint64_t>(std::max<int64_t>(0, room * block))),
                  device.info().name);
    }
    options.host_share = plan.attention == AttentionPlace::kCpu   ? 1
                         : plan.attention == AttentionPlace::kGpu ? 0
                         : plan.cpu_attention                     ? *plan.cpu_attention
                                              : guess_cpu_share(host, loaded.weights, kv, size);
  }
  const auto bytes = [&](int32_t of) {
    return format_bytes(static_cast<uint64_t>(kv.shape().block_bytes() * of));
  };
  log_info("KV cache: {} tokens in {}, {} on {}, {} in host memory, {} on disk",
           int64_t{kv.blocks()} * kKvBlockTokens, kv_type_name(size.kv_type),
           bytes(sizes.device_blocks), device.info().name, bytes(sizes.host_blocks),
           bytes(sizes.disk_blocks));
  Decoder decoder(device, spec, loaded.weights, options);
  decoder.attach(kv);
  return {std::move(stream), std::move(kv), std::move(decoder)};
}

}  // namespace spillway
