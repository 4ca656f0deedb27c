// SPDX-License-Identifier: Apache-2.0
// How the device's memory for KV is cut where some layers take turns there (Pie, 3.1).
#pragma once

#include <cstdint>

namespace spillway {

// Buffers on the device that layers share which take turns: while one is attended to, the next
// arrives in the other, and the link is never idle. One would do, at the cost of that.
inline constexpr int kSpareBuffers = 2;

struct TurnSizes {
  int layers = 0;
  int32_t blocks = 0;  // of each layer's buffer on the device, where all layers stay there
  int most = 0;        // layers that take turns, at most; 0: none ever does
  int spare = kSpareBuffers;

  // Of so many layers that take turns: buffers on the device, and blocks of each. The same memory
  // in fewer buffers: that is what turns are for. Up to `spare` of them gain nothing.
  int buffers(int turning) const { return turning > spare ? layers - turning + spare : layers; }
  int32_t blocks_with(int turning) const {
    return static_cast<int32_t>(int64_t{blocks} * layers / buffers(turning));
  }
  int32_t most_blocks() const { return blocks_with(most); }
};

}  // namespace spillway
