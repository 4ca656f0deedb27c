// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention/attention_prefill.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace spillway::cpu {
namespace {

// Converting keys and values costs about as much as this many queries do. Tiles are smaller only if
// workers would have none, and larger while every worker has several, so that the last ones even
// out.
constexpr int64_t kConvertQueries = 32;
constexpr int64_t kEnoughQueries = 4 * kConvertQueries;
constexpr int64_t kTilesPerWorker = 8;

int64_t all_queries(const AttentionArgs& a, std::span<const SequenceSpan> spans) {
  int64_t rows = 0;
  for (const SequenceSpan& span : spans) rows += span.rows;
  return rows * a.group * a.kv_heads;
}

// Returns (query, key) pairs, as if each row attended to as many keys as the middle one.
int64_t cost_of(const AttentionArgs& a, const AttentionTile& tile) {
  const int64_t middle = tile.position + tile.rows / 2 + 1;
  const int64_t keys = a.window > 0 ? std::min(middle, a.window) : middle;
  const int64_t converted = tile.end_key() - tile.first_key(a.window);
  return tile.rows * a.group * keys + kConvertQueries * converted;
}

std::vector<AttentionTile> make_tiles(const AttentionArgs& a, std::span<const SequenceSpan> spans,
                                      int threads) {
  const int64_t share = all_queries(a, spans) / threads;
  const int64_t several = std::max(share / kTilesPerWorker, kEnoughQueries);
  const int64_t queries = std::clamp(threads == 1 ? kPrefillQueries : std::min(share, several),
                                     kConvertQueries, kPrefillQueries);
  const int64_t tile_rows = std::max<int64_t>(1, queries / a.group);
  std::vector<AttentionTile> tiles;
  for (const SequenceSpan& span : spans) {
    // Tiles have equal numbers of rows, as nearly as possible.
    const int64_t count = (span.rows + tile_rows - 1) / tile_rows;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = span.rows * i / count, end = span.rows * (i + 1) / count;
      for (int64_t head = 0; head < a.kv_heads; ++head) {
        tiles.push_back({.blocks = span.block_table.data(),
                         .first_row = span.first_row + row,
                         .position = span.start + row,
                         .rows = end - row,
                         .kv_head = head,
                         .keys = span.start + span.rows});
      }
    }
  }
  return tiles;
}

}  // namespace

bool is_prefill(const AttentionArgs& a, const SequenceSpan& span) {
  // Kernels of codes multiply bytes, which is quicker than what the others do.
  const int64_t fewest = is_quantized(a.layout.type) ? kConvertQueries : kConvertQueries / 2;
  return span.rows >= kPrefillRows && span.rows * a.group >= fewest;
}

bool prefill_pays(const AttentionArgs& a, std::span<const SequenceSpan> spans, int threads) {
  return 4 * all_queries(a, spans) >= kConvertQueries * threads;
}

void attend_prefill(ThreadPool& pool, Workspace& workspace, const AttentionArgs& a,
                    AttendRows attend, std::span<const SequenceSpan> spans) {
  const std::vector<AttentionTile> tiles = make_tiles(a, spans, pool.threads());
  workspace.reserve_workers(prefill_scratch_floats(a.padded_dim));
  // Each worker's share begins with its largest tiles, and small ones are left for the worker that
  // is done first: later rows of a sequence cost more, so equal numbers of tiles are not equal
  // work.
  std::vector<size_t> by_cost(tiles.size());
  std::iota(by_cost.begin(), by_cost.end(), size_t{0});
  std::stable_sort(by_cost.begin(), by_cost.end(),
                   [&](size_t x, size_t y) { return cost_of(a, tiles[x]) > cost_of(a, tiles[y]); });
  const auto workers = static_cast<size_t>(pool.active());
  std::vector<size_t> order;
  for (size_t worker = 0; worker < workers; ++worker) {
    for (size_t i = worker; i < by_cost.size(); i += workers) order.push_back(by_cost[i]);
  }
  pool.parallel_for(static_cast<int64_t>(order.size()), 1,
                    [&](int64_t begin, int64_t end, int worker) {
                      for (int64_t i = begin; i < end; ++i) {
                        attend(a, tiles[order[static_cast<size_t>(i)]], workspace.worker(worker));
                      }
                    });
}

}  // namespace spillway::cpu
