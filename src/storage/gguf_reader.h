// SPDX-License-Identifier: Apache-2.0
// Reads GGUF files: metadata and tensor extents, no tensor bytes.
#pragma once

#include <cstdint>
#include <filesystem>

#include "storage/byte_source.h"
#include "storage/tensor_index.h"

namespace spillway {

// GGUF versions 2 and 3, little endian; one file, or the first of a set of split files
// (name-00001-of-00003.gguf), of which all must be there. Tensor types: all of DType; any other is
// kUnsupported and names tensor and type. A vocabulary-only file (no tensors) is fine. Memory stays
// below a small multiple of the header, never what the file merely declares. Throws Error with one
// line: file, field, byte offset.
ModelFiles read_gguf(const std::filesystem::path& path);

// One file from any source; split files are refused. The result's only path is empty.
ModelFiles parse_gguf(const ByteSource& source);

}  // namespace spillway
