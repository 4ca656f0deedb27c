// SPDX-License-Identifier: Apache-2.0
// What a KV store (kv_store.h) has, and has done.
#pragma once

#include <cstdint>

namespace spillway {

struct KvStoreStats {
  struct Tier {
    int64_t blocks = 0, bytes = 0;
    int64_t evicted = 0;  // blocks that made room for others

    Tier& operator+=(const Tier& other) {
      blocks += other.blocks;
      bytes += other.bytes;
      evicted += other.evicted;
      return *this;
    }
  };
  Tier host, disk;
  int64_t refused = 0;  // blocks that were not kept: no room, or those before them are not there
  int64_t damaged = 0;  // on disk, noticed and dropped
  // Moved since the beginning.
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
