// SPDX-License-Identifier: Apache-2.0
#include "engine/runner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/byte_units.h"
#include "base/checked_math.h"
#include "base/error.h"
#include "base/log.h"
#include "kv/block_allocator.h"
#include "memory/piece_loop.h"
#include "runtime/weight_placement.h"

namespace spillway {
namespace {

// For what libraries and growing scratch buffers take on a device.
constexpr uint64_t kDeviceSlack = uint64_t{256} << 20;

KvShape kv_shape(const ModelSpec& spec, KvType type) {
  return {spec.layers, spec.kv_heads, spec.head_dim, type};
}

int64_t blocks_of(const RunSize& size) { return blocks_for_tokens(size.tokens); }

// The tokens of a block's prefill: of all sequences, as far as their residual stream, which stays
// on the device between layers, is no burden.
int64_t step_tokens(const ModelSpec& spec, const RunSize& size, int64_t device_bytes,
                    bool offloaded) {
  const int64_t all = size.tokens * size.sequences;
  const int64_t least = std::max(size.sequences, std::min<int64_t>(size.micro_tokens, all));
  if (!offloaded) return least;
  const int64_t affordable = device_bytes / 8 / (spec.hidden * int64_t{sizeof(float)});
  return std::max(least, std::min(all, affordable));
}

// What a device's kernels and libraries take while they run.
int64_t workspace_bytes(const Model& model, const RunSize& size) {
  int64_t largest_matrix = 0;
  bool quantized = false;
  for (const BoundWeight& weight : model.weights) {
    quantized = quantized || (!weight.slot.is_vector() && is_quantized(weight.dtype));
    largest_matrix = std::max(largest_matrix, weight.slot.rows * weight.slot.cols);
  }
  const ModelSpec& spec = model.spec;
  const int64_t parts = (size.tokens + 255) / 256;
  return static_cast<int64_t>(kDeviceSlack) +
         (quantized ? 2 * largest_matrix : 0) +  // expanded for prefill
         size.sequences * spec.heads * parts * (spec.head_dim + 2) * 4;
}

// The same of the host's kernels, which take little: panels of each worker, and the parts of
// sequences that several of them attend to.
int64_t host_workspace_bytes(const Model& model, const RunSize& size, int threads) {
  const ModelSpec& spec = model.spec;
  const int64_t parts = (size.tokens + 255) / 256;
  return (int64_t{4} << 20) + threads * (int64_t{1} << 20) +
         size.sequences * spec.heads * parts * (spec.head_dim + 2) * 4;
}

// What loading takes besides, of memory that KV and activations get only later.
int64_t loading_bytes(int threads) {
  return (int64_t{16} << 20) + (threads + kPiecesAhead) * (int64_t{2} << 20);
}

struct ActivationBytes {
  int64_t of_step = 0, of_batch = 0, of_logits = 0;
};
ActivationBytes activation_bytes(const ModelSpec& spec, DType inner) {
  ActivationBytes bytes;
  bytes.of_step = (spec.hidden + spec.rope.dims) * int64_t{sizeof(float)};
  bytes.of_batch = row_bytes(inner, spec.hidden + 2 * spec.q_dim() + 2 * spec.kv_dim() +
                                        (spec.gated_mlp ? 2 : 1) * spec.ffn) +
                   // x in another type, for kernels that want it
                   4 * std::max({spec.hidden, spec.q_dim(), spec.ffn});
  bytes.of_logits = (spec.vocab_size + 2 * spec.hidden) * int64_t{sizeof(float)};
  return bytes;
}

// The share of the sequences with KV in host memory that the CPU attends to, so that it and the bus
// end together: share * kv / cpu = (weights + (1 - share) * kv) / bus. Until the planner measures,
// a guess from one machine (16 x86 threads, PCIe 5): its bus moves 43 to 48 GB/s beside the CPU, a
// thread reads 3.3 to 4 GB/s of F16 pages. Quantized pages have a newer kernel than was measured
// there (0.9 GB/s of int4): those two are hopes.
double guess_cpu_share(const Device& host, const ModelWeights& weights, const KvCache& kv,
                       const RunSize& size) {
  constexpr double kBus = 45e9, kMemory = 90e9;
  const double thread = size.kv_type == KvType::kInt4   ? 1.3e9
                        : size.kv_type == KvType::kInt8 ? 2.5e9
                                                        : 3.5e9;
  const double cpu = std::min(kMemory, thread * host.info().threads);
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

FillRequest fill_request(const Device& device, const Model& model, const RunSize& size,
                         const Budgets& budgets) {
  const ModelSpec& spec = model.spec;
  FillRequest r;
  r.has_device = !device.host_visible();
  r.device_bytes = budgets.device;
  r.host_bytes = budgets.host;
  r.disk_bytes = budgets.disk;
  r.layers = spec.layers;
  int64_t outside = 0;
  for (const BoundWeight& weight : model.weights) {
    const auto bytes = static_cast<int64_t>(aligned_weight_bytes(weight.bytes()));
    if (weight.slot.layer >= 0 && !weight.slot.is_vector()) {
      r.matrix_bytes += static_cast<uint64_t>(bytes);
    } else {
      outside += bytes;
    }
  }
  const DType inner = device.activation_type(model.main_dtype());
  const ActivationBytes each = activation_bytes(spec, inner);
  const int64_t budget = static_cast<int64_t>(r.has_device ? budgets.device : budgets.host);
  int64_t fixed = each.of_step * step_tokens(spec, size, budget, true) +
                  each.of_batch * size.micro_tokens + each.of_logits * size.sequences;
  const KvShape shape = kv_shape(spec, size.kv_type);
  r.kv_bytes = static_cast<uint64_t>(shape.block_bytes() * blocks_of(size) * size.sequences);
  if (r.has_device) {
    fixed += workspace_bytes(model, size);
  } else {
    const int threads = device.info().threads;
    fixed += host_workspace_bytes(model, size, threads);
    fixed = std::max(fixed, loading_bytes(threads) - static_cast<int64_t>(r.kv_bytes));
  }
  r.fixed_bytes = static_cast<uint64_t>(outside + fixed);
  r.kv_staging_bytes =
      KvSwap::kBuffers *
      KvSwap::device_bytes(
          shape, static_cast<int32_t>(blocks_for_tokens(size.micro_tokens) + blocks_of(size)));
  r.host_fixed_bytes =
      HostAttention::host_bytes(inner, size.micro_tokens, spec.q_dim(), spec.kv_dim()) +
      (uint64_t{64} << 20);
  return r;
}

Runner make_runner(Device& device, Device& host, const LoadedModel& loaded, const Plan& plan,
                   const RunSize& size) {
  const ModelSpec& spec = loaded.model.spec;
  const auto blocks = try_mul(blocks_of(size), size.sequences);
  SPW_CHECK(blocks && *blocks > 0 && *blocks <= std::numeric_limits<int32_t>::max(),
            kInvalidArgument, "a KV cache for {} sequences of {} tokens cannot be made",
            size.sequences, size.tokens);
  const bool apart = !device.host_visible();
  const double on_device = apart ? plan.kv.device : plan.kv.device + plan.kv.host;
  const auto blocks_for = [&](double share) {
    return static_cast<int32_t>(std::floor(share * static_cast<double>(size.sequences) + 0.5) *
                                static_cast<double>(blocks_of(size)));
  };
  KvCache::Sizes sizes{.device_blocks = blocks_for(on_device),
                       .host_blocks = 0,
                       .disk_blocks = blocks_for(plan.kv.disk),
                       .disk_dir = size.disk_dir,
                       .disk_budget = size.disk_bytes};
  // What rounding leaves over goes to the slowest tier that is used.
  const auto rest = static_cast<int32_t>(*blocks) - sizes.device_blocks - sizes.disk_blocks;
  (apart && plan.kv.host > 0 ? sizes.host_blocks
   : sizes.disk_blocks > 0   ? sizes.disk_blocks
                             : sizes.device_blocks) += rest;
  const int32_t away = sizes.host_blocks + sizes.disk_blocks;
  const uint64_t on_disk = static_cast<uint64_t>(kv_shape(spec, size.kv_type).block_bytes()) *
                           static_cast<uint64_t>(sizes.disk_blocks);
  SPW_CHECK(on_disk <= size.disk_bytes, kInvalidArgument,
            "the KV cache on disk (--kv) needs {}, but --disk-memory is {}", format_bytes(on_disk),
            format_bytes(size.disk_bytes));

  TierShares activations = plan.activations;
  if (!apart) activations.device += std::exchange(activations.host, 0);
  const bool offloaded = !loaded.weights.streamed.empty() || away > 0 || activations.device < 1;
  const int64_t budget = device.info().memory_bytes;
  DecoderOptions options;
  options.max_tokens = static_cast<int>(plan.schedule == ScheduleKind::kRow
                                            ? std::max<int64_t>(size.micro_tokens, plan.micro_batch)
                                            : step_tokens(spec, size, budget, offloaded));
  options.micro_tokens = size.micro_tokens;
  if (!offloaded) options.micro_tokens = options.max_tokens;
  options.micro_sequences = plan.micro_batch;
  options.activations = activations;
  options.overlap = plan.overlap;
  options.host = &host;
  options.disk_dir = size.disk_dir;
  const uint64_t rows_on_disk =
      ResidualStore::needs(residual_options(options, spec), device.host_visible()).disk;
  SPW_CHECK(rows_on_disk <= size.disk_bytes - on_disk, kInvalidArgument,
            "activations on disk (--activations) need {}, but of --disk-memory {} are left",
            format_bytes(rows_on_disk), format_bytes(size.disk_bytes - on_disk));

  std::unique_ptr<WeightStream> stream;
  if (!loaded.weights.streamed.empty()) {
    stream = std::make_unique<WeightStream>(device, host, loaded.weights,
                                            WeightStreamOptions{.overlap = plan.overlap});
    options.stream = stream.get();
  }
  KvCache kv(device, host, kv_shape(spec, size.kv_type), sizes);
  if (away > 0) {
    // What is left of the device, but for what grows later; at most all there is to swap.
    const auto used = static_cast<int64_t>(device.usage().total());
    const ActivationBytes each =
        activation_bytes(spec, device.activation_type(loaded.weights.matrix_type()));
    const int64_t rope_rows = spec.rope.dims * int64_t{sizeof(float)} * options.max_tokens;
    const auto rows = static_cast<int64_t>(
        ResidualStore::needs(residual_options(options, spec), device.host_visible()).device);
    const int64_t later = rows + rope_rows + each.of_batch * options.micro_tokens +
                          each.of_logits * size.sequences + workspace_bytes(loaded.model, size);
    const auto block = static_cast<int64_t>(KvSwap::device_bytes(kv.shape(), 1));
    const int64_t room = (budget - used - later) / (KvSwap::kBuffers * block);
    const int64_t wanted = std::max<int64_t>(
        blocks_for_tokens(size.micro_tokens) + size.sequences,
        plan.attention == AttentionPlace::kCpu ? int64_t{sizes.disk_blocks} : away);
    options.staging_blocks =
        static_cast<int32_t>(std::clamp<int64_t>(std::min(room, wanted), 0, away));
    if (options.staging_blocks < blocks_of(size)) {
      SPW_CHECK(
          sizes.disk_blocks == 0, kOutOfMemory,
          "KV on disk comes to {} for a layer at a time, which takes {} for one sequence, and "
          "{} are left; keep fewer weights there (--weights), or raise {}",
          device.info().name,
          format_bytes(static_cast<uint64_t>(KvSwap::kBuffers * block * blocks_of(size))),
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
