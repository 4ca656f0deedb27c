// SPDX-License-Identifier: Apache-2.0
// A tiny model spread over tiers, on a GPU, an emulated accelerator, or the CPU alone.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpu/cpu_device.h"
#include "cpu/emulated_accelerator.h"
#include "cuda/cuda.h"
#include "kv/block_allocator.h"
#include "memory/transfer_scheduler.h"
#include "plan/weight_homes.h"
#include "runtime/decoder.h"
#include "runtime/weight_mover.h"
#include "storage/test_folder.h"
#include "tests/generation/sequence_tables.h"
#include "tests/generation/tiny_models.h"

namespace spillway::placement {

// A placement of a model's data, and how the model runs.
struct Placement {
  std::string name;
  TierShares weights = {};
  Tier embeddings = Tier::kDevice;  // and the head
  std::vector<WeightOverride> overrides = {};
  double device_sequences = 1;  // share with KV on the device; the others' KV is the host's
  double disk_sequences = 0;    // of these others: share with KV on disk
  double host_share = 1;        // of those in host memory: share that the host attends to
  bool can_swap = true;
  int32_t staging_blocks = 10;  // fewer than the prompts need together
  int micro_tokens = 0;
  int micro_sequences = 0;
  int slots = 2;
  SlotContent slot_content = SlotContent::kLayers;
  uint64_t segment_bytes = kStreamSegmentBytes;
  std::vector<CpuLinearShare> cpu_linear = {};  // the CPU's shares of linear ops in host memory
  TierShares activations = {};
  bool on_cpu = false;  // no accelerator: the host is the device
  bool overlap = true;
  uint64_t pinnable_bytes = ~uint64_t{0};
  float attention_topk = 0;  // 0: dense

  // Whether the CPU computes what the device would otherwise.
  bool computes_on_host() const {
    return !cpu_linear.empty() || (device_sequences < 1 && (host_share > 0 || !can_swap));
  }
};

inline std::unique_ptr<Device> make_accelerator(bool cuda, const Placement& placement) {
  if (placement.on_cpu) return std::make_unique<CpuDevice>(CpuDeviceOptions{.threads = 2});
  if (cuda) return make_cuda_device({.index = 0, .memory_bytes = uint64_t{2} << 30});
  EmulatedAcceleratorOptions options;
  options.max_delay_us = 60;
  options.pinnable_bytes = placement.pinnable_bytes;
  options.seed = std::hash<std::string>()(placement.name);
  return std::make_unique<EmulatedAccelerator>(options);
}

// How a part of a model is connected to the other parts.
struct PlacedPart {
  std::optional<ModelFacts> facts = {};  // of the whole model
  HiddenStatesLink* link = nullptr;
};

struct PlacedModel {
  static constexpr int kSequences = 5;
  static constexpr int kTokens = 80;  // of a sequence at most
  static constexpr int32_t kBlocks = kTokens / kKvBlockTokens;

  PlacedModel(bool cuda, const Placement& how, const std::string& kind, DType dtype, KvType kv_type,
              bool deterministic)
      : PlacedModel(cuda, how, testing_models::tiny_model(kind, dtype), {}, kv_type,
                    deterministic) {}
  // Places a model of files, or a part of one.
  PlacedModel(bool cuda, const Placement& how, Model described,
              const std::vector<std::filesystem::path>& files, KvType kv_type, bool deterministic,
              const PlacedPart& part = {})
      : placement(how),
        host(CpuDeviceOptions{.threads = 2}),
        device(make_accelerator(cuda, how)),
        model(std::move(described)),
        weights(load_weights(*device, model, files, {},
                             {.homes = weight_homes(device->host_visible(), model,
                                                    {how.weights, how.embeddings, how.overrides}),
                              .host = &host,
                              .queue = &queue,
                              .disk_dir = folder.path(),
                              .disk_budget = ~uint64_t{0}})) {
    device->ops().set_deterministic(deterministic);
    host.ops().set_deterministic(deterministic);
    if (!weights.streamed.empty()) {
      const std::vector<Tier> homes =
          weight_homes(device->host_visible(), model, {how.weights, how.embeddings, how.overrides});
      stream = std::make_unique<WeightStream>(
          transfers, host, queue, weights,
          streaming_schedules(model, homes, shares(), how.slot_content, how.segment_bytes),
          WeightStreamOptions{.slots = how.slots, .overlap = how.overlap, .stages = 6});
    }
    const auto on_device = static_cast<int32_t>(kSequences * how.device_sequences + 0.5);
    const auto on_disk = static_cast<int32_t>((kSequences - on_device) * how.disk_sequences + 0.5);
    kv.emplace(*device, host, kv_shapes(model.spec.states, kv_type),
               KvCache::Sizes{.device_blocks = on_device * kBlocks,
                              .host_blocks = (kSequences - on_device - on_disk) * kBlocks,
                              .disk_blocks = on_disk * kBlocks,
                              .queue = &queue,
                              .disk_dir = folder.path()});
    decoder.emplace(*device, model.spec, weights,
                    DecoderOptions{.max_tokens = kSequences * kTokens,
                                   .micro_tokens = how.micro_tokens,
                                   .micro_sequences = how.micro_sequences,
                                   .transfers = &transfers,
                                   .stream = stream.get(),
                                   .cpu_linear = shares(),
                                   .host = &host,
                                   .host_share = how.host_share,
                                   .staging_blocks = how.can_swap ? how.staging_blocks : 0,
                                   .activations = how.activations,
                                   .queue = &queue,
                                   .disk_dir = folder.path(),
                                   .overlap = how.overlap,
                                   .facts = part.facts,
                                   .link = part.link});
    decoder->set_attention_topk(how.attention_topk);
  }

  // Returns the CPU's shares as a runner takes them from a plan.
  std::vector<CpuLinearShare> shares() const {
    Plan plan;
    plan.cpu_linear = placement.cpu_linear;
    return plan.shared_linear(device->host_visible());
  }

  // Returns the logits of every sequence after its prompt and after each of `steps` more tokens.
  // Prompts have different lengths, and one of them takes two steps; then all sequences run
  // together, or one after the other. Each step is run by the `earlier` parts first, in their
  // order.
  enum class Decoding : uint8_t { kTogether, kAlone };
  std::vector<float> run(int steps = 4, Decoding how = Decoding::kTogether,
                         std::span<PlacedModel* const> earlier = {}) {
    std::vector<std::vector<int32_t>> tokens;
    std::vector<testing_models::SequenceTables> tables;
    for (int i = 0; i < kSequences; ++i) {
      tokens.push_back(testing_models::tiny_prompt(3 + 13 * i, static_cast<uint32_t>(i + 1)));
      tables.emplace_back(*kv, kv->blocks_in_order(i * kBlocks, kBlocks));
    }
    std::vector<float> all;
    const auto step = [&](const std::vector<StepSequence>& sequences) {
      for (PlacedModel* const part : earlier)
        EXPECT_TRUE(part->decoder->step(*part->kv, sequences).empty());
      const Activations logits = decoder->step(*kv, sequences);
      if (logits.rows == 0) return;
      const size_t before = all.size();
      all.resize(before + static_cast<size_t>(logits.rows * logits.cols));
      device->copy_to_host(reinterpret_cast<std::byte*>(all.data() + before), logits.data,
                           (all.size() - before) * sizeof(float));
    };
    std::vector<StepSequence> first, second;
    for (size_t i = 0; i < kSequences; ++i) {
      const std::span<const int32_t> mine(tokens[i]);
      const size_t now = i == 3 ? 20 : mine.size();
      first.push_back(tables[i].sequence(mine.first(now), 0, now == mine.size() ? 2 : 0));
      if (now < mine.size())
        second.push_back(tables[i].sequence(mine.subspan(now), static_cast<int32_t>(now), 1));
    }
    step(first);
    step(second);
    for (int s = 0; s < steps; ++s) {
      std::vector<StepSequence> decoding;
      for (size_t i = 0; i < kSequences; ++i) {
        if (how == Decoding::kAlone) decoding.clear();
        tokens[i].push_back(static_cast<int32_t>((tokens[i].size() * 31 + i * 7) % 90 + 3));
        decoding.push_back(tables[i].sequence(std::span<const int32_t>(tokens[i]).last(1),
                                              static_cast<int32_t>(tokens[i].size() - 1), 1,
                                              /*generates=*/true));
        if (how == Decoding::kAlone) step(decoding);
      }
      if (how == Decoding::kTogether) step(decoding);
    }
    return all;
  }

  TempFolder folder;
  Placement placement;
  CpuDevice host;
  std::unique_ptr<Device> device;
  TransferScheduler transfers{*device};
  IoQueue queue;
  Model model;
  ModelWeights weights;
  std::unique_ptr<WeightStream> stream;
  std::optional<KvCache> kv;
  std::optional<Decoder> decoder;
};

}  // namespace spillway::placement
