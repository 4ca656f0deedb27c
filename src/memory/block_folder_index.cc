// SPDX-License-Identifier: Apache-2.0
#include "memory/block_folder_index.h"

#include <xxhash.h>

#include <cstring>

namespace spillway {
namespace {

constexpr uint64_t kMagic = 0x5249'444b'4c42'5753;  // "SWBLKDIR"

// Reads or writes one field after the other, in a record whose last 8 bytes are its checksum.
template <size_t kBytes>
class Record {
 public:
  Record() = default;
  explicit Record(std::span<const std::byte> bytes) {
    std::memcpy(bytes_.data(), bytes.data(), kBytes);
  }
  template <class T>
  void put(const T& value) {
    std::memcpy(bytes_.data() + at_, &value, sizeof(T));
    at_ += sizeof(T);
  }
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  uint64_t checksum(uint64_t seed) const {
    return XXH3_64bits_withSeed(bytes_.data(), kBytes - sizeof(uint64_t), seed);
  }
  std::array<std::byte, kBytes> sealed(uint64_t seed) {
    const uint64_t sum = checksum(seed);
    std::memcpy(bytes_.data() + kBytes - sizeof(sum), &sum, sizeof(sum));
    return bytes_;
  }
  bool is_whole(uint64_t seed) const {
    uint64_t sum = 0;
    std::memcpy(&sum, bytes_.data() + kBytes - sizeof(sum), sizeof(sum));
    return sum == checksum(seed);
  }

 private:
  std::array<std::byte, kBytes> bytes_ = {};
  size_t at_ = 0;
};

// The seed depends on the folder, so entries of another folder do not match.
uint64_t entry_seed(const FolderIdentity& identity) {
  const uint64_t fields[] = {identity.salt.low, identity.salt.high, identity.block_bytes};
  return XXH3_64bits(fields, sizeof fields);
}

}  // namespace

BlockName name_of(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.low64, hash.high64};
}

std::array<uint64_t, 2> block_checksum(const FolderIdentity& identity, uint32_t slot,
                                       const FolderBlock& block, std::span<const std::byte> bytes) {
  const uint64_t fields[] = {
      entry_seed(identity), slot,          block.name.low, block.name.high, block.parent.low,
      block.parent.high,    block.position};
  const XXH128_hash_t hash =
      XXH3_128bits_withSeed(bytes.data(), bytes.size(), XXH3_64bits(fields, sizeof fields));
  return {hash.low64, hash.high64};
}

std::array<std::byte, kIndexHeaderBytes> index_header(const FolderIdentity& identity) {
  Record<kIndexHeaderBytes> record;
  record.put(kMagic);
  record.put(kIndexVersion);
  record.put(uint32_t{0});
  record.put(identity.block_bytes);
  record.put(identity.salt);
  return record.sealed(0);
}

std::array<std::byte, kIndexEntryBytes> index_entry(const FolderIdentity& identity,
                                                    const FolderEntry& entry) {
  Record<kIndexEntryBytes> record;
  record.put(entry.kind);
  record.put(entry.slot);
  record.put(entry.block.name);
  record.put(entry.block.parent);
  record.put(entry.block.position);
  record.put(uint32_t{0});
  record.put(entry.checksum);
  return record.sealed(entry_seed(identity));
}

ParsedIndex parse_index(const FolderIdentity& identity, std::span<const std::byte> bytes) {
  using State = ParsedIndex::State;
  ParsedIndex parsed;
  uint64_t magic = kMagic;  // also if the file ends before the magic
  if (bytes.size() >= sizeof(magic)) std::memcpy(&magic, bytes.data(), sizeof(magic));
  if (magic != kMagic) {
    parsed.state = State::kForeign;
    return parsed;
  }
  if (bytes.size() < kIndexHeaderBytes) return parsed;
  Record<kIndexHeaderBytes> header(bytes.first(kIndexHeaderBytes));
  header.get<uint64_t>();
  const auto version = header.get<uint32_t>();
  header.get<uint32_t>();
  FolderIdentity found;
  found.block_bytes = header.get<uint64_t>();
  found.salt = header.get<BlockName>();
  if (!header.is_whole(0) || version != kIndexVersion || found != identity) {
    const bool is_other = header.is_whole(0) && version != kIndexVersion;
    parsed.state = is_other ? State::kOtherVersion : State::kOtherKind;
    return parsed;
  }
  parsed.state = State::kGood;
  const uint64_t seed = entry_seed(identity);
  std::span<const std::byte> rest = bytes.subspan(kIndexHeaderBytes);
  for (; rest.size() >= kIndexEntryBytes; rest = rest.subspan(kIndexEntryBytes)) {
    Record<kIndexEntryBytes> record(rest.first(kIndexEntryBytes));
    if (!record.is_whole(seed)) {
      ++parsed.damaged;
      continue;
    }
    FolderEntry entry;
    entry.kind = record.get<uint32_t>();
    entry.slot = record.get<uint32_t>();
    entry.block.name = record.get<BlockName>();
    entry.block.parent = record.get<BlockName>();
    entry.block.position = record.get<uint32_t>();
    record.get<uint32_t>();
    entry.checksum = record.get<std::array<uint64_t, 2>>();
    parsed.entries.push_back(entry);
  }
  if (!rest.empty()) ++parsed.damaged;  // a torn entry
  return parsed;
}

}  // namespace spillway
