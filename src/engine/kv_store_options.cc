// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_store_options.h"

#include <algorithm>
#include <system_error>

#include "engine/placement_options.h"
#include "memory/block_folder_room.h"

namespace spillway {
namespace {

constexpr uint64_t kUsualDirBytes = uint64_t{16} << 30, kUsualHostBytes = uint64_t{4} << 30;

}  // namespace

uint64_t KvStoreOptions::usual_dir_bytes(uint64_t free, uint64_t taken) {
  return std::min<uint64_t>(kUsualDirBytes, (free + taken) / 2);
}

uint64_t KvStoreOptions::dir_bytes() const {
  if (!dir_size.empty()) return parse_memory(dir_size, "--kv-dir-size");
  std::error_code unknown;
  std::filesystem::path existing = std::filesystem::absolute(dir, unknown);
  while (!existing.empty() && !std::filesystem::exists(existing, unknown) &&
         existing.has_relative_path())
    existing = existing.parent_path();
  const auto space = std::filesystem::space(existing, unknown);
  return unknown ? kUsualDirBytes : usual_dir_bytes(space.available, block_folders_bytes(dir));
}

uint64_t KvStoreOptions::host_bytes(uint64_t free, uint64_t pool) const {
  if (!host_size.empty()) return parse_memory(host_size, "--kv-host-size");
  return std::min(std::max(kUsualHostBytes, 3 * pool), free / 6);
}

}  // namespace spillway
