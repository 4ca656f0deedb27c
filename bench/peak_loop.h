// SPDX-License-Identifier: Apache-2.0
// Declares the loops that measure how many operations per second an instruction can do. There is
// one per instruction, in an object compiled with the flags it needs, and so only plain types are
// used.
#pragma once

#include <cstdint>

namespace spillway {

struct PeakLoop {
  const char* name;      // name of the instruction
  const char* operands;  // the operand type: "int8", "f16", ...
  double ops_per_round;  // a multiplication and an addition count as two
  void (*run)(int64_t rounds);
};

// The loops are defined for the instruction sets of the target architecture. Run one only if the
// processor has the instruction (cpu/features.h).
extern const PeakLoop kNeonLoop;        // f32 fmla
extern const PeakLoop kFp16Loop;        // f16 fmla
extern const PeakLoop kFp16FmlLoop;     // fmlal
extern const PeakLoop kDotprodLoop;     // sdot
extern const PeakLoop kI8mmLoop;        // smmla
extern const PeakLoop kBfdotLoop;       // bfdot
extern const PeakLoop kBfmmlaLoop;      // bfmmla
extern const PeakLoop kAvx2Loop;        // f32 FMA of 256 bits
extern const PeakLoop kAvx512Loop;      // f32 FMA of 512 bits
extern const PeakLoop kVnniLoop;        // vpdpbusd of 512 bits
extern const PeakLoop kAvx512Bf16Loop;  // vdpbf16ps of 512 bits
extern const PeakLoop kAmxInt8Loop;     // tdpbssd
extern const PeakLoop kAmxBf16Loop;     // tdpbf16ps

}  // namespace spillway
