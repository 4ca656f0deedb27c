// SPDX-License-Identifier: Apache-2.0
#include "device/stream.h"

#include <cstring>
#include <thread>

namespace spillway {

bool wait_for(const HostSignal& signal, uint32_t value, const std::atomic<bool>* given_up) {
  using Clock = std::chrono::steady_clock;
  // A decode step's pause between two signals is shorter than falling asleep and waking up.
  constexpr std::chrono::microseconds kAwake{2000}, kNap{50};
  const auto start = Clock::now();
  while (!signal.has_reached(value)) {
    if (given_up != nullptr && given_up->load()) return false;
    if (Clock::now() - start < kAwake) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
  return true;
}

double HostEvent::seconds_after(const DeviceEvent& earlier) const {
  return std::chrono::duration<double>(at_ - static_cast<const HostEvent&>(earlier).at_).count();
}

void HostStream::copy_to_device(std::span<const CopyPiece> pieces) {
  for (const CopyPiece& piece : pieces) std::memcpy(piece.to, piece.from, piece.bytes);
}

}  // namespace spillway
