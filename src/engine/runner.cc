// SPDX-License-Identifier: Apache-2.0
#include "engine/runner.h"

#include <algorithm>
#include <utility>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/log.h"

namespace spillway {

Runner make_runner(TransferScheduler& transfers, Device& host, IoQueue& queue,
                   const LoadedModel& loaded, const ResolvedPlan& resolved, const RunDisk& disk,
                   uint64_t most_device_bytes) {
  Device& device = transfers.device();
  const ModelSpec& spec = loaded.model.spec;
  const Plan& plan = resolved.plan;
  const RunSize& size = resolved.size;
  const Footprint& needs = resolved.needs;
  const RunLayout& layout = needs.layout;
  SPW_CHECK(layout.disk_blocks == 0 || needs.device.total() <= most_device_bytes, kOutOfMemory,
            "KV on disk comes to {} for a layer at a time, at least of one sequence; that needs {} "
            "in all ({}), and there are {}; keep fewer weights there (--weights), or raise {}",
            device.info().name, format_bytes(needs.device.total()), needs.device.describe(),
            format_bytes(most_device_bytes),
            device.host_visible() ? "--host-memory" : "--gpu-memory");
  const uint64_t kv_on_disk = layout.disk_blocks > 0 ? layout.kv_file_bytes() : 0;
  DecoderOptions options{.max_tokens = layout.max_tokens,
                         .micro_tokens = layout.micro_tokens,
                         .micro_sequences = plan.micro_batch,
                         .transfers = &transfers,
                         .host = &host,
                         .staging_blocks = layout.staging_blocks,
                         .partitioned = layout.partitioned,
                         .fixed_blocks = layout.fixed_blocks,
                         .activations = layout.activations,
                         .queue = &queue,
                         .disk_dir = disk.dir,
                         .disk_budget = disk.bytes - std::min(disk.bytes, kv_on_disk),
                         .overlap = plan.overlap};

  std::unique_ptr<WeightStream> stream;
  if (!loaded.weights.streamed.empty()) {
    stream = std::make_unique<WeightStream>(
        transfers, host, queue, loaded.weights, resolved.streaming,
        WeightStreamOptions{.slots = layout.weight_slots,
                            .overlap = plan.overlap,
                            .stages = std::max(kStreamStages, layout.weight_stages)});
    options.stream = stream.get();
    options.cpu_linear = plan.shared_linear(device.host_visible());
  }
  std::vector<KvCache::Sizes::Blocks> blocks;
  for (int group = 0; group < layout.kv.groups(); ++group)
    blocks.push_back({layout.group_blocks(group, layout.device_blocks),
                      layout.group_blocks(group, layout.host_blocks),
                      layout.group_blocks(group, layout.disk_blocks)});
  KvCache kv(device, host, layout.kv,
             {.queue = &queue,
              .disk_dir = disk.dir,
              .disk_budget = disk.bytes,
              .most_swapped = layout.swap_sizes.most,
              .groups = std::move(blocks)});
  if (layout.blocks_away() > 0) {
    if (layout.staging_blocks < std::min(layout.sequence_blocks, layout.least_staging())) {
      log_warning(
          "what is left on {} is too small for KV to come there: the CPU attends to prompts too",
          device.info().name);
    }
    // By default attention over KV in host memory runs on the CPU.
    options.host_share = plan.attention == AttentionPlace::kGpu   ? 0
                         : plan.attention == AttentionPlace::kCpu ? 1
                                                                  : plan.cpu_attention.value_or(1);
  }
  const auto bytes = [&](int32_t of) { return format_bytes(layout.kv_bytes(of)); };
  log_info("KV cache: {} tokens in {}, {} on {}, {} in host memory, {} on disk",
           int64_t{layout.device_blocks + layout.blocks_away()} * kKvBlockTokens,
           kv_type_name(size.kv_type), bytes(layout.device_blocks), device.info().name,
           bytes(layout.host_blocks), bytes(layout.disk_blocks));
  if (layout.swap_sizes.most > 0) {
    log_info("up to {} of {} layers may be swapped on {}: {} tokens then", layout.swap_sizes.most,
             layout.swap_sizes.layers, device.info().name,
             int64_t{layout.swap_sizes.most_blocks()} * kKvBlockTokens);
  }
  Decoder decoder(device, spec, loaded.weights, options);
  decoder.attach(kv);
  return {std::move(stream), std::move(kv), std::move(decoder)};
}

int with_rows(Decoder& decoder, int64_t planned, int64_t wanted) {
  if (wanted <= planned) return static_cast<int>(wanted);
  try {
    decoder.expect_rows(wanted);
    return static_cast<int>(wanted);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    log_warning("{} requests at once, not {}: {}", planned, wanted, error.what());
    return static_cast<int>(planned);
  }
}

}  // namespace spillway
