// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention/attention.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "cpu/attention/attention_args.h"
#include "cpu/attention/attention_kernels.h"
#include "cpu/attention/attention_prefill.h"
#include "cpu/attention/attention_topk.h"
#include "cpu/features.h"
#include "cpu/kv/kv_append.h"
#include "cpu/parallel.h"
#include "device/sparse_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/attention.cc"
#include <hwy/foreach_target.h>
// These must be included after foreach_target.
#include <hwy/highway.h>

#include "cpu/attention/attention_codes_inl.h"
#include "cpu/attention/attention_inl.h"

#if HWY_ONCE
namespace spillway {

HWY_EXPORT(attend_split);
HWY_EXPORT(attend_split_codes);
HWY_EXPORT(merge_partials);
HWY_EXPORT(finish_tile);
HWY_EXPORT(load_sums);
HWY_EXPORT(store_sums);

namespace cpu {
namespace {

static_assert(kPageTokens == kKvBlockTokens);
constexpr int64_t kMaxPartialBytes = int64_t{64} << 20;  // of partial results waiting to be merged

// Attends the heads of a tile one after the other.
template <class Attend>
void attend_each_head(const Attend& attend, const AttentionArgs& a, const AttentionTile& tile,
                      const AttentionPartial& result) {
  AttentionTile one = tile;
  one.heads = 1;
  const int64_t queries = tile.rows * a.group;
  for (int64_t h = 0; h < tile.heads; ++h, ++one.kv_head) {
    const AttentionPartial part{result.out + h * queries * a.padded_dim,
                                result.maximum + h * queries, result.sum + h * queries};
    attend(one, part);
  }
}

void attend_split_portable(const AttentionArgs& a, const AttentionTile& tile, int64_t split,
                           const AttentionPartial& result, float* scratch) {
  const auto attend = [&](const AttentionTile& one, const AttentionPartial& part) {
    HWY_DYNAMIC_DISPATCH(attend_split)(a, one, split, part, scratch);
  };
  attend_each_head(attend, a, tile, result);
}

// Attends to quantized pages; which kernel takes a query depends on how many queries share its
// tile.
void attend_split_codes_portable(const AttentionArgs& a, const AttentionTile& tile, int64_t split,
                                 const AttentionPartial& result, float* scratch) {
  const auto attend = [&](const AttentionTile& one, const AttentionPartial& part) {
    HWY_DYNAMIC_DISPATCH(attend_split_codes)(a, one, split, part, scratch);
  };
  attend_each_head(attend, a, tile, result);
}

// Calls f(name, kernel) for the kernels that this processor has for a type, from worst to best.
template <class F>
void each_cut_kernel(KvType type, bool deterministic, const F& f) {
  f("portable", attend_split_portable);
  if (is_quantized(type) && !deterministic) f("portable codes", attend_split_codes_portable);
  struct Row {
    const char* name;
    KvType type;
    bool has;
    AttendSplit attend;
  };
  [[maybe_unused]] const CpuFeatures& cpu = cpu_features();
#if defined(__aarch64__)
  const bool groups = !deterministic && cpu.fp16fml && cpu.fp16;
  const Row rows[] = {{"neon", KvType::kBf16, true, kAttendBf16Neon},
                      {"fp16fml", KvType::kF16, cpu.fp16fml, kAttendHalfFp16fml},
                      {"dotprod", KvType::kInt8, cpu.dotprod, kAttendInt8Dotprod},
                      {"dotprod", KvType::kInt4, cpu.dotprod, kAttendInt4Dotprod},
                      {"i8mm", KvType::kInt8, cpu.i8mm, kAttendInt8I8mm},
                      {"i8mm", KvType::kInt4, cpu.i8mm, kAttendInt4I8mm},
                      {"fp16fml groups", KvType::kF16, groups, kAttendGroupHalfFp16fml},
                      {"i8mm groups", KvType::kInt8, groups && cpu.i8mm, kAttendGroupInt8I8mm},
                      {"i8mm groups", KvType::kInt4, groups && cpu.i8mm, kAttendGroupInt4I8mm}};
#elif defined(__x86_64__)
  const Row rows[] = {{"avx2", KvType::kF16, cpu.avx2, kAttendHalfAvx2},
                      {"avx2", KvType::kBf16, cpu.avx2, kAttendBf16Avx2},
                      {"avx2", KvType::kInt8, cpu.avx2, kAttendInt8Avx2},
                      {"avx2", KvType::kInt4, cpu.avx2, kAttendInt4Avx2},
                      {"avx_vnni", KvType::kInt8, cpu.avx_vnni, kAttendInt8AvxVnni},
                      {"avx_vnni", KvType::kInt4, cpu.avx_vnni, kAttendInt4AvxVnni},
                      {"avx512", KvType::kF16, cpu.avx512_vnni, kAttendHalfAvx512},
                      {"avx512", KvType::kBf16, cpu.avx512_vnni, kAttendBf16Avx512},
                      {"avx512", KvType::kInt8, cpu.avx512_vnni, kAttendInt8Avx512},
                      {"avx512", KvType::kInt4, cpu.avx512_vnni, kAttendInt4Avx512}};
#else
  const Row rows[] = {{"none", type, false, nullptr}};
#endif
  for (const Row& row : rows) {
    if (row.type == type && row.has) f(row.name, row.attend);
  }
}

AttendSplit kernel_for(KvType type, bool deterministic) {
  AttendSplit best = nullptr;
  each_cut_kernel(type, deterministic, [&](const char*, AttendSplit attend) { best = attend; });
  return best;
}

// Returns the kernel for many rows, or null if there is none. F32 pages promise the precision of
// floats.
AttendRows rows_kernel_for([[maybe_unused]] KvType type, [[maybe_unused]] int64_t head_dim) {
#if defined(__aarch64__)
  const CpuFeatures& cpu = cpu_features();
  if (type != KvType::kF32 && head_dim <= 256 && cpu.bf16 && cpu.i8mm && cpu.fp16) {
    return kAttendRowsBfmmla;
  }
#endif
  return nullptr;
}

int64_t first_split(const AttentionArgs& a, const AttentionTile& tile) {
  return tile.first_key(a.window) / kSplitKeys;
}
int64_t end_split(const AttentionTile& tile) {
  return (tile.end_key() + kSplitKeys - 1) / kSplitKeys;
}

int64_t queries_of(const AttentionArgs& a, const AttentionTile& tile) {
  return tile.rows * a.group * tile.heads;
}

int64_t covered_by(const SequenceSpan& span) {
  return static_cast<int64_t>(span.block_table.size()) * kPageTokens;
}

// Returns how many KV heads a tile has: many for few rows, but no more than leaves every worker
// several cuts.
int64_t heads_per_tile(const AttentionArgs& a, std::span<const SequenceSpan> spans, int threads) {
  int64_t cuts = 0, most_rows = 1;
  for (const SequenceSpan& span : spans) {
    cuts +=
        (std::min<int64_t>(span.start + span.rows, covered_by(span)) + kSplitKeys - 1) / kSplitKeys;
    most_rows = std::max<int64_t>(most_rows, span.rows);
  }
  const auto needed = (4 * int64_t{threads} + cuts - 1) / std::max<int64_t>(cuts, 1);
  const int64_t fit = std::max<int64_t>(1, kTileQueries / (a.group * most_rows));
  return std::clamp<int64_t>(a.kv_heads / needed, 1, fit);
}

// Checks every block that some row of the span attends to.
void check_blocks(const KvLayerView& kv, const SequenceSpan& span, int64_t window) {
  const AttentionTile all{.position = span.start, .rows = span.rows, .covered = covered_by(span)};
  for (int64_t page = all.first_key(window) / kPageTokens; page * kPageTokens < all.end_key();
       ++page) {
    const int32_t block = span.block_table[static_cast<size_t>(page)];
    SPW_ASSERT(block >= 0 && block < kv.blocks);
  }
  SPW_ASSERT(static_cast<int64_t>(span.home.size()) * kPageTokens <= span.start);
  for (const int32_t block : span.home) SPW_ASSERT(block >= 0 && block < kv.home_blocks);
}

std::vector<AttentionTile> make_tiles(const AttentionArgs& a, std::span<const SequenceSpan> spans,
                                      int threads) {
  const int64_t tile_rows = std::max<int64_t>(1, kTileQueries / a.group);
  const int64_t tile_heads = heads_per_tile(a, spans, threads);
  std::vector<AttentionTile> tiles;
  for (const SequenceSpan& span : spans) {
    for (int64_t row = 0; row < span.rows; row += tile_rows) {
      AttentionTile tile{.blocks = span.block_table.data(),
                         .first_row = span.first_row + row,
                         .position = span.start + row,
                         .rows = std::min(tile_rows, span.rows - row),
                         .covered = covered_by(span)};
      for (; tile.kv_head < a.kv_heads; tile.kv_head += tile_heads) {
        tile.heads = std::min<int64_t>(tile_heads, a.kv_heads - tile.kv_head);
        tiles.push_back(tile);
      }
    }
  }
  return tiles;
}

// Returns the number of keys of a tile; 0 if all of a partition is before the window.
int64_t keys_of(const AttentionArgs& a, const AttentionTile& tile) {
  return std::max<int64_t>(0, tile.end_key() - tile.first_key(a.window));
}

// Writes the tile's result: into the softmax state if there is one, else finished into `out`.
void finish(const AttentionArgs& a, const AttentionTile& tile, const AttentionPartial& total) {
  if (a.sums != nullptr) {
    HWY_DYNAMIC_DISPATCH(store_sums)(a, tile, total);
  } else {
    HWY_DYNAMIC_DISPATCH(finish_tile)(a, tile, total);
  }
}

// For enough tiles for all workers: each does a tile from its first key to its last.
void attend_tiles(ThreadPool& pool, Workspace& workspace, const AttentionArgs& a,
                  AttendSplit attend, const std::vector<AttentionTile>& tiles) {
  const size_t partial = partial_floats(kTileQueries, a.padded_dim);
  workspace.reserve_workers(2 * partial + split_scratch_floats(a.padded_dim));
  int64_t work = 0;
  for (const AttentionTile& tile : tiles) {
    work += keys_of(a, tile) * queries_of(a, tile) * a.head_dim;
  }
  const auto attend_range = [&](int64_t begin, int64_t end, int worker) {
    float* memory = workspace.worker(worker);
    const AttentionPartial total = partial_at(memory, kTileQueries, a.padded_dim);
    const AttentionPartial next = partial_at(memory + partial, kTileQueries, a.padded_dim);
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const AttentionTile& tile = tiles[i];
      if (a.sums != nullptr) HWY_DYNAMIC_DISPATCH(load_sums)(a, tile, total);
      for (int64_t split = first_split(a, tile); split < end_split(tile); ++split) {
        const bool first = a.sums == nullptr && split == first_split(a, tile);
        attend(a, tile, split, first ? total : next, memory + 2 * partial);
        if (!first) {
          HWY_DYNAMIC_DISPATCH(merge_partials)(total, next, queries_of(a, tile), a.padded_dim);
        }
      }
      finish(a, tile, total);
    }
  };
  parallel_if_large(pool, work, static_cast<int64_t>(tiles.size()), 1, attend_range);
}

// For few tiles with many keys: workers share the cuts of a tile, then the partial results are
// merged.
void attend_splits(ThreadPool& pool, Workspace& workspace, const AttentionArgs& a,
                   AttendSplit attend, const std::vector<AttentionTile>& tiles) {
  struct Item {
    const AttentionTile* tile;
    int64_t split;
    size_t memory;  // position of its partial result, in floats
  };
  std::vector<Item> items;
  std::vector<size_t> first_item;
  int64_t work = 0;
  size_t memory = 0;
  for (const AttentionTile& tile : tiles) {
    first_item.push_back(items.size());
    for (int64_t split = first_split(a, tile); split < end_split(tile); ++split) {
      items.push_back({&tile, split, memory});
      memory += partial_floats(queries_of(a, tile), a.padded_dim);
      work += queries_of(a, tile) * a.head_dim *
              std::min(kSplitKeys, tile.end_key() - split * kSplitKeys);
    }
  }
  first_item.push_back(items.size());
  float* partials = workspace.shared(memory);
  workspace.reserve_workers(
      std::max(split_scratch_floats(a.padded_dim), partial_floats(kTileQueries, a.padded_dim)));
  const auto partial_of = [&](const Item& item) {
    return partial_at(partials + item.memory, queries_of(a, *item.tile), a.padded_dim);
  };
  const auto attend_range = [&](int64_t begin, int64_t end, int worker) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      attend(a, *items[i].tile, items[i].split, partial_of(items[i]), workspace.worker(worker));
    }
  };
  parallel_if_large(pool, work, static_cast<int64_t>(items.size()), 1, attend_range);
  const auto merge = [&](int64_t begin, int64_t end, int worker) {
    for (auto t = static_cast<size_t>(begin); t < static_cast<size_t>(end); ++t) {
      size_t next = first_item[t];
      if (next == first_item[t + 1]) continue;  // the tile attends to nothing in this partition
      AttentionPartial total = partial_of(items[next]);
      if (a.sums != nullptr) {
        total = partial_at(workspace.worker(worker), queries_of(a, tiles[t]), a.padded_dim);
        HWY_DYNAMIC_DISPATCH(load_sums)(a, tiles[t], total);
      } else {
        ++next;
      }
      for (; next < first_item[t + 1]; ++next) {
        HWY_DYNAMIC_DISPATCH(merge_partials)
        (total, partial_of(items[next]), queries_of(a, tiles[t]), a.padded_dim);
      }
      finish(a, tiles[t], total);
    }
  };
  parallel_if_large(pool, static_cast<int64_t>(memory), static_cast<int64_t>(tiles.size()), 1,
                    merge);
}

// Rotates queries, because keys are stored rotated.
void rotate_queries(ThreadPool& pool, Workspace& workspace, int64_t heads, int64_t rows,
                    AttentionArgs& a) {
  const int64_t width = heads * a.head_dim;
  float* rotated = workspace.queries(static_cast<size_t>(rows * width));
  parallel_if_large(pool, rows * width, rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* to = rotated + row * width;
      std::copy_n(a.q + row * a.q_stride, width, to);
      for (int64_t h = 0; h < heads; ++h) rotate_kv(to + h * a.head_dim, a.head_dim);
    }
  });
  a.q = rotated;
  a.q_stride = width;
}

// Rotates outputs back, because values are stored rotated and so are their sums in `out`. All rows
// are done in one call: many sequences of one row each would otherwise be one thread's work.
void rotate_outputs(ThreadPool& pool, std::span<const SequenceSpan> spans, int64_t heads,
                    int64_t head_dim, const Activations& out) {
  std::vector<int64_t> rows;
  for (const SequenceSpan& span : spans) {
    for (int64_t i = 0; i < span.rows; ++i) rows.push_back(span.first_row + i);
  }
  const auto count = static_cast<int64_t>(rows.size());
  parallel_if_large(pool, count * out.cols, count, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      float* const row = out.f32(rows[static_cast<size_t>(i)]);
      for (int64_t h = 0; h < heads; ++h) rotate_kv(row + h * head_dim, head_dim);
    }
  });
}

void attend_cuts(AttendSplit attend, ThreadPool& pool, Workspace& workspace, const AttentionArgs& a,
                 std::span<const SequenceSpan> spans) {
  const std::vector<AttentionTile> tiles = make_tiles(a, spans, pool.threads());
  if (tiles.empty()) return;
  int64_t partial_bytes = 0;
  for (const AttentionTile& tile : tiles) {
    partial_bytes += (end_split(tile) - first_split(a, tile)) * queries_of(a, tile) * a.padded_dim *
                     static_cast<int64_t>(sizeof(float));
  }
  if (static_cast<int64_t>(tiles.size()) >= 4 * int64_t{pool.threads()} ||
      partial_bytes > kMaxPartialBytes) {
    attend_tiles(pool, workspace, a, attend, tiles);
  } else {
    attend_splits(pool, workspace, a, attend, tiles);
  }
}

// Attends each span with the kernel for its number of rows. `attend_rows` is for many rows if not
// null.
void attend_spans(AttendSplit attend, AttendRows attend_rows, ThreadPool& pool,
                  Workspace& workspace, const AttentionArgs& a, const AttentionParams& params,
                  std::span<const SequenceSpan> spans) {
  std::vector<SequenceSpan> many, few, sparse;
  for (const SequenceSpan& span : spans) {
    (is_sparse(params, span) ? sparse : is_prefill(a, span) ? many : few).push_back(span);
  }
  if (!sparse.empty()) attend_top_k(pool, workspace, a, params.top_k, sparse);
  if (attend_rows == nullptr || many.empty() || !prefill_pays(a, many, pool.threads())) {
    // Spans stay in the order of the step, because how they are divided into work affects the
    // speed.
    if (sparse.empty()) return attend_cuts(attend, pool, workspace, a, spans);
    few.insert(few.end(), many.begin(), many.end());
    return attend_cuts(attend, pool, workspace, a, few);
  }
  attend_prefill(pool, workspace, a, attend_rows, many);
  attend_cuts(attend, pool, workspace, a, few);
}

AttentionArgs args_of(const Activations& q, const KvLayerView& kv, const AttentionParams& params) {
  SPW_ASSERT(q.dtype == DType::kF32 && q.cols == int64_t{params.heads} * kv.head_dim);
  SPW_ASSERT(params.heads > 0 && params.heads % kv.kv_heads == 0 && params.window >= 0);
  SPW_CHECK(params.heads / kv.kv_heads <= kTileQueries, kUnsupported,
            "attention with {} query heads per kv head; at most {} are supported",
            params.heads / kv.kv_heads, kTileQueries);
  return {.q = q.f32(),
          .q_stride = q.stride,
          .k = reinterpret_cast<const uint8_t*>(kv.k),
          .v = reinterpret_cast<const uint8_t*>(kv.v),
          .home_v = reinterpret_cast<const uint8_t*>(kv.home_v),
          .layout = KvPageLayout(kv.type, kv.head_dim),
          .kv_heads = kv.kv_heads,
          .group = params.heads / kv.kv_heads,
          .head_dim = kv.head_dim,
          .padded_dim = (kv.head_dim + 15) / 16 * 16,
          .scale = params.scale,
          .window = params.window};
}

void attend_all(AttendSplit attend, AttendRows attend_rows, ThreadPool& pool, Workspace& workspace,
                const Activations& q, const KvLayerView& kv, std::span<const SequenceSpan> spans,
                const AttentionParams& params, const Activations& out) {
  SPW_ASSERT(out.dtype == DType::kF32 && out.cols == q.cols && q.rows == out.rows);
  check_spans(kv, spans, q.rows);
  AttentionArgs a = args_of(q, kv, params);
  a.out = out.f32();
  a.out_stride = out.stride;
  for (const SequenceSpan& span : spans) {
    check_blocks(kv, span, a.window);
    SPW_ASSERT(span.home.empty() || is_sparse(params, span));
  }
  const bool rotated = is_rotated(kv.type);
  if (rotated) rotate_queries(pool, workspace, params.heads, q.rows, a);
  attend_spans(attend, attend_rows, pool, workspace, a, params, spans);
  if (rotated) rotate_outputs(pool, spans, params.heads, kv.head_dim, out);
}

void check_parts(const KvLayerView& kv, std::span<const SequenceSpan> spans, int64_t rows) {
  for (const SequenceSpan& span : spans) {
    const int64_t covered = covered_by(span);
    if (covered >= int64_t{span.start} + span.rows) {
      check_spans(kv, {&span, 1}, rows);
      continue;
    }
    SPW_ASSERT(span.first_row >= 0 && span.rows >= 0 && span.first_row + span.rows <= rows);
    SPW_ASSERT(covered <= span.start && covered % kPartitionTokens == 0);
  }
}

}  // namespace

namespace {

// Tiles hold so many query heads of a KV head. If the only KV head has more, they are attended to
// in several calls, each for some of them.
bool has_too_many_heads(const KvLayerView& kv, const AttentionParams& params) {
  return kv.kv_heads == 1 && params.heads > kTileQueries;
}
template <class Attend>  // Attend(first head, parameters for some heads)
void attend_some_heads(const AttentionParams& params, const Attend& attend) {
  const auto most = static_cast<int>(kTileQueries);
  const int calls = (params.heads + most - 1) / most, each = (params.heads + calls - 1) / calls;
  for (int first = 0; first < params.heads; first += each) {
    AttentionParams some = params;
    some.heads = std::min(each, params.heads - first);
    attend(first, some);
  }
}

// Copies the states of some heads, `from` and `to` having their own numbers of heads.
void copy_state(const SoftmaxState& from, int first_from, const SoftmaxState& to, int first_to,
                int heads) {
  for (int64_t row = 0; row < from.rows(); ++row) {
    const float* const source = from.memory.f32(row);
    float* const target = to.memory.f32(row);
    std::copy_n(source + int64_t{first_from} * from.head_dim, int64_t{heads} * from.head_dim,
                target + int64_t{first_to} * to.head_dim);
    std::copy_n(source + from.maxima() + first_from, heads, target + to.maxima() + first_to);
    std::copy_n(source + from.sums() + first_from, heads, target + to.sums() + first_to);
  }
}

}  // namespace

void attend_partition(ThreadPool& pool, Workspace& workspace, const Activations& q,
                      const KvLayerView& kv, std::span<const SequenceSpan> spans,
                      const AttentionParams& params, const SoftmaxState& sums, bool deterministic) {
  if (has_too_many_heads(kv, params)) {
    return attend_some_heads(params, [&](int first, const AttentionParams& some) {
      const int64_t columns = softmax_state_columns(some.heads, kv.head_dim);
      std::vector<float> memory(static_cast<size_t>(q.rows * columns));
      const SoftmaxState own{
          {DType::kF32, q.rows, columns, columns, reinterpret_cast<std::byte*>(memory.data())},
          some.heads,
          kv.head_dim};
      copy_state(sums, first, own, 0, some.heads);
      attend_partition(pool, workspace,
                       q.columns(int64_t{first} * kv.head_dim, int64_t{some.heads} * kv.head_dim),
                       kv, spans, some, own, deterministic);
      copy_state(own, 0, sums, first, some.heads);
    });
  }
  static_assert(kPartitionTokens % kSplitKeys == 0);
  SPW_ASSERT(sums.memory.dtype == DType::kF32 && sums.rows() == q.rows &&
             sums.heads == params.heads && sums.head_dim == kv.head_dim);
  check_parts(kv, spans, q.rows);
  AttentionArgs a = args_of(q, kv, params);
  for (const SequenceSpan& span : spans) check_blocks(kv, span, a.window);
  a.home_v = nullptr;
  a.sums = sums.memory.f32();
  a.sums_stride = sums.memory.stride;
  const bool rotated = is_rotated(kv.type);
  const Activations outputs = sums.memory.columns(0, sums.maxima());
  if (rotated) {
    rotate_queries(pool, workspace, params.heads, q.rows, a);
    rotate_outputs(pool, spans, params.heads, kv.head_dim, outputs);
  }
  attend_cuts(kernel_for(kv.type, deterministic), pool, workspace, a, spans);
  if (rotated) rotate_outputs(pool, spans, params.heads, kv.head_dim, outputs);
}

void attention(ThreadPool& pool, Workspace& workspace, const Activations& q, const KvLayerView& kv,
               std::span<const SequenceSpan> spans, const AttentionParams& params,
               const Activations& out, bool deterministic) {
  if (has_too_many_heads(kv, params)) {
    return attend_some_heads(params, [&](int first, const AttentionParams& some) {
      const auto columns_of = [&](const Activations& all) {
        return all.columns(int64_t{first} * kv.head_dim, int64_t{some.heads} * kv.head_dim);
      };
      attention(pool, workspace, columns_of(q), kv, spans, some, columns_of(out), deterministic);
    });
  }
  attend_all(kernel_for(kv.type, deterministic),
             deterministic ? nullptr : rows_kernel_for(kv.type, kv.head_dim), pool, workspace, q,
             kv, spans, params, out);
}

std::vector<CutKernel> cut_kernels(KvType type, bool deterministic) {
  std::vector<CutKernel> kernels;
  each_cut_kernel(type, deterministic, [&](const char* name, AttendSplit attend) {
    kernels.push_back({name, attend});
  });
  return kernels;
}

void attention_by(const CutKernel& kernel, ThreadPool& pool, Workspace& workspace,
                  const Activations& q, const KvLayerView& kv, std::span<const SequenceSpan> spans,
                  const AttentionParams& params, const Activations& out) {
  attend_all(kernel.attend, nullptr, pool, workspace, q, kv, spans, params, out);
}

}  // namespace cpu
}  // namespace spillway
#endif
