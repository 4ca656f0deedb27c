// SPDX-License-Identifier: Apache-2.0
// RMS and layer normalisation.
#pragma once

#include "base/thread_pool.h"
#include "cpu/workspace.h"
#include "device/ops.h"

namespace spillway::cpu {

// Computes out = norm(x) * weight + bias, row by row. x, out [rows, dim]; weight, bias [1, dim] of
// a plain type; bias may be empty. out may be x.
void norm(ThreadPool& pool, Workspace& workspace, NormKind kind, const Activations& x,
          const WeightView& weight, const WeightView& bias, float eps, const Activations& out);
// Computes out += norm(x) * weight + bias; out is not x.
void add_norm(ThreadPool& pool, Workspace& workspace, NormKind kind, const Activations& x,
              const WeightView& weight, const WeightView& bias, float eps, const Activations& out);
// Computes x = x * factor.
void scale(ThreadPool& pool, const Activations& x, float factor);

}  // namespace spillway::cpu
