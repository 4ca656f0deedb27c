// SPDX-License-Identifier: Apache-2.0
// The frontier of latency and throughput (plan/frontier.h), drawn.
#pragma once

#include <string>
#include <vector>

#include "plan/frontier.h"

namespace spillway {

// As a drawing: latency of a block to the right, generated tokens per second upwards, both by their
// logarithms.
std::string frontier_svg(const std::vector<FrontierPoint>& points, const std::string& title);

}  // namespace spillway
