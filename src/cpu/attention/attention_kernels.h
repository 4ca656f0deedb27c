// SPDX-License-Identifier: Apache-2.0
// Attention kernels that need an instruction set, each in an object of its own. They are called
// only if cpu_features() has it; attention.cc chooses.
#pragma once

#include "cpu/attention/attention_args.h"

namespace spillway {

// Attends the queries of `tile` to keys [split * 256, split * 256 + 256) and writes to `result`.
// `scratch` has split_scratch_floats(). A query's result does not depend on the other queries of
// the tile.
using AttendSplit = void (*)(const AttentionArgs& a, const AttentionTile& tile, int64_t split,
                             const AttentionPartial& result, float* scratch);

// The ARM kernels. Numerics: queries and probabilities are floats (Neon), rounded to F16 (Fp16fml)
// or to 16-bit integers (int8 and int4 pages), each with a scale of its own; products are added in
// F32 or exactly.
extern const AttendSplit kAttendBf16Neon;
extern const AttendSplit kAttendHalfFp16fml;  // F16 pages
extern const AttendSplit kAttendInt8Dotprod;
extern const AttendSplit kAttendInt4Dotprod;
extern const AttendSplit kAttendInt8I8mm;
extern const AttendSplit kAttendInt4I8mm;

// The ARM kernels for three or more queries of a KV head are quicker and less precise. Tiles with
// fewer go to the kernels above, so the rest of a tile decides which kernel takes a query: not for
// deterministic results.
//
// On F16 pages, queries and probabilities are rounded to halves, and so are the sums of up to 16
// products with values; these, and products with keys, are added in F32. If halves overflow, the
// cut is done again by kAttendHalfFp16fml.
extern const AttendSplit kAttendGroupHalfFp16fml;
// On int8 and int4 pages, queries are 16-bit integers as above; probabilities are halves, and times
// the scales of V they are 16-bit integers with a unit for the whole cut; products are added
// exactly. Cuts with scores that are not finite go to the kernels above.
extern const AttendSplit kAttendGroupInt8I8mm;
extern const AttendSplit kAttendGroupInt4I8mm;

// The x86 kernels. Numerics: queries and probabilities are floats (F16 and BF16 pages) or rounded
// to 16-bit integers (int8 and int4 pages), each query with a scale per 64 elements, and its
// probabilities times the scales of V with a unit per 64 elements and cut; products are added in
// F32 or exactly.
extern const AttendSplit kAttendHalfAvx2;
extern const AttendSplit kAttendBf16Avx2;
extern const AttendSplit kAttendInt8Avx2;
extern const AttendSplit kAttendInt4Avx2;
extern const AttendSplit kAttendInt8AvxVnni;
extern const AttendSplit kAttendInt4AvxVnni;
extern const AttendSplit kAttendHalfAvx512;
extern const AttendSplit kAttendBf16Avx512;
extern const AttendSplit kAttendInt8Avx512;
extern const AttendSplit kAttendInt4Avx512;

// Attends the rows of `tile`, which has one KV head and may have up to kPrefillQueries queries, to
// all their keys and writes to a.out. `scratch` has prefill_scratch_floats(). A query's result may
// depend on the other queries of the tile.
using AttendRows = void (*)(const AttentionArgs& a, const AttentionTile& tile, float* scratch);

// The ARM kernel with matrix multiplication of bytes and of bfloat16 and arithmetic on halves.
// Numerics: queries and keys are rounded to 16-bit integers with a scale per query and per page of
// keys, probabilities and values to bfloat16, whose products are added in F32. It takes pages of
// any type but F32, and heads of up to 256.
extern const AttendRows kAttendRowsBfmmla;

}  // namespace spillway
