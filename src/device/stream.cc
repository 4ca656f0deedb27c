// SPDX-License-Identifier: Apache-2.0
#include "device/stream.h"

#include <cstring>

namespace spillway {

double HostEvent::seconds_after(const DeviceEvent& earlier) const {
  return std::chrono::duration<double>(at_ - static_cast<const HostEvent&>(earlier).at_).count();
}

void HostStream::copy_to_device(std::span<const CopyPiece> pieces) {
  for (const CopyPiece& piece : pieces) std::memcpy(piece.to, piece.from, piece.bytes);
}

}  // namespace spillway
