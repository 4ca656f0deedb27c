// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_context.h"

#include <utility>

namespace spillway {

PlanContext::PlanContext(const Model& model, bool compressed, const DeviceTraits& traits,
                         std::function<const Hardware&()> hardware)
    : is_compressed_(compressed),
      traits_(traits),
      hardware_(std::move(hardware)),
      as_given_(model, traits) {}

PlanContext::Variant& PlanContext::variant(bool compress) {
  if (!compress || is_compressed_) return as_given_;
  if (!compressed_) {
    compressed_model_ = as_given_.model;
    compress_matrices(*compressed_model_);
    compressed_.emplace(*compressed_model_, traits_);
  }
  return *compressed_;
}

PricedSteps& PlanContext::steps(bool compress) {
  Variant& of = variant(compress);
  if (!of.steps) of.steps.emplace(hardware(), of.weights);
  return *of.steps;
}

Prediction PlanContext::price(const Plan& plan, const Footprint& needs, const RunSize& size,
                              const Workload& workload, bool compress) {
  // A GPU that computes in host memory is priced as a host, even if its memory has a budget of its
  // own.
  if (hardware().has_device() == traits_.host_visible)
    return predict(hardware(), model(compress), plan, needs, size, workload);
  return Predictor(steps(compress), workload).predict(plan, needs, size, PriceBy::kSimulator);
}

}  // namespace spillway
