// SPDX-License-Identifier: Apache-2.0
// What logits say of a token, without a copy of their exponentials.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "device/ops.h"

namespace spillway::cpu {

// See Ops::score(). A row's result does not depend on the others or on threads.
void score(ThreadPool& pool, const Activations& logits, std::span<const int32_t> ids,
           std::span<TokenScore> scores);

}  // namespace spillway::cpu
