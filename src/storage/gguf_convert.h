// SPDX-License-Identifier: Apache-2.0
// Makes GGUF files from the tensors of other files, with matrices converted to other types.
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

// Describes rows of a new tensor and where they are stored now. The elements of a vector are rows.
struct ConvertRows {
  int64_t rows = 0;
  Extent extent;          // from the first to the last row; the whole tensor if they are columns
  RowGroups groups = {};  // the grouping of the rows in the extent
  // If `tensor_columns` is not 0, the rows are columns of a plain tensor [cols, tensor_columns],
  // from `first_column` on.
  int64_t tensor_columns = 0, first_column = 0;
  // If not 0, heads of this many rows have their halves interleaved: row i of the first half
  // becomes row 2i, and row i of the second half becomes row 2i + 1.
  int64_t interleaved_rows = 0;

  // Whether the rows are stored one after another in this order, with nothing between.
  bool is_plain() const { return groups.rows == 0 && tensor_columns == 0 && interleaved_rows == 0; }
};

// A tensor of the new file, with the place of its current values.
struct ConvertTensor {
  std::string name;
  DType dtype = DType::kF32;        // as stored
  std::vector<int64_t> shape;       // row-major, outermost first
  std::vector<ConvertRows> parts;   // one after another
  std::vector<float> values;        // used instead of `parts` for values that no file has
  std::optional<DType> fixed_type;  // written in this type, whatever TypeMix says
  bool plus_one = false;            // each value is written plus one

  int64_t elements() const;
  // The elements in a row of `parts`.
  int64_t cols() const { return shape.size() > 1 ? shape.back() : 1; }
  // Whether the tensor is stored as it will be written, apart from its type.
  bool is_plain() const { return parts.size() == 1 && parts.front().is_plain() && !plus_one; }
};

struct ConvertInput {
  std::string name;  // for messages
  std::vector<std::filesystem::path> paths;
  Metadata metadata;  // GGUF keys
  std::vector<ConvertTensor> tensors;
};
// Describes a GGUF (split or not) for a conversion that changes only types; vectors keep theirs.
// Throws kInvalidArgument for another format.
ConvertInput convert_input(const ModelFiles& model);

struct ConvertOptions {
  // Called with the bytes written and the total.
  std::function<void(uint64_t done, uint64_t total)> progress = {};
  const std::atomic<bool>* cancel = nullptr;
  ThreadPool* pool = nullptr;  // if null, the calling thread does all the work
};

// Counts the results of a conversion.
struct ConvertReport {
  struct Fallback {
    std::string tensor;
    DType wanted, type;
    int64_t columns;
  };
  uint64_t bytes_before = 0, bytes = 0;  // sizes of all tensors together
  std::vector<int> tensors_of;           // number of tensors, indexed by DType
  std::vector<Fallback> fallbacks;       // matrices whose width does not fit the wanted type
  int requantized = 0;                   // matrices that were quantized before in another type
};

// Writes `input` to `path` with matrices in the types of `mix`. F32 holds the values of any type
// exactly, the other plain types round to nearest, and quantized types search for the best blocks
// (quantize_blocks()). The metadata is copied except general.file_type and
// general.quantization_version. Needs little memory for any size of model; the bytes do not depend
// on the number of threads; `path` is either complete or unchanged. Throws kInvalidArgument for a
// value outside the range of a type, kIo, and kCancelled soon after `*cancel` has become true.
ConvertReport convert_gguf(const ConvertInput& input, const TypeMix& mix,
                           const std::filesystem::path& path, const ConvertOptions& options = {});

// Copies all keys except those about the file itself (alignment, splits). Numbers are written in 32
// bits if they fit, as most readers expect.
void copy_gguf_metadata(const Metadata& from, GgufWriter& to);

}  // namespace spillway
