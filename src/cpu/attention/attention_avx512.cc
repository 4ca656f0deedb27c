// SPDX-License-Identifier: Apache-2.0
// Attention of a few queries with AVX-512. The file is compiled for it, so it contains nothing
// else.
#include "cpu/attention/attention_avx512_inl.h"
#include "cpu/attention/attention_codes_x86_inl.h"
#include "cpu/attention/attention_half_inl.h"
#include "cpu/attention/attention_kernels.h"

namespace spillway {

constinit const AttendSplit kAttendHalfAvx512 = attend_half<Avx512, KvType::kF16>;
constinit const AttendSplit kAttendBf16Avx512 = attend_half<Avx512, KvType::kBf16>;
constinit const AttendSplit kAttendInt8Avx512 = attend_codes<VectorCodes<Avx512, false>>;
constinit const AttendSplit kAttendInt4Avx512 = attend_codes<VectorCodes<Avx512, true>>;

}  // namespace spillway
