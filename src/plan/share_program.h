// SPDX-License-Identifier: Apache-2.0
// The linear program for a plan's shares (FlexGen, 4.3): which part of weights, KV and hidden
// states is in which memory, and how many sequences the CPU attends to, so that the time of a
// layer, at least that of each worker, is least.
#pragma once

#include <cstdint>

#include "plan/placed_weights.h"
#include "plan/plan_shares.h"
#include "plan/predict.h"
#include "plan/search_request.h"

namespace spillway {

// Refers to all that it is made of. Not thread-safe.
class ShareProgram {
 public:
  ShareProgram(const SearchRequest& request, const MemoryCheck& memory, Predictor& predictor);

  // Sets the shares of a plan whose size, micro-batch, embeddings and place of attention are given,
  // with the footprint of all of it on the device. Hidden states may leave the device if those of
  // `found` are not all there. False where nothing satisfies the program. It knows slots, staging
  // and rounding about: whether the plan fits, the footprint says.
  bool try_shares(FoundPlan& found, bool kv_on_disk);

 private:
  // What a plan's parts take, by the footprint of extremes.
  struct Sizes {
    double kv = 0;            // bytes
    double device_fixed = 0;  // bytes, whatever the shares
    // Of a step where something is not on the device: its tokens, those that go through a layer
    // together. Hidden states that are always on the device are part of device_fixed.
    int64_t step_tokens = 1;
    int micro_tokens = 1;
    double fixed_tokens = 0;
  };
  Sizes sizes_of(const FoundPlan& found);

  const SearchRequest& r_;
  const MemoryCheck& memory_;
  Predictor& predictor_;
  PlanShares shares_;
  bool apart_, quantized_;
  double requests_, prompt_tokens_, decode_keys_;  // of the workload
  double weight_bytes_ = 0, layer_bytes_ = 0;      // of matrices: all layers', one's on average
};

}  // namespace spillway
