// SPDX-License-Identifier: Apache-2.0
// Attention of a few queries with AVX2, and once more with AVX-VNNI. The file is compiled for each,
// so it contains nothing else.
#include "cpu/attention/attention_avx2_inl.h"
#include "cpu/attention/attention_codes_x86_inl.h"
#include "cpu/attention/attention_half_inl.h"
#include "cpu/attention/attention_kernels.h"

namespace spillway {

#if defined(__AVXVNNI__)
constinit const AttendSplit kAttendInt8AvxVnni = attend_codes<VectorCodes<Avx2, false>>;
constinit const AttendSplit kAttendInt4AvxVnni = attend_codes<VectorCodes<Avx2, true>>;
#else
constinit const AttendSplit kAttendHalfAvx2 = attend_half<Avx2, KvType::kF16>;
constinit const AttendSplit kAttendBf16Avx2 = attend_half<Avx2, KvType::kBf16>;
constinit const AttendSplit kAttendInt8Avx2 = attend_codes<VectorCodes<Avx2, false>>;
constinit const AttendSplit kAttendInt4Avx2 = attend_codes<VectorCodes<Avx2, true>>;
#endif

}  // namespace spillway
