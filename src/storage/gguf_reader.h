// SPDX-License-Identifier: Apache-2.0
// Reads the metadata and tensor extents of GGUF files, but no tensor bytes.
#pragma once

#include <cstdint>
#include <filesystem>

#include "storage/byte_source.h"
#include "storage/tensor_index.h"

namespace spillway {

// Reads GGUF versions 2 and 3, little endian: one file, or the first of a set of split files
// (name-00001-of-00003.gguf), which must all be there. The types of DType are supported; another
// type throws kUnsupported naming tensor and type. A file without tensors (vocabulary only) is
// accepted. Memory stays below a small multiple of the header's real size, whatever sizes the file
// declares. Throws Error with one line: file, field, byte offset.
ModelFiles read_gguf(const std::filesystem::path& path);

// Reads one file from any source; split files are refused. The result's only path is empty.
ModelFiles parse_gguf(const ByteSource& source);

}  // namespace spillway
