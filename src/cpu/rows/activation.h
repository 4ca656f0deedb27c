// SPDX-License-Identifier: Apache-2.0
// Elementwise activation functions, alone and gated.
#pragma once

#include "base/thread_pool.h"
#include "device/ops.h"

namespace spillway::cpu {

// Computes x = f(x). x [rows, cols].
void activate(ThreadPool& pool, ActivationKind kind, const Activations& x);

// Computes out = f(gate) * up, all [rows, cols]. out may be gate or up.
void gated_activate(ThreadPool& pool, ActivationKind kind, const Activations& gate,
                    const Activations& up, const Activations& out);

}  // namespace spillway::cpu
