// SPDX-License-Identifier: Apache-2.0
// The index of a block folder (block_folder.h) as it is stored on disk: it says which block is
// in which slot.
//
// After a header, entries of one size are appended, each saying that a block was written into a
// slot, or that a slot is now empty. Each has a checksum of its own, so a torn or damaged entry is
// noticed without affecting others. All numbers are little-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace spillway {

// A 128-bit hash that identifies a block's contents.
struct BlockName {
  uint64_t low = 0, high = 0;
  bool operator==(const BlockName&) const = default;
};

// A block, with what its worth depends on.
struct FolderBlock {
  BlockName name = {};
  BlockName parent = {};  // the block is of no use without it
  uint32_t position = 0;  // tokens before it
};

// An entry; one for an emptied slot has only `kind` and `slot`.
struct FolderEntry {
  enum Kind : uint32_t { kWritten = 1, kLeft = 2 };
  uint32_t kind = kWritten;
  uint32_t slot = 0;
  FolderBlock block = {};
  std::array<uint64_t, 2> checksum = {};  // block_checksum()
};

// Identifies the kind of blocks in a folder: their size, and a hash of everything that decides
// whether they can be used.
struct FolderIdentity {
  uint64_t block_bytes = 0;
  BlockName salt = {};
  bool operator==(const FolderIdentity&) const = default;
};

BlockName name_of(std::string_view text);
// The checksum of a block's bytes as this block, in this slot of this folder: bytes of another
// block, also of an earlier one in the same slot, do not match it.
std::array<uint64_t, 2> block_checksum(const FolderIdentity& identity, uint32_t slot,
                                       const FolderBlock& block, std::span<const std::byte> bytes);

inline constexpr size_t kIndexHeaderBytes = 64, kIndexEntryBytes = 72;
inline constexpr uint32_t kIndexVersion = 1;

std::array<std::byte, kIndexHeaderBytes> index_header(const FolderIdentity& identity);
std::array<std::byte, kIndexEntryBytes> index_entry(const FolderIdentity& identity,
                                                    const FolderEntry& entry);

// The contents of an index file.
struct ParsedIndex {
  enum class State : uint8_t {
    kGood,
    kEmpty,         // the file is missing, or shorter than a header
    kForeign,       // not one of our indexes
    kOtherVersion,  // written by another version of the program
    kOtherKind,     // an index of ours for other blocks, or its header is damaged
  };
  State state = State::kEmpty;
  std::vector<FolderEntry> entries;  // in order
  size_t damaged = 0;                // entries that were left out
};
ParsedIndex parse_index(const FolderIdentity& identity, std::span<const std::byte> bytes);

}  // namespace spillway

template <>
struct std::hash<spillway::BlockName> {
  size_t operator()(const spillway::BlockName& name) const noexcept { return name.low; }
};
