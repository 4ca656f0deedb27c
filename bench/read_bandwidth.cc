// SPDX-License-Identifier: Apache-2.0
#include "bench/read_bandwidth.h"

#include "base/error.h"

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
        // Beyond the end of the buffer too: prefetching never faults.
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

}  // namespace spillway
