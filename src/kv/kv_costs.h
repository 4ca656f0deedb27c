// SPDX-License-Identifier: Apache-2.0
// Decides from a few measured numbers whether loading stored KV is faster than computing it.
#pragma once

#include <cstdint>

namespace spillway {

struct KvCosts {
  double token_s = 0;           // to compute a token of a prompt; 0: unknown, then loading pays
  double token_position_s = 0;  // added to that for each token before it
  // Bytes per second to the device, and from the disk; 0: that transfer costs nothing.
  double to_device = 0, from_disk = 0;

  // The seconds to compute `tokens` tokens after `position` others.
  double compute_s(double position, double tokens) const {
    return tokens * token_s + token_position_s * tokens * (position + tokens / 2);
  }
  double load_s(double device_bytes, double disk_bytes) const {
    return (to_device > 0 ? device_bytes / to_device : 0) +
           (from_disk > 0 ? disk_bytes / from_disk : 0);
  }
  bool loading_pays(double position, double tokens, double device_bytes, double disk_bytes) const {
    return token_s <= 0 || load_s(device_bytes, disk_bytes) < compute_s(position, tokens);
  }
};

}  // namespace spillway
