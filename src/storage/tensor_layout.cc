// SPDX-License-Identifier: Apache-2.0
#include "storage/tensor_layout.h"

#include <limits>

#include "base/checked_math.h"
#include "base/error.h"

namespace spillway {

uint64_t checked_tensor_bytes(const std::string& prefix, DType dtype,
                              std::span<const int64_t> shape) {
  std::optional<uint64_t> elements = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    // Kernels count rows and columns in int.
    SPW_CHECK(shape[i] >= 1 && shape[i] <= std::numeric_limits<int32_t>::max(), kInvalidArgument,
              "{}dimension {} of {} is {}, expected 1 to 2147483647", prefix, i + 1, shape.size(),
              shape[i]);
    elements = try_mul(*elements, static_cast<uint64_t>(shape[i]));
    SPW_CHECK(elements && *elements <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
              kInvalidArgument, "{}the product of its dimensions overflows", prefix);
  }
  const DTypeInfo& info = dtype_info(dtype);
  const auto block = static_cast<uint64_t>(info.block_elements);
  const auto cols = static_cast<uint64_t>(shape.empty() ? 1 : shape.back());
  SPW_CHECK(cols % block == 0, kInvalidArgument,
            "{}rows of {} elements are not whole {} blocks of {}", prefix, cols, info.name, block);
  const auto bytes = try_mul(*elements / block, static_cast<uint64_t>(info.block_bytes));
  SPW_CHECK(bytes && *bytes <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
            kInvalidArgument, "{}its size in bytes overflows", prefix);
  return *bytes;
}

void check_extent(const std::string& prefix, uint64_t offset, uint64_t bytes, uint64_t file_bytes) {
  const auto end = try_add(offset, bytes);
  SPW_CHECK(end && *end <= file_bytes, kInvalidArgument,
            "{}extent {}+{} ends past the file's {} bytes; the file is truncated, download it "
            "again",
            prefix, offset, bytes, file_bytes);
}

std::optional<DType> try_plain_dtype(std::string_view name) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (dtype_name(type) == name) return type;
  }
  return std::nullopt;
}

}  // namespace spillway
