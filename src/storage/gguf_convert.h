// SPDX-License-Identifier: Apache-2.0
// GGUF files whose matrices are stored in another type.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>

#include "storage/gguf_writer.h"
#include "storage/tensor_index.h"

namespace spillway {

// Writes `model` (a GGUF, split or not) to `path` with every matrix in `type`: F32, F16 or BF16.
// F32 holds what any type stands for exactly; the others round to nearest. Vectors stay as they
// are, and so does the metadata, but for general.file_type. Needs little memory whatever the size;
// `path` is either whole or as it was. Throws kInvalidArgument for a model that is no GGUF or for a
// value that `type` does not reach, kUnsupported for other types, kIo, and kCancelled soon after
// `*cancel` has become true. `progress` hears of bytes written, of all that there will be.
using ConvertProgress = std::function<void(uint64_t done, uint64_t total)>;
void convert_gguf(const ModelFiles& model, DType type, const std::filesystem::path& path,
                  const ConvertProgress& progress = {}, const std::atomic<bool>* cancel = nullptr);

// All keys but those about the file itself (alignment, splits). Numbers are written in 32 bits
// where they fit, as most readers expect them.
void copy_gguf_metadata(const Metadata& from, GgufWriter& to);

}  // namespace spillway
