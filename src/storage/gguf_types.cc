// SPDX-License-Identifier: Apache-2.0
#include "storage/gguf_types.h"

#include <iterator>

#include "base/error.h"

namespace spillway {
namespace {

struct NumberCode {
  uint32_t code;
  NumberType type;
};
constexpr NumberCode kNumbers[] = {
    {0, NumberType::kU8},   {1, NumberType::kI8},   {2, NumberType::kU16}, {3, NumberType::kI16},
    {4, NumberType::kU32},  {5, NumberType::kI32},  {6, NumberType::kF32}, {7, NumberType::kBool},
    {10, NumberType::kU64}, {11, NumberType::kI64}, {12, NumberType::kF64}};

// The names by number, including those of types that were withdrawn.
constexpr std::string_view kTensorTypes[] = {
    "F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
    "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
    "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
    "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
    "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
    "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",    "NVFP4"};

}  // namespace

std::optional<NumberType> try_number_from_gguf(uint32_t gguf_type) {
  for (const NumberCode& number : kNumbers) {
    if (number.code == gguf_type) return number.type;
  }
  return std::nullopt;
}

uint32_t gguf_number_type(NumberType type) {
  for (const NumberCode& number : kNumbers) {
    if (number.type == type) return number.code;
  }
  SPW_ASSERT(false);
  return 0;
}

std::string_view gguf_tensor_type_name(uint32_t gguf_type) {
  return gguf_type < std::size(kTensorTypes) ? kTensorTypes[gguf_type] : std::string_view();
}

std::optional<DType> try_dtype_from_gguf(uint32_t gguf_type) {
  const std::string_view name = gguf_tensor_type_name(gguf_type);
  for (const DType type : kAllDTypes) {
    if (dtype_name(type) == name) return type;
  }
  return std::nullopt;
}

uint32_t gguf_tensor_type(DType type) {
  SPW_CHECK(!is_memory_only(type), kUnsupported, "GGUF has no tensor type {}; it is in memory only",
            dtype_name(type));
  for (uint32_t i = 0; i < std::size(kTensorTypes); ++i) {
    if (kTensorTypes[i] == dtype_name(type)) return i;
  }
  SPW_ASSERT(false);
  return 0;
}

}  // namespace spillway
