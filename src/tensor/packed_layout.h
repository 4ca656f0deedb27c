// SPDX-License-Identifier: Apache-2.0
// Defines the packed layout of quantized matrices (WeightLayout::kGroups16): 16 rows are
// interleaved so that one 16-byte load is an operand of an 8-bit matrix instruction (two rows of
// eight elements).
//
// A group of 16 rows is a sequence of group blocks, one per block column, each of exactly 16 times
// the file's block bytes. So packing never changes where a group begins or ends, and can be done in
// place. Byte for byte, a group block consists of:
//
//   Q4_0  d[16]            sub
//   Q4_1  d[16] m[16]      sub
//   Q5_0  d[16]            sub high1
//   Q5_1  d[16] m[16]      sub high1
//   Q8_0  d[16]            bytes
//   Q2_K  d[16] dmin[16]   bytes[16 sub-blocks of 16][16 rows]   8 x (high2)
//   Q3_K  d[16]            six(scales 0-7) six(scales 8-15)   8 x (high2 high1)
//   Q4_K  d[16] dmin[16]   six(scales) six(minima)   8 x (sub)
//   Q5_K  d[16] dmin[16]   six(scales) six(minima)   8 x (sub high1)
//   Q6_K  d[16]            scales[16 sub-blocks of 16][16 rows]   8 x (sub high2)
//   G4    d[16] m[16]      2 x (sub)
//
// d, m and dmin are halves, one per row. `sub` is 32 columns of 16 rows in pieces of 16 bytes,
// piece (p, h) for row pair p < 8 and half h < 2: bytes 0-7 belong to row 2p, bytes 8-15 to row 2p
// + 1; byte i (mod 8) holds the low four bits of column 8h + i in its low half and of column 16 +
// 8h + i in its high half. `high1` (64 bytes) holds the fifth bits: byte j of vector p / 2 belongs
// to byte j of the pieces of p, with bit 4 (p % 2) + 2h for its low half and bit 4 (p % 2) + 2h + 1
// for its high half. `high2` (128 bytes) holds bits 4-5 in the same way: byte j of vector p, from
// bits 4h and 4h + 2 upwards. `bytes` (512) is whole bytes in pieces (p, s), s < 4: columns 8s to
// 8s + 7. `six` (96 bytes) holds six-bit values of sixteen rows: low[4] has sub-block s in the low
// half and s + 4 in the high half; top[2] has bits 4-5 of sub-block s in top[s / 4], at bit 2 (s %
// 4).
//
// In Q2_K `high2` holds the two bits of q, and the header's bytes are those of the file: the scale
// of a row's sub-block in the low half, the minimum in the high half. In Q3_K `high2` holds the
// lower two bits of q and `high1` the third.
//
// Q5_0, Q6_K and Q3_K store q - 2^(bits-1) in two's complement; the others store q like the file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/tensor_view.h"

namespace spillway {

// Whether `type` has a packed layout.
bool can_pack(DType type);

// Packs `groups` groups of 16 rows of `cols` columns (whole blocks). `packed` may be `stored`;
// otherwise they must not overlap. Any alignment is allowed. Thread-safe on different groups.
void pack_groups(DType type, const std::byte* stored, std::byte* packed, int64_t groups,
                 int64_t cols);

// Writes row `row` (< 16) of the group at `packed` in the file's form: row_bytes(type, cols) bytes.
void unpack_row(DType type, const std::byte* packed, int64_t row, std::byte* stored, int64_t cols);

}  // namespace spillway
