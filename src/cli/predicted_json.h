// SPDX-License-Identifier: Apache-2.0
// What the cost model says of a run, as every command reports it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "plan/predict.h"

namespace spillway {

nlohmann::json predicted_json(const Prediction& predicted);
// Beside what was measured of the same.
nlohmann::json predicted_json(const Prediction& predicted, double measured_tokens_per_s);

}  // namespace spillway
