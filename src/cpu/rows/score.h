// SPDX-License-Identifier: Apache-2.0
// Scores tokens by their logits, without a copy of the exponentials.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "device/ops.h"

namespace spillway::cpu {

// Implements Ops::score(). A row's result does not depend on other rows or on threads.
void score(ThreadPool& pool, const Activations& logits, std::span<const int32_t> ids,
           std::span<TokenScore> scores);

}  // namespace spillway::cpu
