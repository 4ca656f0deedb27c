// SPDX-License-Identifier: Apache-2.0
// Solves the linear program for a plan's shares (FlexGen, 4.3): which shares of weights, KV and
// hidden states are in which memory, and to how many sequences the CPU attends. It minimizes the
// time of a layer, which is at least that of each worker.
#pragma once

#include <cstdint>

#include "plan/placed_weights.h"
#include "plan/plan_shares.h"
#include "plan/predict.h"
#include "plan/search_request.h"

namespace spillway {

// Keeps references to its constructor's arguments, which must outlive it. Not thread-safe.
class ShareProgram {
 public:
  ShareProgram(const SearchRequest& request, const MemoryCheck& memory, Predictor& predictor);

  // Sets the shares of a plan. `found` has its size, micro-batch, embeddings and place of
  // attention, and the footprint with everything on the device. Hidden states may leave the device
  // if the shares in `found` do not have all of them there. Returns false if no shares satisfy the
  // constraints. The program estimates slots, staging and rounding; whether the plan fits, only its
  // footprint decides.
  bool try_shares(FoundPlan& found, bool kv_on_disk);

 private:
  // Sizes of a plan's parts, computed from the footprint of a plan with as much as possible off the
  // device.
  struct Sizes {
    double kv = 0;            // bytes
    double device_fixed = 0;  // bytes that do not depend on the shares
    // For a step in which something is not on the device: its tokens, and the tokens that go
    // through a layer together. Hidden states that are always on the device (`fixed_tokens`) are
    // part of device_fixed.
    int64_t step_tokens = 1;
    int micro_tokens = 1;
    double fixed_tokens = 0;
  };
  Sizes sizes_of(const FoundPlan& found);

  const SearchRequest& r_;
  const MemoryCheck& memory_;
  Predictor& predictor_;
  PlanShares shares_;
  bool discrete_, quantized_;
  double requests_, prompt_tokens_, decode_keys_;  // of the workload
  double weight_bytes_ = 0, layer_bytes_ = 0;  // of matrices: in all layers, and in an average one
};

}  // namespace spillway
