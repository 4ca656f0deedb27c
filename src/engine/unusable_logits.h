// SPDX-License-Identifier: Apache-2.0
// Explains why a model's logits are not numbers.
#pragma once

#include <string>

#include "runtime/decoder.h"
#include "tensor/kv_format.h"

namespace spillway {

// Returns one line for the user: the value that did not fit into the KV cache, if there was one,
// and what to do about it. Waits for the device.
std::string explain_unusable_logits(Decoder& decoder, KvType type);

}  // namespace spillway
