// SPDX-License-Identifier: Apache-2.0
// What goes where, in which types and order it is computed: the runtime executes it.
//
// A plan is a small JSON file that a person can read, edit and pass back with --plan: then the same
// run comes out, whatever would be chosen today.
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

// The order of sequences (schedule/admission.h). Within a step all micro-batches go through a
// layer, then through the next one (FlexGen, Algorithm 1); by kRow there is one.
enum class ScheduleKind : uint8_t {
  kContinuous,  // a sequence that ends is replaced in the next step
  kZigzag,      // blocks of sequences that begin together: FlexGen's schedule
  kDiagonal,    // as continuous, a few at a time: sequences sit at different tokens
  kRow,         // one micro-batch after the other: the baseline
};

// Where pages that are not on the device are attended to, in decoding.
enum class AttentionPlace : uint8_t {
  kAuto,  // shared between both, by their speeds
  kCpu,   // where they lie
  kGpu,   // moved in, layer by layer, behind the compute
};

// Which of the layers' matrices are on the device and which in host memory.
enum class Residence : uint8_t {
  kEven,    // every layer moves about the same number of bytes
  kByGain,  // those of the ops that gain the most, HeteGen's equation 13 (plan/residence.h)
};

// Of linear layers with up to so many tokens, whose weights are in host memory: the share of their
// rows that the CPU multiplies there, while the others come to the GPU (HeteGen).
struct CpuLinearShare {
  int tokens = 1;
  double share = 0;
  std::map<std::string, double, std::less<>> modules = {};  // linear ops that have another

  double of(std::string_view op) const {
    if (modules.empty()) return share;
    const auto found = modules.find(op);
    return found == modules.end() ? share : found->second;
  }
  bool any() const;
  // All of them by so much, within 0 and 1.
  void add(double more);
  bool operator==(const CpuLinearShare&) const = default;
};
inline constexpr int kAnyTokens = 1 << 30;

// What a plan was found for. Empty: nobody said.
struct PlanOrigin {
  std::string model;     // its fingerprint
  std::string hardware;  // the checksum of the machine's file
  bool operator==(const PlanOrigin&) const = default;
};

// The bytes of each memory within which a plan was resolved; nothing: as many as there are.
struct PlanMemory {
  std::optional<uint64_t> device = {}, host = {}, disk = {};
  bool operator==(const PlanMemory&) const = default;
};

struct Plan {
  TierShares weights;  // of the layers' matrices; norms and biases are on the device
  std::vector<WeightOverride> overrides = {};  // matrices that are not the shares' to place
  // How the shares are placed. kByGain becomes overrides before the plan is used.
  Residence residence = Residence::kEven;
  // The token and position embeddings and the head, on the device or in host memory. There rows are
  // looked up where they lie, and the head streams behind the last layer.
  Tier embeddings = Tier::kDevice;
  TierShares kv;  // of the sequences
  TierShares activations;
  int micro_batch = 0;    // sequences that decode together; 0: as many as there are
  int micro_batches = 0;  // in a block; 0: as many as there are sequences for
  ScheduleKind schedule = ScheduleKind::kContinuous;
  AttentionPlace attention = AttentionPlace::kAuto;
  // With kAuto: of the sequences whose KV is in host memory, the share that the CPU attends to; the
  // others' pages are moved in. Nothing: as the cost model balances both, without one all.
  std::optional<double> cpu_attention = {};
  bool overlap = true;  // false: one thing after the other, each timed

  // What the run is made with. Nothing: as the command's options say, or what they default to.
  std::optional<bool> compress_weights = {};  // 4-bit groups in place of plain matrices
  std::optional<KvType> kv_type = {};
  std::optional<float> attention_topk = {};  // 0: dense
  std::optional<int64_t> context = {};       // tokens of a sequence
  std::optional<int> chunk = {};             // most tokens through a layer together
  std::optional<int> sequences = {};         // at once
  std::optional<int> at_once = {};           // that may share their KV (RunSize::at_once)
  std::vector<CpuLinearShare> cpu_linear = {};
  std::optional<bool> deterministic = {};        // as --deterministic
  std::optional<KvExpansion> kv_expansion = {};  // as --kv-expansion
  std::optional<bool> lookup_drafts = {};        // as --draft lookup
  // Passed back, the run stays within these bytes where the machine has more.
  std::optional<PlanMemory> memory = {};
  PlanOrigin made_for = {};

  // What of cpu_linear holds: where the CPU is the device, it shares with nobody.
  std::vector<CpuLinearShare> shared_linear(bool host_visible) const {
    return host_visible ? std::vector<CpuLinearShare>{} : cpu_linear;
  }
  WeightPlan weight_plan() const { return {weights, embeddings, overrides}; }
  // Nothing is anywhere but on the device.
  bool all_on_device() const;
};

// Throws kInvalidArgument naming the field (and the file) for anything that is not a plan, or one
// of an unknown version. A file without a version, as people write them, has this one. Version 2 is
// read, too: it says at_once for max_concurrent and lacks the fields that came with version 3.
inline constexpr int kPlanVersion = 3;
Plan parse_plan(std::string_view text, const std::string& where);
Plan read_plan(const std::filesystem::path& path);
std::string plan_to_json(const Plan& plan);
// Returns a text that is the same for plans with equal homes of weights. Identities of batch jobs
// and of KV folders contain its digest, so it must never change.
std::string weight_placement_text(const Plan& plan);

// Who attends to KV that is not on the device, where that must not depend on which other sequences
// there are. Of several homes, a sequence gets the one that has room: then only the device can.
AttentionPlace same_for_every_sequence(const Plan& plan);

// Of `sequences` that there is room for, those at work together: a block; row by row it is a
// micro-batch.
int sequences_at_once(const Plan& plan, int sequences);

// "20,80,0": percent on GPU, host and disk, adding up to 100. `option` is named in errors.
TierShares parse_shares(std::string_view text, std::string_view option);
// "66": percent, whatever the tokens; "1:66,64:50": of up to so many.
std::vector<CpuLinearShare> parse_cpu_linear(std::string_view text, std::string_view option);
ScheduleKind parse_schedule(std::string_view text);
AttentionPlace parse_attention_place(std::string_view text);
const char* schedule_name(ScheduleKind kind);
const char* attention_place_name(AttentionPlace place);

}  // namespace spillway
