// SPDX-License-Identifier: Apache-2.0
// Matrix products of packed weights (tensor/packed_layout.h) with activations rounded to 8 bits.
#pragma once

#include "base/thread_pool.h"
#include "cpu/linear/linear_args.h"
#include "cpu/linear/linear_int8_args.h"
#include "tensor/tensor_view.h"

namespace spillway {

// The integer instructions that kernels exist for, each architecture's from worst to best.
enum class Int8Set : uint8_t { kNone, kDotprod, kI8mm, kAvx2, kAvxVnni, kAvx512Vnni };
inline constexpr Int8Set kAllInt8Sets[] = {Int8Set::kDotprod, Int8Set::kI8mm, Int8Set::kAvx2,
                                           Int8Set::kAvxVnni, Int8Set::kAvx512Vnni};
// Whether this program and this processor have it; the best that both have.
bool has_int8_set(Int8Set set);
Int8Set best_int8_set();

// None when `set` has no kernel for `type`.
Int8Kernel try_int8_kernel(Int8Set set, DType type);
// What the kernels of `type` want; no activations quantized for one set suit another.
Int8Form int8_form(Int8Set set, DType type);

// How this processor's kernels like a matrix of `rows` rows: packed where there are integer kernels
// for its type.
WeightLayout layout_for_kernels(DType type, int64_t rows);

namespace cpu {

// Scratch memory: of the activations in one form, and of each worker.
size_t int8_shared_floats(int64_t tokens, int64_t k);
inline constexpr size_t kInt8WorkerFloats = kInt8PanelBytes / sizeof(float);

// a.out (+)= x * w^T + a.bias for the packed groups of a matrix; a.w, a.x are not used. Every
// element is reduced in the one order that linear_int8_inl.h describes.
struct Int8Product {
  Int8Kernel kernel = nullptr;
  Int8Form form = {};  // that its activations must have
  Int8Args args = {};
};
// Throws kUnsupported where there are no kernels: a device does not ask for a layout it cannot
// multiply.
Int8Product int8_product(const WeightView& w, const LinearArgs& a);

// Brings x into a form. `shared` has int8_shared_floats().
void quantize_int8(ThreadPool& pool, const Activations& x, const Int8Form& form, float* shared);
// Lets a product read what is there.
void set_int8_input(Int8Args& args, float* shared);

}  // namespace cpu
}  // namespace spillway
