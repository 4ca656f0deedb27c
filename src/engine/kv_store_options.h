// SPDX-License-Identifier: Apache-2.0
// Where KV goes on living beyond the pools, as the options say it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace spillway {

struct KvStoreOptions {
  std::string dir;        // "" = not on disk
  std::string dir_size;   // "" = some, of what is free there or taken by its own blocks
  std::string host_size;  // "" = some, where the device has memory of its own

  // The default of --kv-dir-size where so many bytes are free beside those that the folder's own
  // blocks take. A restart finds the same sum, and so the same size.
  static uint64_t usual_dir_bytes(uint64_t free, uint64_t taken);
  // Most bytes in `dir`. Throws kInvalidArgument for what is not a size.
  uint64_t dir_bytes() const;
  // Most bytes of host memory, of which so many are free, behind a pool of so many: unless they are
  // given, enough to have copies of all that is in the pool and of what was there before.
  uint64_t host_bytes(uint64_t free, uint64_t pool) const;
};

}  // namespace spillway
