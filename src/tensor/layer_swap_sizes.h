// SPDX-License-Identifier: Apache-2.0
// Computes how the device's memory for KV is divided if some layers are swapped (Pie, 3.1): their
// KV lives in host memory and is on the device only for their part of a step.
#pragma once

#include <cstdint>
#include <vector>

namespace spillway {

// Buffers on the device that swapped layers share: while one is in use, the next layer's KV loads
// into the other, and the link is never idle. If swapped layers are far apart, one shared buffer is
// enough: the link is idle only while a layer's KV is in use, a small part of the time between two
// of them, and the other buffer's memory gives as many blocks as swapping one more layer.
inline constexpr int kSpareBuffers = 2;
inline constexpr int kFarApart = 6;  // layers between swapped ones, from which one buffer is enough

// Chooses which layers are swapped: spread as evenly over a step as possible, so that each has the
// same time to load.
inline std::vector<int> choose_swapped_layers(int layers, int swapped) {
  std::vector<int> found;
  for (int k = 0; k < swapped; ++k) found.push_back((2 * k + 1) * layers / (2 * swapped));
  return found;
}

struct LayerSwapSizes {
  int layers = 0;
  int32_t blocks = 0;         // blocks of each layer's buffer on the device if no layer is swapped
  int most = 0;               // the most layers that are ever swapped; 0: none
  int spare = kSpareBuffers;  // the most shared buffers

  // For a number of swapped layers, these return the buffers that they share, all buffers on the
  // device, and the blocks of each buffer. The same memory is divided among fewer buffers, which is
  // the purpose of swapping. Swapping no more layers than there are shared buffers gains nothing.
  int spare_with(int swapped) const { return kFarApart * swapped <= layers ? 1 : spare; }
  bool gains_with(int swapped) const { return swapped > spare_with(swapped); }
  int buffers(int swapped) const {
    return gains_with(swapped) ? layers - swapped + spare_with(swapped) : layers;
  }
  int32_t blocks_with(int swapped) const {
    return static_cast<int32_t>(int64_t{blocks} * layers / buffers(swapped));
  }
  int32_t most_blocks() const { return blocks_with(most); }
};

}  // namespace spillway
