// SPDX-License-Identifier: Apache-2.0
// Tells the host device while a step of another device runs in which the host's ops follow each
// other closely.
#pragma once

#include "device/device.h"

namespace spillway {

// Calls Device::expect_ops() of `host` for its lifetime. `host` may be null if it has no part in
// the step.
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
