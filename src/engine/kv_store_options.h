// SPDX-License-Identifier: Apache-2.0
// Options of the KV stores, which keep KV blocks that the pools evict in host memory and on disk,
// for requests that begin with the same tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace spillway {

struct KvStoreOptions {
  std::string dir;        // "" = not on disk
  std::string dir_size;   // "" = chosen by what is free there or taken by its own blocks
  std::string host_size;  // "" = chosen, if the device has memory of its own

  // Returns the default of --kv-dir-size for these free bytes beside those that the folder's own
  // blocks take. A restart finds the same sum, and so the same size.
  static uint64_t usual_dir_bytes(uint64_t free, uint64_t taken);
  // Returns the most bytes in `dir`. Throws kInvalidArgument for what is not a size.
  uint64_t dir_bytes() const;
  // Returns the most bytes of host memory for a store, given the free bytes and those of the
  // device's pool. Unless the option says it, that is enough for copies of all that is in the pool
  // and of what was there before.
  uint64_t host_bytes(uint64_t free, uint64_t pool) const;
};

}  // namespace spillway
