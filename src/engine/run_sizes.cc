// SPDX-License-Identifier: Apache-2.0
#include "engine/run_sizes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/byte_units.h"
#include "base/checked_math.h"
#include "base/error.h"
#include "kv/block_allocator.h"
#include "memory/piece_loop.h"
#include "runtime/weight_needs.h"
#include "runtime/weight_placement.h"
#include "schedule/scheduler.h"

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
                   conversion_bytes(spec, 1);
  bytes.of_logits = (spec.vocab_size + 2 * spec.hidden) * int64_t{sizeof(float)};
  return bytes;
}

// As ModelWeights::matrix_type(), before they are loaded: what a decoder chooses activations by.
DType matrix_type(const Model& model) {
  for (const BoundWeight& weight : model.weights) {
    if (weight.slot.layer == 0 && weight.slot.role == WeightRole::kQuery) return weight.dtype;
  }
  return model.main_dtype();
}

// A block of the file is one of a layer, K and V.
uint64_t kv_file_bytes(const RunLayout& layout) {
  const auto layers = static_cast<uint64_t>(layout.kv_shape.layers);
  return SpillFile::file_bytes(static_cast<uint64_t>(layout.kv_shape.block_bytes()) / layers,
                               layers * static_cast<uint64_t>(layout.kv.disk_blocks));
}

}  // namespace

int64_t conversion_bytes(const ModelSpec& spec, int64_t micro_tokens) {
  return 4 * std::max({spec.hidden, spec.q_dim(), spec.ffn}) * micro_tokens;
}

int64_t workspace_bytes(const Device& device, const Model& model, const RunSize& size) {
  const ModelSpec& spec = model.spec;
  const int64_t parts = (size.tokens + 255) / 256;
  const int64_t attention = size.sequences * spec.heads * parts * (spec.head_dim + 2) * 4;
  if (device.host_visible()) {
    // Little: panels of each worker, and the parts of sequences that several of them attend to.
    return (int64_t{4} << 20) + device.info().threads * (int64_t{1} << 20) + attention;
  }
  int64_t largest_matrix = 0;
  bool quantized = false;
  for (const BoundWeight& weight : model.weights) {
    quantized = quantized || (!weight.slot.is_vector() && is_quantized(weight.dtype));
    largest_matrix = std::max(largest_matrix, weight.slot.rows * weight.slot.cols);
  }
  return static_cast<int64_t>(kDeviceSlack) +
         (quantized ? 2 * largest_matrix : 0) +  // expanded for prefill
         attention;
}

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
  const DType inner = device.activation_type(matrix_type(model));
  const ActivationBytes each = activation_bytes(spec, inner);
  const int64_t budget = static_cast<int64_t>(r.has_device ? budgets.device : budgets.host);
  const int64_t micro_tokens =
      std::max(size.sequences, std::min<int64_t>(size.micro_tokens, size.tokens * size.sequences));
  int64_t fixed = each.of_step * step_tokens(spec, size, budget, true) +
                  each.of_batch * micro_tokens + each.of_logits * size.sequences;
  const KvShape shape = kv_shape(spec, size.kv_type);
  r.kv_bytes = static_cast<uint64_t>(shape.block_bytes() * blocks_of(size) * size.sequences);
  if (r.has_device) {
    fixed += workspace_bytes(device, model, size);
  } else {
    const int threads = device.info().threads;
    fixed += workspace_bytes(device, model, size);
    fixed = std::max(fixed, loading_bytes(threads) - static_cast<int64_t>(r.kv_bytes));
  }
  r.fixed_bytes = static_cast<uint64_t>(outside + fixed);
  r.kv_staging_bytes =
      KvSwap::kBuffers *
      KvSwap::device_bytes(shape,
                           static_cast<int32_t>(blocks_for_tokens(micro_tokens) + blocks_of(size)));
  r.host_fixed_bytes = HostAttention::host_bytes(inner, micro_tokens, spec.q_dim(), spec.kv_dim()) +
                       (uint64_t{64} << 20);
  return r;
}

RunLayout layout_run(const Device& device, const ModelSpec& spec, const Plan& plan,
                     const RunSize& size, bool streams_weights) {
  RunLayout layout;
  layout.kv_shape = kv_shape(spec, size.kv_type);
  layout.sequence_blocks = blocks_of(size);
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
  KvCache::Sizes& sizes = layout.kv;
  sizes = {.device_blocks = blocks_for(on_device),
           .host_blocks = 0,
           .disk_blocks = blocks_for(plan.kv.disk),
           .disk_dir = size.disk_dir,
           .disk_budget = size.disk_bytes};
  // What rounding leaves over goes to the slowest tier that is used.
  const auto rest = static_cast<int32_t>(*blocks) - sizes.device_blocks - sizes.disk_blocks;
  (apart && plan.kv.host > 0 ? sizes.host_blocks
   : sizes.disk_blocks > 0   ? sizes.disk_blocks
                             : sizes.device_blocks) += rest;

  DecoderOptions& decoder = layout.decoder;
  decoder.activations = plan.activations;
  if (!apart) decoder.activations.device += std::exchange(decoder.activations.host, 0);
  if (decoder.activations.disk == 0 && decoder.activations.host == 0)
    decoder.activations.device = 1;  // whatever a sum of percents has come to
  const bool offloaded =
      streams_weights || layout.blocks_away() > 0 || decoder.activations.device < 1;
  const int64_t budget = device.info().memory_bytes;
  decoder.max_tokens = static_cast<int>(plan.schedule == ScheduleKind::kRow
                                            ? std::max<int64_t>(size.micro_tokens, plan.micro_batch)
                                            : step_tokens(spec, size, budget, offloaded));
  decoder.micro_tokens = static_cast<int>(
      offloaded ? std::min<int64_t>(size.micro_tokens, decoder.max_tokens) : decoder.max_tokens);
  decoder.micro_sequences = plan.micro_batch;
  decoder.overlap = plan.overlap;
  decoder.disk_dir = size.disk_dir;
  decoder.disk_budget = size.disk_bytes - std::min(size.disk_bytes, kv_file_bytes(layout));
  return layout;
}

RunNeeds run_needs(const Device& device, const Model& model, const Plan& plan, const RunSize& size,
                   const WeightLoadOptions& load) {
  const bool apart = !device.host_visible();
  const ModelSpec& spec = model.spec;
  const WeightNeeds weights = weight_needs(device, model, plan.weights, load);
  const WeightStream::Needs stream = WeightStream::needs(weights, !apart, {});
  const RunLayout layout = layout_run(device, spec, plan, size, weights.streamed_layers > 0);
  const DType inner = device.activation_type(matrix_type(model));
  const ResidualStore::Needs activations =
      activation_needs(layout.decoder, spec, inner, !apart,
                       sequences_at_once(plan, static_cast<int>(size.sequences)));
  const auto block = static_cast<uint64_t>(layout.kv_shape.block_bytes());

  RunNeeds needs;
  needs.mapped = weights.mapped;
  needs.device.add(MemoryTag::kWeights, weights.device);
  needs.device.add(MemoryTag::kStaging, stream.device);
  needs.device.add(MemoryTag::kKv, block * static_cast<uint64_t>(layout.kv.device_blocks));
  needs.device.add(MemoryTag::kActivations, activations.device);
  Device::Usage& host = apart ? needs.host : needs.device;
  host.add(MemoryTag::kWeights, weights.host);
  host.add(MemoryTag::kStaging, stream.host);
  host.add(MemoryTag::kKv, block * static_cast<uint64_t>(layout.kv.host_blocks));
  host.add(MemoryTag::kActivations, activations.host);
  host.add(MemoryTag::kStaging, activations.host_staging);
  if (layout.kv.host_blocks > 0) {
    const int64_t rows = layout.decoder.micro_tokens;
    const uint64_t all = HostAttention::host_bytes(inner, rows, spec.q_dim(), spec.kv_dim());
    const int64_t pinned = row_bytes(inner, 2 * (spec.q_dim() + spec.kv_dim())) * rows;
    host.add(MemoryTag::kStaging, static_cast<uint64_t>(pinned));
    host.add(MemoryTag::kActivations, all - static_cast<uint64_t>(pinned));
  }
  needs.disk.add(MemoryTag::kWeights, weights.disk);
  needs.disk.add(MemoryTag::kActivations, activations.disk);
  if (layout.kv.disk_blocks > 0) {
    const uint64_t plane = block / static_cast<uint64_t>(spec.layers);
    needs.disk.add(MemoryTag::kKv, kv_file_bytes(layout));
    // Pages of one sequence on the device, two at a time, and on their way there and back.
    const auto staged = static_cast<uint64_t>(layout.sequence_blocks);
    needs.device.add(MemoryTag::kStaging, KvSwap::kBuffers * plane * staged);
    host.add(MemoryTag::kStaging, 2 * (SpillFile::buffer_bytes(plane) * staged + kDirectAlignment));
    // What make_runner() leaves for it.
    needs.device.add(MemoryTag::kWorkspace,
                     static_cast<uint64_t>(workspace_bytes(device, model, size) +
                                           conversion_bytes(spec, layout.decoder.micro_tokens)));
  }
  // Weights are written to disk before there is anything else.
  const uint64_t loading = weights.loading_host + host.bytes[static_cast<int>(MemoryTag::kWeights)];
  if (loading > host.total()) host.add(MemoryTag::kStaging, loading - host.total());
  return needs;
}

void check_fits(const RunNeeds& needs, bool has_device, const Budgets& budgets) {
  const auto bytes_of = [](const Device::Usage& usage, MemoryTag tag) {
    return usage.bytes[static_cast<int>(tag)];
  };
  constexpr std::pair<MemoryTag, const char*> kPlaced[] = {
      {MemoryTag::kWeights, "--weights"},
      {MemoryTag::kKv, "--kv"},
      {MemoryTag::kActivations, "--activations"}};
  for (const auto& [tag, option] : kPlaced) {
    SPW_CHECK(budgets.disk > 0 || bytes_of(needs.disk, tag) == 0, kInvalidArgument,
              "{} on disk ({}) need {}, but --disk-memory is 0; give it, with --disk-dir",
              memory_tag_name(tag), option, format_bytes(bytes_of(needs.disk, tag)));
  }
  std::string missing;
  const auto look = [&](const Device::Usage& usage, uint64_t budget, const char* memory) {
    if (usage.total() <= budget) return;
    missing +=
        fmt::format("{}{} of {} ({}), and there are {}", missing.empty() ? "" : "; ",
                    format_bytes(usage.total()), memory, usage.describe(), format_bytes(budget));
  };
  Device::Usage host = has_device ? needs.host : needs.device;
  if (budgets.host_is_limited) host.add(MemoryTag::kWeights, needs.mapped);
  if (has_device) look(needs.device, budgets.device, "GPU memory");
  look(host, budgets.host, "host memory");
  look(needs.disk, budgets.disk, "disk");
  SPW_CHECK(missing.empty(), kOutOfMemory, "the plan needs {}", missing);
}

}  // namespace spillway
