// SPDX-License-Identifier: Apache-2.0
// A plan: where weights, KV and activations live, in which types, and in which order things are
// computed. The runtime executes it.
//
// A plan is a small JSON file that people can read and edit. Passed back with --plan, it gives the
// same run, even if the planner would choose another one by then.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/tier.h"
#include "plan/kv_expansion.h"
#include "plan/weight_plan.h"
#include "tensor/kv_format.h"

namespace spillway {

// The order in which sequences are processed (schedule/admission.h). Within a step all
// micro-batches go through a layer, then through the next one (FlexGen, Algorithm 1); with kRow a
// step has one micro-batch.
enum class ScheduleKind : uint8_t {
  kContinuous,  // a sequence that ends is replaced in the next step
  // In batch blocks: sequences begin together, and the next ones when all of these have ended
  // (FlexGen).
  kZigzag,
  // Like kContinuous, but a few are admitted at a time, so sequences are at different positions.
  kDiagonal,
  kRow,  // one micro-batch is finished before the next: the baseline
};

// The processor on which decoding attends to KV pages that are not on the device.
enum class AttentionPlace : uint8_t {
  kAuto,  // on both processors, by their speeds
  kCpu,   // on the CPU, in host memory
  kGpu,   // on the GPU; pages are copied there layer by layer, hidden behind the compute
};

// Which matrices of the layers are on the device and which in host memory.
enum class Residence : uint8_t {
  kEven,  // every layer moves about the same number of bytes
  // Matrices of the ops that gain the most are on the device: HeteGen's equation 13
  // (plan/residence.h).
  kByGain,
};

// For linear layers with at most `tokens` tokens whose weights are in host memory: the share of
// their rows that the CPU multiplies there, while the others are copied to the GPU (HeteGen).
struct CpuLinearShare {
  int tokens = 1;
  double share = 0;
  // Shares of linear ops that differ from `share`.
  std::map<std::string, double, std::less<>> modules = {};

  double of(std::string_view op) const {
    if (modules.empty()) return share;
    const auto found = modules.find(op);
    return found == modules.end() ? share : found->second;
  }
  bool any() const;
  // Adds `more` to all shares, within 0 and 1.
  void add(double more);
  bool operator==(const CpuLinearShare&) const = default;
};
inline constexpr int kAnyTokens = 1 << 30;

// The model and machine that a plan was found for; empty if they are not known.
struct PlanOrigin {
  std::string model;     // the model's fingerprint
  std::string hardware;  // the checksum of the machine's file
  bool operator==(const PlanOrigin&) const = default;
};

// The bytes of each memory within which a plan was resolved; nothing: as many as there are.
struct PlanMemory {
  std::optional<uint64_t> device = {}, host = {}, disk = {};
  bool operator==(const PlanMemory&) const = default;
};

struct Plan {
  TierShares weights;  // for the layers' matrices; norms and biases are on the device
  // Matrices for which a memory is named; the shares do not apply to them.
  std::vector<WeightOverride> overrides = {};
  // How the shares are placed. kByGain is replaced by overrides before the plan is used.
  Residence residence = Residence::kEven;
  // The home of the token and position embeddings and the head: the device or host memory. In host
  // memory, embedding rows are looked up there, and the head is streamed after the last layer.
  Tier embeddings = Tier::kDevice;
  TierShares kv;  // shares of the sequences
  TierShares activations;
  int micro_batch = 0;    // sequences that decode together; 0: all
  int micro_batches = 0;  // micro-batches of a batch block; 0: as many as all sequences give
  ScheduleKind schedule = ScheduleKind::kContinuous;
  AttentionPlace attention = AttentionPlace::kAuto;
  // With kAuto: the CPU's share of the sequences whose KV is in host memory; the pages of the
  // others are copied to the device. nullopt: the cost model balances both; without a cost model
  // the CPU attends to all.
  std::optional<double> cpu_attention = {};
  bool overlap = true;  // false: one thing at a time, and each is timed

  // The settings of the run. nullopt: as the command's options say, or their defaults.
  std::optional<bool> compress_weights = {};  // 4-bit groups in place of plain matrices
  std::optional<KvType> kv_type = {};
  std::optional<float> attention_topk = {};  // 0: dense
  std::optional<int64_t> context = {};       // tokens of a sequence
  std::optional<int> chunk = {};             // the most tokens that go through a layer together
  std::optional<int> sequences = {};         // concurrent sequences with room for `context`
  // The most sequences that may share the KV memory of `sequences` (RunSize::max_concurrent).
  std::optional<int> max_concurrent = {};
  std::vector<CpuLinearShare> cpu_linear = {};
  std::optional<bool> deterministic = {};        // as --deterministic
  std::optional<KvExpansion> kv_expansion = {};  // --kv-expansion: swapped layers
  std::optional<bool> lookup_drafts = {};        // as --draft lookup
  // Passed back, the run stays within these bytes where the machine has more.
  std::optional<PlanMemory> memory = {};
  PlanOrigin made_for = {};

  // Returns the part of cpu_linear that applies: none if the CPU is the device.
  std::vector<CpuLinearShare> shared_linear(bool host_visible) const {
    return host_visible ? std::vector<CpuLinearShare>{} : cpu_linear;
  }
  WeightPlan weight_plan() const { return {weights, embeddings, overrides}; }
  // Returns whether everything is on the device.
  bool all_on_device() const;
};

// Reads a plan. Throws kInvalidArgument, naming the field and the file, for anything that is not a
// plan, or is a plan of an unknown version. A file without a version, as people write them, is read
// as this version. Version 2 is read, too: it has another name for max_concurrent and lacks the
// fields that came with version 3.
inline constexpr int kPlanVersion = 3;
Plan parse_plan(std::string_view text, const std::string& where);
Plan read_plan(const std::filesystem::path& path);
std::string plan_to_json(const Plan& plan);
// Returns a text that is the same for plans with equal homes of weights. Identities of batch jobs
// and of KV folders contain its digest, so it must never change.
std::string weight_placement_text(const Plan& plan);

// Returns the processor that attends to KV outside the device if that must not depend on the other
// sequences. If KV has several homes, a sequence gets the one that has room, so only the device can
// attend to all of them.
AttentionPlace same_for_every_sequence(const Plan& plan);

// Returns how many of `sequences`, for which there is room, run concurrently: a batch block, or
// with kRow a micro-batch.
int concurrent_sequences(const Plan& plan, int sequences);

// Reads "20,80,0": percent on GPU, host and disk, adding up to 100. Errors name `option`.
TierShares parse_shares(std::string_view text, std::string_view option);
// Reads "66", a percentage for any number of tokens, or "1:66,64:50", percentages for at most 1 and
// at most 64 tokens.
std::vector<CpuLinearShare> parse_cpu_linear(std::string_view text, std::string_view option);
ScheduleKind parse_schedule(std::string_view text);
AttentionPlace parse_attention_place(std::string_view text);
const char* schedule_name(ScheduleKind kind);
const char* attention_place_name(AttentionPlace place);

}  // namespace spillway
