// SPDX-License-Identifier: Apache-2.0
#include "device/stream.h"

#include <cstring>
#include <thread>

namespace spillway {

void wait_for(const HostSignal& signal, uint32_t value) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds kAwake{1000}, kNap{50};
  const auto start = Clock::now();
  while (!signal.has_reached(value)) {
    if (Clock::now() - start < kAwake) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

double HostEvent::seconds_after(const DeviceEvent& earlier) const {
  return std::chrono::duration<double>(at_ - static_cast<const HostEvent&>(earlier).at_).count();
}

void HostStream::copy_to_device(std::span<const CopyPiece> pieces) {
  for (const CopyPiece& piece : pieces) std::memcpy(piece.to, piece.from, piece.bytes);
}

}  // namespace spillway
