// SPDX-License-Identifier: Apache-2.0
// A token's number in its vocabulary.
#pragma once

#include <cstdint>

namespace spillway {

using TokenId = int32_t;

}  // namespace spillway
