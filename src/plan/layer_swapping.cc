// SPDX-License-Identifier: Apache-2.0
#include "plan/layer_swapping.h"

#include <algorithm>

#include "base/error.h"

namespace spillway {
namespace {

// The assumed longest step. KV that the link cannot copy in that time is never swapped.
constexpr double kLongestStep = 0.1;  // seconds

}  // namespace

int requested_swapped_layers(const KvExpansion& expansion, const LayerSwapSizes& sizes) {
  const int given = expansion.layers.value_or(0);
  if (given == 0) return 0;
  int least = 1;
  while (least < sizes.layers && !sizes.gains_with(least)) ++least;
  SPW_CHECK(given >= least && given < sizes.layers, kInvalidArgument,
            "--kv-expansion is {}; of {} layers, none or {} to {} can be swapped", given,
            sizes.layers, least, sizes.layers - 1);
  return sizes.blocks > 0 ? given : 0;
}

int most_swapped_layers(const Footprint& needs, const Budgets& budgets, double to_device_per_s) {
  LayerSwapSizes sizes = needs.layout.swap_sizes;
  // Swapping gains nothing if sequences are in several memories, because those fill the device
  // anyway.
  if (sizes.blocks == 0 || needs.layout.spans()) return 0;
  // Swapped KV takes at most half of the host memory that is left.
  const uint64_t left =
      budgets.host - std::min(budgets.host, needs.host.peak_bytes + needs.host_workspace);
  const double most_bytes = std::min(to_device_per_s * kLongestStep, static_cast<double>(left) / 2);
  while (sizes.most + 1 < sizes.layers) {
    ++sizes.most;
    const double bytes = static_cast<double>(sizes.most) * sizes.most_blocks() *
                         static_cast<double>(needs.layout.kv.most_layer_block_bytes());
    if (bytes <= most_bytes) continue;
    --sizes.most;
    break;
  }
  return sizes.gains_with(sizes.most) ? sizes.most : 0;
}

}  // namespace spillway
