// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear/linear_f32.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/linear/linear_f32.cc"
#include <hwy/foreach_target.h>
// These must be included after foreach_target.
#include <hwy/highway.h>

#include "cpu/linear/linear_kernels_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

void linear_rows(DType type, const LinearArgs& a, int64_t begin, int64_t end, float* panel) {
  with_decoder(type, [&](auto decoder) HWY_ATTR {
    using Decoder = decltype(decoder);
    if (a.tokens == 1) {
      linear_one<Decoder>(a, begin, end);
    } else {
      linear_many<Decoder>(a, begin, end, panel);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway {

HWY_EXPORT(linear_rows);

namespace cpu {

void linear_f32(DType type, const LinearArgs& a, int64_t begin, int64_t end, float* panel) {
  HWY_DYNAMIC_DISPATCH(linear_rows)(type, a, begin, end, panel);
}

}  // namespace cpu
}  // namespace spillway
#endif
