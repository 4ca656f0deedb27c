// SPDX-License-Identifier: Apache-2.0
// What decides the bits of results besides the model and the request, as it is in effect.
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

// Values by name.
using NamedValues = std::vector<std::pair<std::string, std::string>>;

// A session computes by this and by nothing else that changes bits, and a batch job is the same job
// where all of it is the same. Where things lie, threads, chunks and schedules are no part of it:
// results do not depend on them (tests/placement/, tests/generation/).
struct ResultSettings {
  std::string program;  // its version
  std::string device;   // which kernels there are: the processor and what it has
  bool deterministic = false;
  std::string tuning;        // what chooses between kernels, where that is measured
  std::string weight_types;  // as they are in memory
  KvType kv_type = KvType::kF16;
  float attention_topk = 0;    // 0 = dense
  std::string host_attention;  // what the CPU attends to beside a GPU
  std::string host_linear;     // which rows of linear layers the CPU multiplies beside a GPU

  // All members by name, "--kv-type" where an option has it.
  NamedValues fields() const;
  bool operator==(const ResultSettings&) const = default;
};

// Of this program: "0.1.0".
std::string program_version();

// Whether sequences may lose their blocks and be computed again. Rows that attended to few of their
// positions when they were generated (`attention_topk` > 0) would attend to all: results show it.
bool may_preempt(float attention_topk, bool deterministic);

std::string describe_device(const Device& device);
// "F16 x 12, F32 x 5"
std::string describe_weight_types(const Model& model);
// As far as `device` looks at it; null: there is none.
std::string describe_tuning(const TuningTable* table, bool deterministic, const Device& device,
                            const std::string& model);
// Which sequences `host` attends to where `device` computes. Where their KV lies says that only if
// it is attended to there: pages that are moved in are the device's.
std::string describe_host_attention(const Plan& plan, const Device& device, const Device& host);
// Rows that another processor multiplies have other bits.
std::string describe_host_linear(const Plan& plan, const Device& device, const Device& host);

// "name" and value of each, for fields(): as many names as values.
template <size_t kCount, class... Values>
NamedValues name_fields(const char* const (&names)[kCount], const Values&... values) {
  static_assert(kCount == sizeof...(values), "every member has a name");
  size_t at = 0;
  return {{names[at++], values}...};
}

}  // namespace spillway
