// SPDX-License-Identifier: Apache-2.0
#include "bench/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "bench/median.h"
#include "bench/worker_team.h"
#include "cpu/cpu_device.h"

namespace spillway {
namespace {

using Line [[gnu::vector_size(64), gnu::may_alias]] = uint64_t;  // a cache line

template <int kStreams, bool kPrefetch>
uint64_t read_streams(const std::byte* data, size_t bytes, int prefetch_bytes) {
  const size_t stream_bytes = bytes / kStreams;
  Line sums[kStreams] = {};
  for (size_t at = 0; at < stream_bytes; at += 2 * sizeof(Line)) {
#pragma GCC unroll 8
    for (int s = 0; s < kStreams; ++s) {
      const std::byte* from = data + static_cast<size_t>(s) * stream_bytes + at;
      if constexpr (kPrefetch) {
        // This may go past the end of the buffer, because prefetching never faults.
        __builtin_prefetch(from + prefetch_bytes);
        __builtin_prefetch(from + prefetch_bytes + sizeof(Line));
      }
      sums[s] ^= *reinterpret_cast<const Line*>(from);
      sums[s] ^= *reinterpret_cast<const Line*>(from + sizeof(Line));
    }
  }
  uint64_t word = 0;
  for (const Line& sum : sums) {
    for (int i = 0; i < 8; ++i) word ^= sum[i];
  }
  return word;
}

template <int kStreams>
uint64_t read_streams(const std::byte* data, size_t bytes, ReadLoop loop) {
  return loop.prefetch_bytes > 0 ? read_streams<kStreams, true>(data, bytes, loop.prefetch_bytes)
                                 : read_streams<kStreams, false>(data, bytes, 0);
}

}  // namespace

uint64_t read_all(const std::byte* data, size_t bytes, ReadLoop loop) {
  SPW_ASSERT(bytes % (4096 * static_cast<size_t>(loop.streams)) == 0);
  switch (loop.streams) {
    case 1:
      return read_streams<1>(data, bytes, loop);
    case 2:
      return read_streams<2>(data, bytes, loop);
    case 4:
      return read_streams<4>(data, bytes, loop);
    case 8:
      return read_streams<8>(data, bytes, loop);
  }
  fail(ErrorCode::kInvalidArgument, "no read loop with {} streams", loop.streams);
}

double best_read_bytes_per_s(int threads) {
  constexpr size_t kGrain = size_t{2} << 20;
  WorkerTeam team(threads);
  CpuDevice device({.threads = 1});
  const auto workers = static_cast<size_t>(team.threads());
  const size_t part = (size_t{1} << 30) / workers / kGrain * kGrain;
  const auto data = device.allocate(part * workers, MemoryTag::kWeights);
  const auto own = [&](int worker) { return data.data() + part * static_cast<size_t>(worker); };
  team.run([&](int worker) { std::memset(own(worker), worker + 1, part); });
  std::atomic<uint64_t> seen{0};
  double fastest = 0;
  for (const int streams : {1, 2, 4, 8}) {
    for (const int prefetch : {0, 1024, 4096}) {
      std::vector<double> seconds;
      for (int repeat = 0; repeat < 5; ++repeat) {
        const auto start = std::chrono::steady_clock::now();
        team.run([&](int worker) { seen ^= read_all(own(worker), part, {streams, prefetch}); });
        seconds.push_back(
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      }
      fastest = std::max(fastest, static_cast<double>(data.bytes()) / median(seconds));
    }
  }
  return fastest;
}

}  // namespace spillway
