// SPDX-License-Identifier: Apache-2.0
// Counts what a KV store (kv_store.h), which keeps blocks beyond the pools for later requests,
// holds and what it has done.
#pragma once

#include <cstdint>

namespace spillway {

struct KvStoreStats {
  struct Tier {
    int64_t blocks = 0, bytes = 0;
    int64_t evicted = 0;  // to make room for others

    Tier& operator+=(const Tier& other) {
      blocks += other.blocks;
      bytes += other.bytes;
      evicted += other.evicted;
      return *this;
    }
  };
  Tier host, disk;
  int64_t refused = 0;  // not stored: no room, or the block before is missing
  int64_t damaged = 0;  // found damaged on disk and dropped
  // Bytes moved since the store was made.
  uint64_t to_device_bytes = 0, to_host_bytes = 0, disk_read_bytes = 0, disk_written_bytes = 0;

  KvStoreStats& operator+=(const KvStoreStats& other) {
    host += other.host;
    disk += other.disk;
    refused += other.refused;
    damaged += other.damaged;
    to_device_bytes += other.to_device_bytes;
    to_host_bytes += other.to_host_bytes;
    disk_read_bytes += other.disk_read_bytes;
    disk_written_bytes += other.disk_written_bytes;
    return *this;
  }
};

}  // namespace spillway
