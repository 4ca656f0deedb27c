// SPDX-License-Identifier: Apache-2.0
// Reads the directory of a zip archive whose members are stored as they are: where each one's bytes
// lie in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "storage/byte_source.h"
#include "storage/tensor_index.h"

namespace spillway {

struct ZipMember {
  std::string name;
  uint64_t header = 0;  // where its local header begins
  uint64_t offset = 0;  // where its bytes begin
  uint64_t bytes = 0;
};

// The members of an archive, also of one over 4 GiB (zip64). Names are unique, no two members
// overlap, and each lies between the file's begin and its directory; so memory and time are linear
// in the directory's real size. Immutable.
class ZipDirectory {
 public:
  static constexpr size_t kMaxMembers = ModelFiles::kMaxTensors + 64;
  static constexpr size_t kMaxMemberNameBytes = 1024;

  // Reads headers only. Throws kUnsupported for an archive that is compressed, encrypted or of
  // several files, and kInvalidArgument with one line (file, member, offset) for a damaged one.
  explicit ZipDirectory(const ByteSource& source);

  const std::vector<ZipMember>& members() const { return members_; }  // sorted by name
  // Returns nullptr if there is no such member.
  const ZipMember* find(std::string_view name) const;

 private:
  std::vector<ZipMember> members_;
};

}  // namespace spillway
