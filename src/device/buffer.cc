// SPDX-License-Identifier: Apache-2.0
#include "device/buffer.h"

#include "device/device.h"

namespace spillway {

Buffer::~Buffer() {
  if (device_ != nullptr) device_->release(data_, bytes_, tag_);
}

}  // namespace spillway
