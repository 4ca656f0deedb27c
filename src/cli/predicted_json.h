// SPDX-License-Identifier: Apache-2.0
// The cost model's estimate of a run, as every command reports it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "plan/predict.h"

namespace spillway {

nlohmann::json predicted_json(const Prediction& predicted);
// Adds the ratio to the measured rate of the same run.
nlohmann::json predicted_json(const Prediction& predicted, double measured_tokens_per_s);

}  // namespace spillway
