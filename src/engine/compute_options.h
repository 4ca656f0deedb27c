// SPDX-License-Identifier: Apache-2.0
// Options of what a run computes with: the types of weights and KV, sparse attention, and the
// chunks of prompts.
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

  // Takes over what a plan's file says for those fields that no option sets.
  void take_from(const Plan& plan);
  // Returns nothing for the model's default. Throws kInvalidArgument for what is no type, or for
  // two of them.
  std::optional<KvType> try_kv_type() const;
  // Returns the share of the context, 0 = dense. Throws kInvalidArgument for what is no share.
  float checked_topk() const;
};

}  // namespace spillway
