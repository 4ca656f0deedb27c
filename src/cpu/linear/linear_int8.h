// SPDX-License-Identifier: Apache-2.0
// Matrix products of packed weights (tensor/packed_layout.h) with activations rounded to 8 bits.
#pragma once

#include "base/thread_pool.h"
#include "cpu/linear/linear_args.h"
#include "cpu/linear/linear_int8_args.h"
#include "tensor/tensor_view.h"

namespace spillway {

// The sets of integer instructions that kernels exist for, from worst to best within each
// architecture.
enum class Int8Set : uint8_t { kNone, kDotprod, kI8mm, kAvx2, kAvxVnni, kAvx512Vnni };
inline constexpr Int8Set kAllInt8Sets[] = {Int8Set::kDotprod, Int8Set::kI8mm, Int8Set::kAvx2,
                                           Int8Set::kAvxVnni, Int8Set::kAvx512Vnni};
// Return whether this program and this processor have a set, and the best that both have.
bool has_int8_set(Int8Set set);
Int8Set best_int8_set();

// Returns null if `set` has no kernel for `type`.
Int8Kernel try_int8_kernel(Int8Set set, DType type);
// Returns the form of activations that the kernels of `type` need; activations quantized for one
// set do not suit another.
Int8Form int8_form(Int8Set set, DType type);

// Returns the layout that this processor's kernels prefer for a matrix of `rows` rows: packed if
// there are integer kernels for its type.
WeightLayout layout_for_kernels(DType type, int64_t rows);

namespace cpu {

// Give the floats of scratch memory for the activations in one form, and for each worker.
size_t int8_shared_floats(int64_t tokens, int64_t k);
inline constexpr size_t kInt8WorkerFloats = kInt8PanelBytes / sizeof(float);

// Computes a.out (+)= x * w^T + a.bias for the packed groups of a matrix; a.w and a.x are not used.
// Every element is reduced in the one order that linear_int8_inl.h describes.
struct Int8Product {
  Int8Kernel kernel = nullptr;
  Int8Form form = {};  // its activations must have this form
  Int8Args args = {};
};
// Throws kUnsupported if there are no kernels: a device does not ask for a layout it cannot
// multiply.
Int8Product int8_product(const WeightView& w, const LinearArgs& a);

// Converts x to a form. `shared` has int8_shared_floats().
void quantize_int8(ThreadPool& pool, const Activations& x, const Int8Form& form, float* shared);
// Makes a product read its activations from `shared`.
void set_int8_input(Int8Args& args, float* shared);

}  // namespace cpu
}  // namespace spillway
