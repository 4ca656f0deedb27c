// SPDX-License-Identifier: Apache-2.0
// While a device's step has parts for the host, the host's ops come one soon after the other.
#pragma once

#include "device/device.h"

namespace spillway {

// Tells the host so for as long as it lives; null: it has no part.
class ExpectedOps {
 public:
  explicit ExpectedOps(Device* host) : host_(host) {
    if (host_ != nullptr) host_->expect_ops(true);
  }
  ~ExpectedOps() {
    if (host_ != nullptr) host_->expect_ops(false);
  }
  ExpectedOps(const ExpectedOps&) = delete;
  ExpectedOps& operator=(const ExpectedOps&) = delete;

 private:
  Device* host_;
};

}  // namespace spillway
