// SPDX-License-Identifier: Apache-2.0
// Identifies a request from the time it is taken until it has ended.
#pragma once

#include <cstdint>

namespace spillway {

enum class RequestId : uint64_t {};

}  // namespace spillway
