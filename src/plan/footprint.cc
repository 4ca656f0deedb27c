// SPDX-License-Identifier: Apache-2.0
#include "plan/footprint.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "base/byte_units.h"
#include "base/checked_math.h"
#include "base/error.h"
#include "plan/activation_sizes.h"
#include "plan/placed_weights.h"
#include "storage/aligned_buffer.h"
#include "storage/spill_file.h"
#include "tensor/attention_layout.h"

namespace spillway {
namespace {

// Returns the type of the layers' matrices once they are loaded, by which a decoder chooses its
// activation type.
DType matrix_type(const Model& model) {
  for (const BoundWeight& weight : model.weights) {
    if (weight.slot.layer == 0 && weight.slot.is_layer_matrix()) return weight.dtype;
  }
  return model.main_dtype();
}

// Counts allocations, each rounded up to the allocation unit of its memory.
struct Tally {
  MemoryUsage& usage;
  uint64_t unit = 1;

  void add(MemoryTag tag, uint64_t bytes, int64_t times = 1) {
    usage.add(tag, (bytes + unit - 1) / unit * unit * static_cast<uint64_t>(times));
  }
};

// Returns the most tokens of a step. If weights, KV or hidden states are offloaded, a step has the
// prompts of all sequences as far as their residual stream, which stays on the device between
// layers, takes no more than an eighth of the device.
int64_t step_tokens(const ModelSpec& spec, const RunSize& size, uint64_t device_bytes,
                    bool offloaded) {
  const int64_t all = size.tokens * size.sequences;
  const int64_t least = std::max(size.max_running(), std::min<int64_t>(size.micro_tokens, all));
  if (!offloaded) return least;
  const int64_t affordable =
      static_cast<int64_t>(device_bytes / 8) / (spec.hidden * int64_t{sizeof(float)});
  return std::max(least, std::min(all, affordable));
}

bool may_be_partitioned(const Plan& plan, const RunSize& size) {
  return !size.whole_sequences && plan.attention_topk.value_or(0) <= 0;
}

// Divides the blocks of a single sequence among the tiers, by whole runs of `run` blocks. The
// remainder goes to the last tier that is used.
void share_blocks(const TierShares& shares, int64_t run, RunLayout& layout) {
  const auto blocks_for = [&](double share) {
    const double runs = static_cast<double>(layout.sequence_blocks) / static_cast<double>(run);
    return static_cast<int32_t>(std::floor(share * runs + 1e-6)) * static_cast<int32_t>(run);
  };
  auto left = static_cast<int32_t>(layout.sequence_blocks);
  const auto take = [&](double share, bool is_last) {
    const int32_t blocks = is_last ? left : std::min(left, blocks_for(share));
    left -= blocks;
    return blocks;
  };
  // Tolerates rounding of the shares.
  const auto is_used = [](double share) { return share > 1e-9; };
  layout.device_blocks = take(shares.device, !is_used(shares.host) && !is_used(shares.disk));
  layout.host_blocks = take(shares.host, !is_used(shares.disk));
  layout.disk_blocks = left;
}

void place_kv(const Plan& plan, const RunSize& size, bool discrete, RunLayout& layout) {
  layout.sequence_blocks = blocks_for_tokens(size.tokens);
  layout.max_concurrent = size.max_running();
  const auto blocks = try_mul(layout.sequence_blocks, size.sequences);
  SPW_CHECK(blocks && *blocks > 0 && *blocks <= std::numeric_limits<int32_t>::max(),
            kInvalidArgument, "a KV cache for {} sequences of {} tokens cannot be made",
            size.sequences, size.tokens);
  if (size.sequences == 1 && may_be_partitioned(plan, size)) {
    TierShares shares = plan.kv;
    if (!discrete) shares.device += std::exchange(shares.host, 0);
    return share_blocks(shares, size.same_partitions ? kFixedPartitionBlocks : kPartitionBlocks,
                        layout);
  }
  const auto blocks_for = [&](double share) {
    return static_cast<int32_t>(std::floor(share * static_cast<double>(size.sequences) + 0.5) *
                                static_cast<double>(layout.sequence_blocks));
  };
  layout.device_blocks = blocks_for(discrete ? plan.kv.device : plan.kv.device + plan.kv.host);
  layout.disk_blocks = blocks_for(plan.kv.disk);
  // The blocks that rounding leaves over go to the slowest tier that is used.
  const auto rest = static_cast<int32_t>(*blocks) - layout.device_blocks - layout.disk_blocks;
  (discrete && plan.kv.host > 0 ? layout.host_blocks
   : layout.disk_blocks > 0     ? layout.disk_blocks
                                : layout.device_blocks) += rest;
}

void place_activations(const ModelSpec& spec, const Plan& plan, const RunSize& size,
                       const DeviceTraits& traits, bool streams_weights, RunLayout& layout) {
  TierShares& shares = layout.activations = plan.activations;
  if (traits.host_visible) shares.device += std::exchange(shares.host, 0);
  // Percentages may not add up exactly.
  if (shares.disk == 0 && shares.host == 0) shares.device = 1;
  const bool offloaded = streams_weights || layout.blocks_away() > 0 || shares.device < 1;
  layout.max_tokens =
      static_cast<int>(plan.schedule == ScheduleKind::kRow
                           ? std::max<int64_t>(size.micro_tokens, plan.micro_batch)
                           : step_tokens(spec, size, traits.memory_bytes, offloaded));
  // With one sequence whose prompt has one or two chunks, the memory that two layers would take on
  // the device is worth more than the second copy of the weights that it would save.
  if (streams_weights && size.max_running() == 1 && size.tokens <= 2 * size.micro_tokens)
    layout.max_tokens = std::min(layout.max_tokens, size.micro_tokens);
  // If one sequence reads its KV from elsewhere again and again and weights do not stream, the KV
  // for a layer is loaded while the layer before is computed, not while this layer's is written.
  if (!streams_weights && size.max_running() == 1 && layout.blocks_away() > 0)
    layout.max_tokens = std::min(layout.max_tokens, size.micro_tokens);
  layout.micro_tokens = static_cast<int>(
      offloaded ? std::min<int64_t>(size.micro_tokens, layout.max_tokens) : layout.max_tokens);
  layout.logit_rows = rows_with_drafts(
      concurrent_sequences(plan, static_cast<int>(size.max_running())), size.draft_tokens);
  layout.draft_tokens = size.draft_tokens;
  const bool several = layout.max_tokens > layout.micro_tokens ||
                       (plan.micro_batch > 0 && size.max_running() > plan.micro_batch);
  layout.slots = several ? SlotContent::kLayers : SlotContent::kSegments;
}

RunLayout layout_run(const Model& model, const Plan& plan, const RunSize& size,
                     const DeviceTraits& traits, bool streams_weights) {
  const ModelSpec& spec = model.spec;
  RunLayout layout;
  layout.kv = kv_shapes(spec.states, size.kv_type);
  place_kv(plan, size, !traits.host_visible, layout);
  place_activations(spec, plan, size, traits, streams_weights, layout);
  const int swapped = layout.kv.swapped_group();
  // A layer whose KV other layers read would have to stay until the last of them has read it, so a
  // group with shared layers is not swapped layer by layer.
  const bool is_shared = layout.kv.readers(swapped) > layout.kv.group(swapped).layers;
  if (is_shared) return layout;
  layout.swap_sizes = {.layers = layout.kv.group(swapped).layers,
                       .blocks = layout.group_blocks(swapped, layout.device_blocks)};
  if (!traits.host_visible && layout.device_blocks > 0) {
    layout.swap_sizes.most = size.most_swapped;
    layout.swapped_layers = size.swapped_layers;
  }
  return layout;
}

// Returns the bytes for a kernel's input converted to another type.
uint64_t conversion_bytes(const ModelSpec& spec, int64_t micro_tokens) {
  return static_cast<uint64_t>(4 * spec.widest_input() * micro_tokens);
}

// Returns the workspace for the softmax states of slices of sequences that a kernel attends to
// separately.
int64_t attention_workspace(const ModelSpec& spec, const RunSize& size) {
  const int64_t parts = (size.tokens + 255) / 256;
  return size.max_running() * spec.heads * parts * (spec.head_dim + 2) * 4;
}

uint64_t sums_bytes(const ModelSpec& spec, const RunLayout& layout) {
  return softmax_state_bytes(spec.heads, spec.head_dim, layout.micro_tokens);
}

uint64_t workspace_bytes(const PlacedWeights& placed, const RunSize& size,
                         const DeviceTraits& traits, const RunLayout& layout) {
  const ModelSpec& spec = placed.model().spec;
  const int64_t attention = attention_workspace(spec, size);
  int64_t expanded = 0;
  const auto expand = [&](int tokens, int64_t bytes) {
    if (traits.decoded_tokens > 0 && tokens > traits.decoded_tokens)
      expanded = std::max(expanded, bytes);
  };
  expand(layout.logit_rows, placed.expanded().outside_bytes);
  expand(layout.micro_tokens, placed.expanded().layer_bytes);
  return traits.workspace_bytes + static_cast<uint64_t>(attention + expanded) +
         conversion_bytes(spec, layout.micro_tokens);
}

void count_activations(const PlacedWeights& placed, const Plan& plan, const RunLayout& layout,
                       const DeviceTraits& traits, DType inner, Tally device, Tally host,
                       MemoryUsage& disk) {
  const ModelSpec& spec = placed.model().spec;
  LookedUpRows looked_up;  // embedding rows, if the embeddings are not on the device
  if (plan.embeddings != Tier::kDevice && !traits.host_visible) {
    looked_up = placed.embedding_rows();
    looked_up.rows = layout.micro_tokens;
  }
  const DecoderBuffers buffers = decoder_buffers(spec, inner, layout.max_tokens,
                                                 layout.micro_tokens, layout.logit_rows, looked_up);
  for (const uint64_t bytes : buffers.scratch) device.add(MemoryTag::kActivations, bytes);
  for (const uint64_t bytes : buffers.angles) device.add(MemoryTag::kActivations, bytes);
  host.add(MemoryTag::kStaging, looked_up.bytes());
  const ResidualSizes residual =
      residual_sizes(layout.activations, layout.max_tokens, layout.micro_tokens, spec.hidden)
          .on(traits.host_visible);
  const ResidualBytes rows = residual_bytes(residual, traits.host_visible);
  device.add(MemoryTag::kActivations, rows.device_rows);
  device.add(MemoryTag::kActivations, rows.slot, rows.slots);
  host.add(MemoryTag::kActivations, rows.host);
  host.add(MemoryTag::kStaging, rows.bounce, 2);
  disk.add(MemoryTag::kActivations, rows.disk);
  if (layout.host_blocks > 0) {
    const HostAttentionBytes attention =
        host_attention_bytes(spec.q_dim(), spec.kv_dim(), inner, layout.micro_tokens);
    for (const uint64_t bytes : {attention.qkv, attention.attended})
      host.add(MemoryTag::kStaging, bytes);
    for (const uint64_t bytes : {attention.qkv_floats, attention.attended_floats})
      host.add(MemoryTag::kActivations, bytes);
  }
}

// Counts a group's KV: the planes of its layers on the device, or the region that its layers share
// there, and its blocks in host memory.
void count_kv_group(const RunLayout& layout, int group, Tally device, Tally host) {
  const KvGroupShape& shape = layout.kv.group(group);
  const auto blocks = static_cast<uint64_t>(layout.group_blocks(group, layout.device_blocks));
  const auto layer = static_cast<uint64_t>(shape.layer_block_bytes());
  if (layout.swap_sizes.most > 0 && group == layout.kv.swapped_group()) {
    device.add(MemoryTag::kKv, layer * blocks * static_cast<uint64_t>(shape.layers));
    host.add(MemoryTag::kKv, layer * static_cast<uint64_t>(layout.swap_sizes.most_blocks()),
             layout.swap_sizes.most);
  } else {
    for (const KvPart part : {KvPart::kKeys, KvPart::kValues})
      device.add(MemoryTag::kKv, static_cast<uint64_t>(shape.plane_block_bytes(part)) * blocks,
                 shape.layers);
  }
  host.add(MemoryTag::kKv,
           static_cast<uint64_t>(shape.block_bytes()) *
               static_cast<uint64_t>(layout.group_blocks(group, layout.host_blocks)));
}

// Counts the buffers of attention in partitions: the softmax states of rows, and on a GPU one more
// for the result of a partition of a prompt.
void count_partitions(const ModelSpec& spec, bool discrete, uint64_t& workspace, RunLayout& layout,
                      Tally device, Tally host) {
  layout.partitioned = true;
  const uint64_t sums = sums_bytes(spec, layout);
  device.add(MemoryTag::kActivations, sums);
  if (discrete) workspace += sums;
  if (layout.host_blocks > 0) host.add(MemoryTag::kStaging, sums);
}

// Counts the staging planes for KV. They take what is left of the device besides mapped weights and
// workspace, at most for all blocks that may be loaded.
void count_kv_staging(const ModelSpec& spec, const Plan& plan, const RunSize& size,
                      const DeviceTraits& traits, uint64_t mapped, uint64_t& workspace,
                      RunLayout& layout, Tally device, Tally host) {
  if (layout.blocks_away() == 0) return;
  const bool from_disk = layout.disk_blocks > 0;
  const auto block = static_cast<uint64_t>(layout.kv.most_layer_block_bytes());
  // Pages between disk and device pass through host memory in both directions.
  const uint64_t bounce = from_disk ? SpillFile::buffer_bytes(block) : 0;
  const auto blocks_in = [](uint64_t budget, uint64_t taken, uint64_t each) {
    return static_cast<int64_t>((budget - std::min(budget, taken)) / each);
  };
  const uint64_t rounding =
      kKvStagingBuffers * (device.unit - 1) + (from_disk ? 2 * kDirectAlignment : 0);
  const auto find_room = [&] {
    int64_t room =
        blocks_in(traits.memory_bytes, device.usage.total() + mapped + workspace + rounding,
                  kKvStagingBuffers * block + (traits.host_visible ? 2 * bounce : 0));
    if (from_disk && !traits.host_visible && traits.host_memory_bytes > 0) {
      room = std::min(
          room, blocks_in(traits.host_memory_bytes, host.usage.peak_bytes + rounding, 2 * bounce));
    }
    return room;
  };
  int64_t room = find_room();
  layout.fixed_blocks = size.same_partitions ? kFixedPartitionBlocks : 0;
  // If there is no room for partitions either, the CPU attends to prompts.
  const bool comes_partitioned = may_be_partitioned(plan, size) && room < layout.sequence_blocks &&
                                 (from_disk || room >= layout.least_staging());
  if (layout.spans() || comes_partitioned) {
    count_partitions(spec, !traits.host_visible, workspace, layout, device, host);
    room = find_room();
  } else {
    layout.fixed_blocks = 0;
  }
  // There should be room for a whole sequence: which processor attends to its prompt must not
  // depend on how many other sequences there are.
  const int64_t wanted = std::max<int64_t>(
      blocks_for_tokens(size.micro_tokens) + std::max(size.max_running(), layout.sequence_blocks),
      plan.attention == AttentionPlace::kCpu ? layout.disk_blocks : layout.blocks_away());
  const int64_t least = layout.partitioned ? layout.least_staging() : 0;
  int64_t blocks = std::min(room, std::max(least, std::min<int64_t>(wanted, layout.blocks_away())));
  if (from_disk) {
    // Pages on disk must be loaded to the device in any case.
    blocks = std::max(blocks, layout.partitioned ? std::min(layout.sequence_blocks, least)
                                                 : layout.sequence_blocks);
    device.usage.add(MemoryTag::kWorkspace, workspace);
  }
  layout.staging_blocks = static_cast<int32_t>(blocks);
  if (blocks == 0) return;
  device.add(MemoryTag::kStaging, block * static_cast<uint64_t>(blocks), kKvStagingBuffers);
  if (from_disk) {
    host.add(MemoryTag::kStaging, bounce * static_cast<uint64_t>(blocks) + kDirectAlignment, 2);
  }
}

}  // namespace

int rows_with_drafts(int sequences, int draft_tokens) {
  const int64_t most = std::min<int64_t>(int64_t{sequences} * (1 + draft_tokens), kMostDraftRows);
  return static_cast<int>(std::max<int64_t>(sequences, most));
}

// The plane holds the new rows, which may begin anywhere in a partition, and a partition besides
// them.
int64_t RunLayout::least_staging() const {
  if (fixed_blocks > 0) return fixed_blocks;
  return blocks_for_tokens(micro_tokens) + 1 + 2 * kPartitionBlocks;
}

// Memory is divided among groups in proportion to what concurrent sequences can hold of each. A
// full group has all blocks of tokens for which there is capacity. A window group has as many
// blocks as all sequences that may share the capacity hold together after each has passed its
// window, and never more than the full group. A recurrent group has the states of that many
// sequences. A memory has its proportion of these sequences, by its proportion of the capacity.
//
// Blocks belong to a group, and no unit is common to all groups, so no block is rounded up to
// another group's size. At worst one pool is exhausted while another has room. The full group never
// has unused room beside an exhausted window group: its sequences have their windows, whatever
// their lengths are. A window group can have unused room if few sequences are long: of
// `max_concurrent` windows only those of the sequences that fit the full group are used. That
// wastes at most the window group's bytes less one window per such sequence.
//
// If no group keeps all tokens, there is no full group whose room could be exhausted first:
// capacity is for the planned sequences, each with its window, and shorter ones share it as they
// are admitted.
int32_t RunLayout::group_blocks(int group, int64_t blocks) const {
  const StateRule& rule = kv.group(group).rule;
  if (rule.kind == StateKind::kFull) return static_cast<int32_t>(blocks);
  const int64_t all = std::max<int64_t>(blocks, int64_t{device_blocks} + blocks_away());
  int64_t sequences = (all + sequence_blocks - 1) / sequence_blocks;
  bool has_full = false;
  for (int i = 0; i < kv.groups(); ++i)
    has_full = has_full || kv.group(i).rule.kind == StateKind::kFull;
  if (has_full || !rule.is_paged()) sequences = std::max(sequences, max_concurrent);
  // If a single sequence is in several memories, any of them may have its window.
  const int64_t here = (sequences * blocks + all - 1) / std::max<int64_t>(1, all);
  int64_t needed = here * rule.most_blocks(sequence_blocks * kKvBlockTokens, max_tokens);
  // A sequence in several memories fills them by whole runs of blocks.
  if (rule.is_paged() && blocks % sequence_blocks != 0)
    needed += fixed_blocks > 0 ? fixed_blocks : kPartitionBlocks;
  return static_cast<int32_t>(std::min(blocks, needed));
}

uint64_t RunLayout::kv_bytes(int64_t blocks) const {
  uint64_t bytes = 0;
  for (int group = 0; group < kv.groups(); ++group)
    bytes += static_cast<uint64_t>(kv.group(group).block_bytes()) *
             static_cast<uint64_t>(group_blocks(group, blocks));
  return bytes;
}

// Each group has a file, whose blocks each hold K and V of one layer.
uint64_t RunLayout::kv_file_bytes() const {
  uint64_t bytes = 0;
  for (int group = 0; group < kv.groups(); ++group) {
    const KvGroupShape& shape = kv.group(group);
    bytes += SpillFile::file_bytes(static_cast<size_t>(shape.layer_block_bytes()),
                                   static_cast<uint64_t>(shape.layers) *
                                       static_cast<uint64_t>(group_blocks(group, disk_blocks)));
  }
  return bytes;
}

Footprint footprint(const Model& model, const Plan& plan, const RunSize& size,
                    const DeviceTraits& traits) {
  PlacedWeights placed(model, traits);
  return footprint(placed, plan, size, traits);
}

Footprint footprint(PlacedWeights& placed, const Plan& plan, const RunSize& size,
                    const DeviceTraits& traits) {
  const Model& model = placed.model();
  Footprint all;
  const WeightBytes& weights = all.weights = placed.bytes(plan, size.may_map);
  RunLayout& layout = all.layout = layout_run(model, plan, size, traits, weights.streams);
  const DType inner = traits.activation_types[static_cast<size_t>(matrix_type(model))];
  const bool discrete = !traits.host_visible;
  Tally device{all.device, traits.allocation_unit};
  Tally host{discrete ? all.host : all.device};

  all.mapped = weights.mapped;
  device.add(MemoryTag::kWeights, weights.device);
  host.add(MemoryTag::kWeights, weights.host);
  all.disk.add(MemoryTag::kWeights, weights.disk);
  int64_t cpu_tokens = 0;  // the most tokens that the CPU multiplies together
  if (weights.streams) {
    const StreamingNeeds& needs = placed.streaming(plan, layout.slots);
    layout.weight_slots = needs.slots;
    device.add(MemoryTag::kStaging, needs.slot_bytes, layout.weight_slots);
    if (discrete && weights.from_disk) {
      layout.weight_stages = needs.stages;
      host.add(MemoryTag::kStaging, kStreamStageBytes, layout.weight_stages);
    }
    std::vector<CpuRows> uses = needs.cpu_rows;
    for (CpuRows& use : uses) {
      use.tokens = std::min<int64_t>(use.tokens, layout.micro_tokens);
      cpu_tokens = std::max(cpu_tokens, use.tokens);
    }
    const HostLinearBytes linear = host_linear_bytes(model.spec, uses);
    if (needs.disk_rows > 0) host.add(MemoryTag::kStaging, needs.disk_rows, kDiskRowsBuffers);
    if (linear.input > 0) {
      host.add(MemoryTag::kStaging, linear.input);
      host.add(MemoryTag::kStaging, linear.output);
      device.add(MemoryTag::kStaging, linear.staging);
    }
  }

  for (int group = 0; group < layout.kv.groups(); ++group)
    count_kv_group(layout, group, device, host);
  if (layout.disk_blocks > 0) all.disk.add(MemoryTag::kKv, layout.kv_file_bytes());

  count_activations(placed, plan, layout, traits, inner, device, host, all.disk);
  all.workspace = workspace_bytes(placed, size, traits, layout);
  if (discrete && layout.host_blocks > 0)
    all.host_workspace += static_cast<uint64_t>(attention_workspace(model.spec, size));
  if (discrete && cpu_tokens > 0) all.host_workspace += conversion_bytes(model.spec, cpu_tokens);
  if (all.host_workspace > 0) all.host_workspace += traits.host_workspace_bytes;
  // Weights are read, and written to disk, before anything else is allocated.
  all.loading = traits.loading_bytes;
  host.usage.reached(MemoryTag::kStaging, weights.loading_host,
                     weights.loading_host + host.usage.of(MemoryTag::kWeights));
  count_kv_staging(model.spec, plan, size, traits, weights.mapped, all.workspace, layout, device,
                   host);
  return all;
}

}  // namespace spillway
