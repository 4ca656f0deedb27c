// SPDX-License-Identifier: Apache-2.0
// Reads where the tensors of a file lie that torch.save() wrote (pytorch_model.bin), but no tensor
// bytes.
#pragma once

#include <cstdint>

#include "storage/byte_source.h"
#include "storage/tensor_index.h"

namespace spillway {

// Appends the tensors of `source` to `model` with `file` as their Extent::file. The file is the zip
// archive that torch has written since 1.6: a pickle, which is never run (pickle_reader.h), and the
// bytes of each storage as they are. Tensors without elements, and those of types other than F32,
// F16 and BF16, go to model.unsupported. Tied weights, which are views of the same elements of one
// storage, are all appended, with the same extent, so the caller ends with
// model.finish(SharedExtents::kAllowed). Throws Error with one line: file, tensor or offset, and
// for a file that is fine but not read, how to make one that is.
void parse_torch(const ByteSource& source, int32_t file, ModelFiles& model);

}  // namespace spillway
