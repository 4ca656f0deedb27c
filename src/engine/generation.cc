// SPDX-License-Identifier: Apache-2.0
#include "engine/generation.h"

namespace spillway {

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

EngineTraffic& EngineTraffic::operator+=(const EngineTraffic& other) {
  seconds += other.seconds;
  to_gpu_bytes += other.to_gpu_bytes;
  to_host_bytes += other.to_host_bytes;
  disk_read_bytes += other.disk_read_bytes;
  disk_write_bytes += other.disk_write_bytes;
  stalled_s += other.stalled_s;
  transfers = other.transfers;  // sums already
  return *this;
}

}  // namespace spillway
