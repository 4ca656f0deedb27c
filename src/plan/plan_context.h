// SPDX-License-Identifier: Apache-2.0
// A model on a machine with everything that its plans have in common: searches, trials of a refusal
// and fit suggestions compute the homes of a plan's weights (the memories in which they live), its
// streaming schedules and its step prices only once.
#pragma once

#include <functional>
#include <optional>

#include "model/model.h"
#include "plan/footprint.h"
#include "plan/placed_weights.h"
#include "plan/predict.h"
#include "plan/priced_steps.h"

namespace spillway {

// Keeps a reference to the model, which must outlive it. Not thread-safe.
class PlanContext {
 public:
  // `compressed`: the model's plain matrices are 4-bit groups already. Sizes of memories in
  // `traits` do not matter. `hardware` is called only if something is priced; the reference that it
  // returns must stay valid.
  PlanContext(const Model& model, bool compressed, const DeviceTraits& traits,
              std::function<const Hardware&()> hardware);
  PlanContext(const PlanContext&) = delete;
  PlanContext& operator=(const PlanContext&) = delete;

  const Hardware& hardware() const { return hardware_(); }
  // Returns the model or, with `compress`, the model with 4-bit groups in place of its plain
  // matrices.
  const Model& model(bool compress) { return variant(compress).model; }
  PlacedWeights& weights(bool compress) { return variant(compress).weights; }
  PricedSteps& steps(bool compress);
  // Estimates a workload's times with the simulator. `needs` is the footprint of the plan for
  // `size`.
  Prediction price(const Plan& plan, const Footprint& needs, const RunSize& size,
                   const Workload& workload, bool compress);

 private:
  struct Variant {
    Variant(const Model& of, const DeviceTraits& traits) : model(of), weights(of, traits) {}
    const Model& model;
    PlacedWeights weights;
    std::optional<PricedSteps> steps = {};  // made for the first price
  };
  Variant& variant(bool compress);

  const bool is_compressed_;
  const DeviceTraits traits_;
  const std::function<const Hardware&()> hardware_;
  Variant as_given_;
  std::optional<Model> compressed_model_;  // made at its first use
  std::optional<Variant> compressed_;
};

}  // namespace spillway
