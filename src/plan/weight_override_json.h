// SPDX-License-Identifier: Apache-2.0
// Reads and writes the memories in which named matrices live (their homes), as a plan's file has
// them: {"layers": "0-3,40", "role": "mlp_down", "home": "host"}. Layers and role may be left out.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "plan/weight_plan.h"

namespace spillway {

// Throws kInvalidArgument, naming the entry of `field`; for an unknown role it also lists the known
// ones.
std::vector<WeightOverride> weight_overrides_from(const nlohmann::json& value,
                                                  const std::string& field);
nlohmann::ordered_json weight_overrides_to_json(const std::vector<WeightOverride>& overrides);

}  // namespace spillway
