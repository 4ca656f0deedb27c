// SPDX-License-Identifier: Apache-2.0
// Attention kernels that need an instruction set, each in an object of its own. Entered only where
// cpu_features() has it; attention.cc chooses.
#pragma once

#include "cpu/attention_args.h"

namespace spillway {

// The queries of `tile` over keys [split * 256, split * 256 + 256) into `result`. `scratch` as
// split_scratch_floats() says. A query's result does not depend on the other queries of the tile.
using AttendSplit = void (*)(const AttentionArgs& a, const AttentionTile& tile, int64_t split,
                             const AttentionPartial& result, float* scratch);

// ARM. Numerics: queries and probabilities are rounded to F16 (F16 pages) or to 16-bit integers
// (int8 and int4 pages), each with a scale of its own; products are added in F32 or exactly.
extern const AttendSplit kAttendHalfFp16fml;  // F16 pages
extern const AttendSplit kAttendInt8I8mm;
extern const AttendSplit kAttendInt4I8mm;

// The rows of `tile`, which has one kv head and may have up to kPrefillQueries queries, over all
// keys that they see, into a.out. `scratch` as prefill_scratch_floats() says. A query's result may
// depend on the other queries of the tile.
using AttendRows = void (*)(const AttentionArgs& a, const AttentionTile& tile, float* scratch);

// ARM. Numerics: queries, keys, probabilities and values are rounded to bfloat16 and their products
// added in F32. Any type of pages but F32.
extern const AttendRows kAttendRowsBfmmla;

}  // namespace spillway
