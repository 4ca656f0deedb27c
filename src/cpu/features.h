// SPDX-License-Identifier: Apache-2.0
// Says which instructions this processor has and this process may use; kernels are chosen by them.
#pragma once

#include <string>
#include <string_view>

namespace spillway {

struct CpuFeatures {
  // on ARM
  bool dotprod = false;  // 8-bit dot products
  bool i8mm = false;     // 8-bit matrix multiplication
  bool fp16 = false;     // arithmetic on halves
  bool fp16fml = false;  // products of halves added to floats
  bool bf16 = false;     // bfloat16 dot products and matrix multiplication
  // on x86; each name stands for the options its kernels are compiled with (cpu/CMakeLists.txt)
  bool avx2 = false;         // with FMA and F16C
  bool avx_vnni = false;     // with avx2
  bool avx512_vnni = false;  // with AVX-512 F, BW, DQ, VL
  bool avx512_bf16 = false;  // with avx512_vnni
  bool amx_bf16 = false;     // with avx512_bf16; the kernel has granted the tiles
  bool amx_int8 = false;     // with amx_bf16
};

// Returns the features, which are detected once and never change after. Thread-safe.
const CpuFeatures& cpu_features();

// Leaves out the named features ("amx,avx512") and those that need them, whether this processor has
// them or not: for tests of kernels that other processors use, and for machines that claim
// instructions which do not work. Call it before the first cpu_features(). Throws kInvalidArgument
// for unknown names.
void leave_out_cpu_features(std::string_view names);
// Returns the names that can be left out: "bf16, i8mm, ...".
std::string cpu_feature_names();
// Returns whether a flag of the processor, as the kernel names it, was left out.
bool is_left_out(std::string_view flag);

}  // namespace spillway
