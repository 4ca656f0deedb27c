// SPDX-License-Identifier: Apache-2.0
// What a run computes with, as the options say it: the types of weights and KV, sparse attention,
// how prompts are cut.
#pragma once

#include <optional>
#include <string>

#include "plan/plan.h"

namespace spillway {

struct ComputeOptions {
  bool compress_weights = false;
  std::string kv_type = "auto";
  bool compress_kv = false;
  float attention_topk = 0;  // 0 = dense
  int chunk = 0;             // 0 = what suits the device

  // What a plan's file says, where no option does.
  void take_from(const Plan& plan);
  // Nothing: the model's default. Throws kInvalidArgument for what is no type, or for two of them.
  std::optional<KvType> try_kv_type() const;
  // 0 = dense. Throws kInvalidArgument for what is no share.
  float checked_topk() const;
};

}  // namespace spillway
