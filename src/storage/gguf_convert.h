// SPDX-License-Identifier: Apache-2.0
// GGUF files made from the tensors of other files, with matrices in other types.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "storage/gguf_writer.h"
#include "storage/tensor_index.h"
#include "storage/type_mix.h"

namespace spillway {

// Rows of a tensor of the new file, and where they are now. The elements of a vector are rows.
struct ConvertRows {
  int64_t rows = 0;
  Extent extent;          // from the first to the last of them; the whole tensor of columns
  RowGroups groups = {};  // of them in the extent
  // They are columns of a plain tensor [cols, tensor_columns], from `first_column` on. 0: they are
  // rows.
  int64_t tensor_columns = 0, first_column = 0;
  // Heads of this many rows whose two halves are laid into each other: row i of the first half
  // becomes row 2i, row i of the second 2i + 1. 0: rows stay where they are.
  int64_t interleaved_rows = 0;

  // Nothing but these rows in this order.
  bool is_plain() const { return groups.rows == 0 && tensor_columns == 0 && interleaved_rows == 0; }
};

// A tensor of the new file, and where its values are now.
struct ConvertTensor {
  std::string name;
  DType dtype = DType::kF32;        // as stored
  std::vector<int64_t> shape;       // row-major, outermost first
  std::vector<ConvertRows> parts;   // one behind the other
  std::vector<float> values;        // instead of parts, for what no file has
  std::optional<DType> fixed_type;  // written in this type, whatever the mix says

  int64_t elements() const;
  // Of a row of `parts`.
  int64_t cols() const { return shape.size() > 1 ? shape.back() : 1; }
  // As it is in its file.
  bool is_plain() const { return parts.size() == 1 && parts.front().is_plain(); }
};

struct ConvertInput {
  std::string name;  // for messages
  std::vector<std::filesystem::path> paths;
  Metadata metadata;  // GGUF keys
  std::vector<ConvertTensor> tensors;
};
// A GGUF (split or not) as it is; vectors keep their types. Throws kInvalidArgument
// for another format.
ConvertInput convert_input(const ModelFiles& model);

struct ConvertOptions {
  // Hears of bytes written, of all that there will be.
  std::function<void(uint64_t done, uint64_t total)> progress = {};
  const std::atomic<bool>* cancel = nullptr;
  ThreadPool* pool = nullptr;  // without one, the caller does all the work
};

// What was made of a model.
struct ConvertReport {
  struct Fallback {
    std::string tensor;
    DType wanted, type;
    int64_t columns;
  };
  uint64_t bytes_before = 0, bytes = 0;  // of all tensors
  std::vector<int> tensors_of;           // by DType
  std::vector<Fallback> fallbacks;       // where the width of a matrix does not fit the type
  int quantized_again = 0;               // matrices that had lost precision before
};

// Writes `input` to `path` with matrices in the types of `mix`. F32 holds what any type stands for
// exactly, the other plain types round to nearest, quantized ones are searched for
// (quantize_blocks()). The metadata stays, but for general.file_type and
// general.quantization_version. Needs little memory whatever the size; the bytes do not depend on
// the number of threads; `path` is either whole or as it was. Throws kInvalidArgument for a value
// that a type does not reach, kIo, and kCancelled soon after `*cancel` has become true.
ConvertReport convert_gguf(const ConvertInput& input, const TypeMix& mix,
                           const std::filesystem::path& path, const ConvertOptions& options = {});

// All keys but those about the file itself (alignment, splits). Numbers are written in 32 bits
// where they fit, as most readers expect them.
void copy_gguf_metadata(const Metadata& from, GgufWriter& to);

}  // namespace spillway
