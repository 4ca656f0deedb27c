// SPDX-License-Identifier: Apache-2.0
// Draws the frontier of latency and throughput (plan/frontier.h).
#pragma once

#include <string>
#include <vector>

#include "plan/frontier.h"

namespace spillway {

// Returns an SVG with the latency of a batch block (sequences that run together from the first
// prompt to the last answer) to the right and generated tokens per second upwards, both on
// logarithmic axes.
std::string frontier_svg(const std::vector<FrontierPoint>& points, const std::string& title);

}  // namespace spillway
