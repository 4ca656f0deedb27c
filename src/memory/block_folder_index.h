// SPDX-License-Identifier: Apache-2.0
// The index of a block folder (block_folder.h) as it lies on disk: which block is where.
//
// A header, then entries of one size, appended: a block was written into a slot, or a slot has
// nothing any more. Each has a checksum of its own, so one that is torn or damaged is noticed, and
// costs no other. All numbers are little-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace spillway {

// A hash of 128 bits that says what a block has.
struct BlockName {
  uint64_t low = 0, high = 0;
  bool operator==(const BlockName&) const = default;
};

// A block, and what its worth depends on.
struct FolderBlock {
  BlockName name = {};
  BlockName parent = {};  // of no use without it
  uint32_t position = 0;  // tokens before it
};

// An entry; of a slot that is left, only that it is.
struct FolderEntry {
  enum Kind : uint32_t { kWritten = 1, kLeft = 2 };
  uint32_t kind = kWritten;
  uint32_t slot = 0;
  FolderBlock block = {};
  std::array<uint64_t, 2> checksum = {};  // block_checksum()
};

// What a folder is for: bytes of a block, and a hash of all that decides what blocks are good for.
struct FolderIdentity {
  uint64_t block_bytes = 0;
  BlockName salt = {};
  bool operator==(const FolderIdentity&) const = default;
};

BlockName name_of(std::string_view text);
// Of a block's bytes as this block of this folder in this slot: bytes that are another's, also of
// the same slot before, have another.
std::array<uint64_t, 2> block_checksum(const FolderIdentity& identity, uint32_t slot,
                                       const FolderBlock& block, std::span<const std::byte> bytes);

inline constexpr size_t kIndexHeaderBytes = 64, kIndexEntryBytes = 72;
inline constexpr uint32_t kIndexVersion = 1;

std::array<std::byte, kIndexHeaderBytes> index_header(const FolderIdentity& identity);
std::array<std::byte, kIndexEntryBytes> index_entry(const FolderIdentity& identity,
                                                    const FolderEntry& entry);

// What the bytes of an index say.
struct ParsedIndex {
  enum class State : uint8_t {
    kGood,
    kEmpty,         // there is none, or not even its header
    kForeign,       // no index of ours
    kOtherVersion,  // of another program
    kOtherKind,     // ours, for other blocks, or its header is damaged
  };
  State state = State::kEmpty;
  std::vector<FolderEntry> entries;  // in order
  size_t damaged = 0;                // that are left out
};
ParsedIndex parse_index(const FolderIdentity& identity, std::span<const std::byte> bytes);

}  // namespace spillway

template <>
struct std::hash<spillway::BlockName> {
  size_t operator()(const spillway::BlockName& name) const noexcept { return name.low; }
};
