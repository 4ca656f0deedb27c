// SPDX-License-Identifier: Apache-2.0
// Reads the header of a safetensors file: the extents of tensors, but no tensor bytes.
#pragma once

#include <cstdint>

#include "storage/byte_source.h"
#include "storage/tensor_index.h"

namespace spillway {

// Appends the tensors of `source` to `model` with `file` as their Extent::file. Tensors without
// elements, and those of types other than F32, F16 and BF16 (position_ids buffers and the like), go
// to model.unsupported. Does not call model.finish(). Throws Error with one line: file, tensor,
// offset.
void parse_safetensors(const ByteSource& source, int32_t file, ModelFiles& model);

}  // namespace spillway
