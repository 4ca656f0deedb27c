// SPDX-License-Identifier: Apache-2.0
// How the device's memory for KV is cut where some layers take turns there (Pie, 3.1).
#pragma once

#include <cstdint>
#include <vector>

namespace spillway {

// Buffers on the device that layers share which take turns: while one is in use, the next arrives
// in the other, and the link is never idle. Where layers that take turns are far apart, one does:
// the link idles while a layer's KV is in use, which is little of the time between two of them, and
// the other buffer is room for as many blocks as one more such layer brings.
inline constexpr int kSpareBuffers = 2;
inline constexpr int kFarApart = 6;  // layers

// Which of the layers are swapped: as evenly spread over a step as they can be, so that each has
// the same time to arrive.
inline std::vector<int> choose_swapped_layers(int layers, int swapped) {
  std::vector<int> found;
  for (int k = 0; k < swapped; ++k) found.push_back((2 * k + 1) * layers / (2 * swapped));
  return found;
}

struct TurnSizes {
  int layers = 0;
  int32_t blocks = 0;         // of each layer's buffer on the device, where all layers stay there
  int most = 0;               // layers that take turns, at most; 0: none ever does
  int spare = kSpareBuffers;  // at most

  // Of so many layers that take turns: buffers that they share, all buffers on the device, and
  // blocks of each. The same memory in fewer buffers: that is what turns are for. No more layers
  // than shared buffers gain nothing.
  int spare_with(int turning) const { return kFarApart * turning <= layers ? 1 : spare; }
  bool gains_with(int turning) const { return turning > spare_with(turning); }
  int buffers(int turning) const {
    return gains_with(turning) ? layers - turning + spare_with(turning) : layers;
  }
  int32_t blocks_with(int turning) const {
    return static_cast<int32_t>(int64_t{blocks} * layers / buffers(turning));
  }
  int32_t most_blocks() const { return blocks_with(most); }
};

}  // namespace spillway
