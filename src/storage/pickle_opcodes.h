// SPDX-License-Identifier: Apache-2.0
// Names the opcodes of Python's pickle format.
#pragma once

#include <cstdint>
#include <string_view>

namespace spillway {

// The opcodes that read_state_dict() follows.
enum class PickleOp : uint8_t {
  kMark = '(',
  kStop = '.',
  kNone = 'N',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8a,
  kBinUnicode = 'X',
  kEmptyTuple = ')',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kTuple = 't',
  kEmptyDict = '}',
  kSetItem = 's',
  kSetItems = 'u',
  kGlobal = 'c',
  kReduce = 'R',
  kBuild = 'b',
  kBinPersId = 'Q',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kProto = 0x80,
};

// Returns the name of any opcode up to protocol 5, as Python's documents have it, or an empty text.
std::string_view pickle_op_name(uint8_t op);

}  // namespace spillway
