// SPDX-License-Identifier: Apache-2.0
// Describes what a model's files hold and where: tensors as extents, metadata, and texts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/metadata.h"
#include "tensor/dtype.h"

namespace spillway {

struct Extent {
  int32_t file = 0;  // index into ModelFiles::paths
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Rows of a stored matrix that are not adjacent: groups of `rows` rows, each `stride` rows after
// the one before. If `rows` is 0, the rows are adjacent.
struct RowGroups {
  int64_t rows = 0, stride = 0;
  bool operator==(const RowGroups&) const = default;
};

// Returns where `count` rows from row `first` on are stored, each of `row_bytes` bytes, in the
// order of the rows. `all` begins with row 0.
std::vector<Extent> extents_of_rows(const Extent& all, const RowGroups& groups, uint64_t row_bytes,
                                    int64_t first, int64_t count);

// One stored tensor. Readers have checked that it has at least one element, every dimension is in
// [1, 2^31), each row is whole blocks, extent.bytes = rows() * row_bytes(dtype, cols()), and the
// extent lies inside its file.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  // Row-major, outermost first: a matrix [out, in] is {out, in} (GGUF's order is reversed on
  // reading). Empty for a scalar.
  std::vector<int64_t> shape;
  Extent extent;

  int64_t elements() const;
  int64_t cols() const { return shape.empty() ? 1 : shape.back(); }
  int64_t rows() const { return elements() / cols(); }
};

// Formats a shape as "[2048, 512]".
std::string format_shape(const std::vector<int64_t>& shape);

// A tensor that is in the file but cannot be used, e.g. type "I64".
struct UnsupportedTensor {
  std::string name;
  std::string type;
};

// Everything about a model's files except the bytes of its tensors. No descriptor stays open.
// Reading is thread-safe.
struct ModelFiles {
  enum class Format { kGguf, kHuggingFace, kTokenizerFolder };
  static constexpr size_t kMaxTensors = 262144;
  static constexpr uint64_t kMaxTextBytes = 64ull << 20;

  Format format = Format::kGguf;
  std::string name;                          // file or folder name, printable
  std::vector<std::filesystem::path> paths;  // indexed by Extent::file
  std::vector<uint64_t> file_bytes;          // sizes of the files when they were read
  // GGUF keys, or those of config.json ("rope_scaling.factor") and of generation_config.json with
  // the prefix "generation_config.".
  Metadata metadata;
  std::vector<TensorInfo> tensors;             // in file order
  std::vector<UnsupportedTensor> unsupported;  // Hugging Face folders only
  std::filesystem::path folder;                // Hugging Face and tokenizer folders only

  // Returns nullptr if there is no such tensor or it is among `unsupported`.
  const TensorInfo* find(std::string_view tensor) const;
  // Throws kInvalidArgument for a missing tensor, kUnsupported for one of an unsupported type.
  const TensorInfo& get(std::string_view tensor) const;
  // Finds a tensor that may be missing: returns nullptr if it is, and throws like get() if it is
  // there and cannot be used.
  const TensorInfo* try_get(std::string_view tensor) const;

  // Returns the text of a file in `folder`, such as tokenizer.json, tokenizer_config.json,
  // vocab.json or merges.txt; nullopt if there is no such file. `file_name` must be a bare name.
  // Throws kInvalidArgument for a file over `max_bytes`.
  std::optional<std::string> try_read_text(std::string_view file_name,
                                           uint64_t max_bytes = kMaxTextBytes) const;

  // Whether two tensors of the same type and shape may have the same extent, as tied weights do.
  enum class SharedExtents { kRefused, kAllowed };
  // Called by readers at the end: checks that names are unique and that extents of one file do not
  // overlap, and prepares find(). Throws kInvalidArgument.
  void finish(SharedExtents shared = SharedExtents::kRefused);

 private:
  std::vector<uint32_t> by_name_;  // indices of `tensors`, sorted by name
};

}  // namespace spillway
