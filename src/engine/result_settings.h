// SPDX-License-Identifier: Apache-2.0
// The settings in effect that decide the bits of results besides the model and the request.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "device/tuning.h"
#include "model/model.h"
#include "plan/plan.h"
#include "tensor/kv_format.h"

namespace spillway {

// Pairs of a name and a value.
using NamedValues = std::vector<std::pair<std::string, std::string>>;

// A session computes by these settings and by nothing else that changes bits, and a batch job is
// the same job if all of them are the same. Placement, threads, chunks and schedules are no part of
// them: results do not depend on these (tests/placement/, tests/generation/).
struct ResultSettings {
  std::string program;  // its version
  std::string device;   // decides which kernels there are: the processor and its features
  bool deterministic = false;
  std::string tuning;        // what chooses between kernels, if it was measured
  std::string weight_types;  // as they are in memory
  KvType kv_type = KvType::kF16;
  float attention_topk = 0;    // 0 = dense
  std::string host_attention;  // the KV over which the CPU computes attention beside a GPU
  std::string host_linear;     // which rows of linear layers the CPU multiplies beside a GPU

  // Returns all members by name, "--kv-type" if an option has it.
  NamedValues fields() const;
  bool operator==(const ResultSettings&) const = default;
};

// Returns the version of this program: "0.1.0".
std::string program_version();

// Returns whether sequences may lose their blocks and be computed again. Tokens that attended to
// few positions when they were generated (`attention_topk` > 0) would attend to all, which changes
// results; deterministic runs exclude that.
bool may_preempt(float attention_topk, bool deterministic);

std::string describe_device(const Device& device);
// "F16 x 12, F32 x 5"
std::string describe_weight_types(const Model& model);
// Describes the part of the table that `device` uses; null: there is no table.
std::string describe_tuning(const TuningTable* table, bool deterministic, const Device& device,
                            const std::string& model);
// Describes for which sequences `host` computes attention beside `device`. The placement of KV
// decides that only if attention runs where the KV is: KV that is copied in is attended to by the
// device.
std::string describe_host_attention(const Plan& plan, const Device& device, const Device& host);
// Describes which rows `host` multiplies: another processor's rows have other bits.
std::string describe_host_linear(const Plan& plan, const Device& device, const Device& host);

// Pairs each name with its value, for fields(): as many names as values.
template <size_t kCount, class... Values>
NamedValues name_fields(const char* const (&names)[kCount], const Values&... values) {
  static_assert(kCount == sizeof...(values), "every member has a name");
  size_t at = 0;
  return {{names[at++], values}...};
}

}  // namespace spillway
