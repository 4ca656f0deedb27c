// SPDX-License-Identifier: Apache-2.0
#include "storage/tensor_index.h"

#include <algorithm>
#include <numeric>
#include <system_error>
#include <tuple>

#include "base/error.h"
#include "base/printable.h"
#include "storage/file.h"

namespace spillway {

int64_t TensorInfo::elements() const {
  int64_t product = 1;  // readers have checked that it does not overflow
  for (const int64_t n : shape) product *= n;
  return product;
}

std::vector<Extent> extents_of_rows(const Extent& all, const RowGroups& groups, uint64_t row_bytes,
                                    int64_t first, int64_t count) {
  const auto extent = [&](int64_t row, int64_t rows) {
    return Extent{all.file, all.offset + static_cast<uint64_t>(row) * row_bytes,
                  static_cast<uint64_t>(rows) * row_bytes};
  };
  if (groups.rows == 0) return {extent(first, count)};
  std::vector<Extent> extents;
  for (const int64_t end = first + count; first < end;) {
    const int64_t group = first / groups.rows, in_group = first % groups.rows;
    const int64_t rows = std::min(groups.rows - in_group, end - first);
    extents.push_back(extent(group * groups.stride + in_group, rows));
    first += rows;
  }
  return extents;
}

std::string format_shape(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return text + "]";
}

const TensorInfo* ModelFiles::find(std::string_view tensor) const {
  const auto it =
      std::lower_bound(by_name_.begin(), by_name_.end(), tensor,
                       [this](uint32_t i, std::string_view n) { return tensors[i].name < n; });
  if (it == by_name_.end() || tensors[*it].name != tensor) return nullptr;
  return &tensors[*it];
}

const TensorInfo& ModelFiles::get(std::string_view tensor) const {
  const TensorInfo* found = try_get(tensor);
  SPW_CHECK(found != nullptr, kInvalidArgument, "{}: tensor '{}' is missing", name,
            printable(tensor));
  return *found;
}

const TensorInfo* ModelFiles::try_get(std::string_view tensor) const {
  if (const TensorInfo* found = find(tensor)) return found;
  for (const UnsupportedTensor& other : unsupported) {
    SPW_CHECK(other.name != tensor, kUnsupported,
              "{}: tensor '{}' has type {}, which is not one "
              "of those supported: F32, F16, BF16",
              name, printable(tensor), other.type);
  }
  return nullptr;
}

std::optional<std::string> ModelFiles::try_read_text(std::string_view file_name,
                                                     uint64_t max_bytes) const {
  SPW_ASSERT(!file_name.empty() && file_name.find('/') == std::string_view::npos);
  if (folder.empty()) return std::nullopt;
  const std::filesystem::path path = folder / file_name;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  return read_text_file(path, max_bytes);
}

void ModelFiles::finish(SharedExtents shared) {
  by_name_.resize(tensors.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(), [this](uint32_t a, uint32_t b) {
    return std::tie(tensors[a].name, a) < std::tie(tensors[b].name, b);
  });
  for (size_t i = 1; i < by_name_.size(); ++i) {
    const TensorInfo& second = tensors[by_name_[i]];
    SPW_CHECK(tensors[by_name_[i - 1]].name != second.name, kInvalidArgument,
              "{}: tensor '{}' is there twice, the second time with its data at byte {}", name,
              printable(second.name), second.extent.offset);
  }

  std::vector<uint32_t> by_offset = by_name_;
  const auto position = [this](uint32_t i) {
    return std::pair(tensors[i].extent.file, tensors[i].extent.offset);
  };
  std::sort(by_offset.begin(), by_offset.end(),
            [&](uint32_t a, uint32_t b) { return position(a) < position(b); });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const TensorInfo& a = tensors[by_offset[i - 1]];
    const TensorInfo& b = tensors[by_offset[i]];
    const bool is_same = a.extent.offset == b.extent.offset && a.dtype == b.dtype &&
                         a.shape == b.shape;  // and so are their bytes
    if (a.extent.file == b.extent.file && is_same && shared == SharedExtents::kAllowed) continue;
    SPW_CHECK(a.extent.file != b.extent.file || a.extent.offset + a.extent.bytes <= b.extent.offset,
              kInvalidArgument, "{}: tensors '{}' (extent {}+{}) and '{}' (extent {}+{}) overlap",
              name, printable(a.name), a.extent.offset, a.extent.bytes, printable(b.name),
              b.extent.offset, b.extent.bytes);
  }
}

}  // namespace spillway
