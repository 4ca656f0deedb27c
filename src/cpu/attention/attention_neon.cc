// SPDX-License-Identifier: Apache-2.0
// Attention of a few queries over BF16 pages with instructions of every 64-bit ARM processor. For
// F16 pages it gains nothing there: converting takes two cycles a vector on Neoverse N1.
#include "cpu/attention/attention_half_inl.h"
#include "cpu/attention/attention_kernels.h"
#include "cpu/attention/attention_neon_inl.h"

namespace spillway {

constinit const AttendSplit kAttendBf16Neon = attend_half<Neon, KvType::kBf16>;

}  // namespace spillway
