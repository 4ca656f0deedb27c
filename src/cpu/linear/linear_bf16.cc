// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear/linear_bf16.h"

#include <algorithm>

#include "base/error.h"
#include "cpu/dequantize/decode_row.h"
#include "cpu/features.h"
#include "cpu/parallel.h"
#include "tensor/packed_layout.h"

namespace spillway {
namespace {

const Bf16Kernels* best_bf16_kernels() {
#if defined(__aarch64__)
  if (cpu_features().bf16) return &kBfmmlaKernels;
#elif defined(__x86_64__)
  if (cpu_features().amx_bf16) return &kAmxBf16Kernels;
  if (cpu_features().avx512_bf16) return &kAvx512Bf16Kernels;
#endif
  return nullptr;
}

const Bf16Kernels* measured_kernels = nullptr;

}  // namespace

const Bf16Kernels* try_bf16_kernels() {
  return measured_kernels != nullptr ? measured_kernels : best_bf16_kernels();
}

void use_bf16_kernels(const Bf16Kernels* kernels) { measured_kernels = kernels; }

namespace cpu {
namespace {

int64_t tiles_of(int64_t count, int64_t tile) { return (count + tile - 1) / tile; }

bool is_packed(const WeightView& w) { return w.layout == WeightLayout::kGroups16; }

Bf16Fill try_fill_of(const Bf16Kernels& kernels, const WeightView& w) {
  return kernels.try_fill == nullptr ? nullptr : kernels.try_fill(w.dtype, is_packed(w));
}

int64_t panel_depth(const Bf16Kernels& kernels, int64_t k) {
  return std::min(k, kernels.max_depth);
}

// Returns how many floats one worker needs to keep its sums in.
int64_t sum_floats(const Bf16Kernels& kernels) {
  return kernels.panels * kernels.row_tile * kernels.sweep_tokens;
}

// One worker's share: panels of rows, each decoded once and multiplied with all tokens.
class RowTiles {
 public:
  RowTiles(const Bf16Kernels& kernels, const WeightView& w, int64_t rows, const uint16_t* x,
           const LinearArgs& a)
      : kernels_(kernels),
        w_(w),
        rows_(rows),
        x_(x),
        a_(a),
        fill_(try_fill_of(kernels, w)),
        direct_(w.dtype == DType::kBF16 && !is_packed(w) && a.tokens <= kernels.direct_tokens) {}

  void multiply(int64_t first_tile, int64_t last_tile, float* scratch) const {
    const int64_t last = std::min(last_tile * kernels_.row_tile, rows_);
    int64_t row = first_tile * kernels_.row_tile;
    if (direct_) {
      for (; row + kernels_.row_tile <= last; row += kernels_.row_tile) {
        multiply_direct(row, last, scratch);
      }
    }
    const int64_t rows = kernels_.panels * kernels_.row_tile;
    for (; row < last; row += rows) multiply_panels(row, std::min(row + rows, last), last, scratch);
  }

 private:
  // Multiplies a tile of rows as they are stored; the worker's rows end at `end`.
  void multiply_direct(int64_t row, int64_t end, float* sums) const {
    const int64_t depth = std::min(kernels_.direct_depth, w_.cols);
    const Bf16RowLayout layout{
        .row_bytes = a_.row_bytes, .step_elements = kBf16Step, .tile_elements = 16 * w_.cols};
    for (int64_t k = 0; k < w_.cols; k += depth) {
      const int64_t cut = std::min(depth, w_.cols - k);
      Bf16Ahead ahead = weights_ahead(row, row + kernels_.row_tile, k + cut, depth, end,
                                      tiles_of(a_.tokens, kernels_.token_tile) * cut / kBf16Step);
      Bf16Product product = product_of(row, kernels_.row_tile, 0, a_.tokens, k, cut);
      product.panel = reinterpret_cast<const uint16_t*>(stored(row, k));
      product.layout = layout;
      product.ahead[0] = &ahead;
      keep_sums(product, row, k, sums);
      kernels_.multiply(product);
    }
  }

  // Multiplies rows [first, last), at most kernels_.panels tiles of them; the worker's rows end at
  // `end`.
  void multiply_panels(int64_t first, int64_t last, int64_t end, float* scratch) const {
    auto* panels = reinterpret_cast<uint16_t*>(scratch);
    const int64_t depth = panel_depth(kernels_, w_.cols), panel = kernels_.row_tile * depth;
    float* sums = scratch + kernels_.panels * panel / 2;
    float* floats = sums + sum_floats(kernels_);
    const int64_t sweep = kernels_.sweep_tokens > 0 ? kernels_.sweep_tokens : a_.tokens;
    for (int64_t token = 0; token < a_.tokens; token += sweep) {
      const int64_t stop = std::min(token + sweep, a_.tokens);
      for (int64_t k = 0; k < w_.cols; k += depth) {
        const int64_t cut = std::min(depth, w_.cols - k);
        for (int64_t row = first; row < last; row += kernels_.row_tile) {
          fill(row, std::min(kernels_.row_tile, last - row), k, cut,
               panels + (row - first) / kernels_.row_tile * panel, floats);
        }
        multiply_depth(panels, panel, first, last, end, token, stop, k, cut, sums);
      }
    }
  }

  // Multiplies the panels of rows [first, last) with tokens [begin, stop), k in [k, k + cut).
  void multiply_depth(const uint16_t* panels, int64_t panel, int64_t first, int64_t last,
                      int64_t end, int64_t begin, int64_t stop, int64_t k, int64_t cut,
                      float* sums) const {
    const int64_t tile = kernels_.row_tile, steps = cut / kBf16Step;
    const int64_t row_tiles = tiles_of(last - first, tile);
    const int64_t depth = panel_depth(kernels_, w_.cols);
    Bf16Ahead weights =
        weights_ahead(first, last, k + cut, depth, end,
                      row_tiles * tiles_of(stop - begin, kernels_.token_tile) * steps);
    for (int64_t token = begin; token < stop; token += kernels_.chunk_tokens) {
      const int64_t tokens = std::min(kernels_.chunk_tokens, stop - token);
      Bf16Ahead next = tokens_ahead(token + tokens, stop, k, cut, row_tiles);
      for (int64_t row = first; row < last; row += tile) {
        const int64_t index = (row - first) / tile;
        Bf16Product product = product_of(row, std::min(tile, last - row), token, tokens, k, cut);
        product.panel = panels + index * panel;
        product.cut_steps = kernels_.cut_steps;
        product.x_ahead_steps = kernels_.x_ahead_steps;
        product.ahead[0] = &weights;
        product.ahead[1] = &next;
        if (kernels_.sweep_tokens > 0) {
          keep_sums(product, row, k,
                    sums + index * tile * kernels_.sweep_tokens + (token - begin) * tile);
        }
        kernels_.multiply(product);
      }
    }
  }

  Bf16Product product_of(int64_t row, int64_t rows, int64_t token, int64_t tokens, int64_t k,
                         int64_t cut) const {
    return {.x = x_ + token * w_.cols + k * kernels_.token_tile,
            .x_tile_stride = w_.cols * kernels_.token_tile,
            .depth = cut,
            .tokens = tokens,
            .rows = rows,
            .out = a_.out + token * a_.out_stride + row,
            .out_stride = a_.out_stride,
            .bias = k == 0 && a_.bias != nullptr ? a_.bias + row : nullptr,
            .add = k > 0 || a_.accumulate};
  }

  // Keeps sums at `sums` until the last depth.
  void keep_sums(Bf16Product& product, int64_t row, int64_t k, float* sums) const {
    product.sums = sums;
    product.first = k == 0;
    product.last = k + product.depth == w_.cols;
    product.add = a_.accumulate;
    product.bias = a_.bias != nullptr ? a_.bias + row : nullptr;
  }

  // Returns which weights to prefetch in `steps` steps while rows [first, last) are multiplied:
  // their next `depth` columns from k on or, after all of them, the first columns of as many next
  // rows, as far as the worker's rows go.
  Bf16Ahead weights_ahead(int64_t first, int64_t last, int64_t k, int64_t depth, int64_t end,
                          int64_t steps) const {
    if (!kernels_.asks_ahead) return {};
    int64_t row = first, rows = last - first;
    if (k >= w_.cols) {
      row = last;
      rows = std::min(rows, end - last);
      k = 0;
    }
    // Packed rows are stored side by side, in groups.
    const int64_t abreast = is_packed(w_) ? kGroupRows : 1;
    const int64_t columns = std::min(depth, w_.cols - k);
    return in_steps({.row = stored(row, k),
                     .bytes = abreast * spillway::row_bytes(w_.dtype, columns),
                     .stride = abreast * a_.row_bytes,
                     .rows = rows / abreast},
                    steps);
  }

  // Returns the activations of tokens [first, last), at most a chunk of them, to prefetch while
  // `row_tiles` are multiplied with another chunk.
  Bf16Ahead tokens_ahead(int64_t first, int64_t last, int64_t k, int64_t cut,
                         int64_t row_tiles) const {
    if (!kernels_.asks_ahead) return {};
    const int64_t tile = kernels_.token_tile;
    const int64_t tiles = tiles_of(std::min(kernels_.chunk_tokens, last - first), tile);
    const auto* x = reinterpret_cast<const uint8_t*>(x_ + first * w_.cols + k * tile);
    return in_steps(
        {.row = x, .bytes = 2 * tile * cut, .stride = 2 * tile * w_.cols, .rows = tiles},
        row_tiles * kernels_.chunk_tokens / tile * cut / kBf16Step);
  }

  static Bf16Ahead in_steps(Bf16Ahead ahead, int64_t steps) {
    ahead.lines = tiles_of(ahead.rows * tiles_of(ahead.bytes, 64), std::max<int64_t>(steps, 1));
    return ahead;
  }

  // Returns where the columns of a row, or of its group, begin from k on.
  const uint8_t* stored(int64_t row, int64_t k) const {
    const int64_t abreast = is_packed(w_) ? kGroupRows : 1;
    return reinterpret_cast<const uint8_t*>(w_.data) + row * a_.row_bytes +
           abreast * spillway::row_bytes(w_.dtype, k);
  }

  void fill(int64_t row, int64_t count, int64_t k, int64_t cut, uint16_t* panel,
            float* floats) const {
    if (fill_ != nullptr) {
      fill_(stored(row, k), a_.row_bytes, count, cut, panel);
      return;
    }
    SPW_ASSERT(!is_packed(w_));
    for (int64_t i = 0; i < count; ++i) {
      decode_row(w_.dtype, w_.row(row + i) + spillway::row_bytes(w_.dtype, k), floats + i * cut,
                 cut);
    }
    kernels_.pack_rows(floats, cut, count, cut, panel);
  }

  const Bf16Kernels& kernels_;
  const WeightView& w_;
  int64_t rows_;
  const uint16_t* x_;
  const LinearArgs& a_;
  Bf16Fill fill_;
  bool direct_;
};

}  // namespace

bool has_bf16_product(const WeightView& w) {
  const Bf16Kernels* kernels = try_bf16_kernels();
  // F32 weights keep their precision.
  if (kernels == nullptr || w.dtype == DType::kF32 || w.cols % kBf16Step != 0) return false;
  return !is_packed(w) || try_fill_of(*kernels, w) != nullptr;
}

size_t bf16_shared_floats(int64_t tokens, int64_t k) {
  const int64_t tile = try_bf16_kernels()->token_tile;
  return static_cast<size_t>(tiles_of(tokens, tile) * tile * k / 2);
}

size_t bf16_worker_floats(const WeightView& w) {
  const Bf16Kernels& kernels = *try_bf16_kernels();
  const int64_t panel = kernels.row_tile * panel_depth(kernels, w.cols);
  const int64_t decoded = try_fill_of(kernels, w) == nullptr ? panel : 0;
  return static_cast<size_t>(kernels.panels * panel / 2 + sum_floats(kernels) + decoded);
}

void linear_bf16(ThreadPool& pool, const Workspace& workspace, float* shared, const WeightView& w,
                 int64_t rows, const Activations& x, const LinearArgs& a) {
  const Bf16Kernels& kernels = *try_bf16_kernels();
  const int64_t tile = kernels.token_tile;
  auto* packed = reinterpret_cast<uint16_t*>(shared);
  parallel_if_large(
      pool, x.rows * x.cols, tiles_of(x.rows, tile), 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          kernels.pack_tokens(x.f32(i * tile), x.stride, std::min(tile, x.rows - i * tile), w.cols,
                              packed + i * tile * w.cols);
        }
      });
  // If there are few rows, their workers divide the tokens, too.
  const int64_t row_tiles = tiles_of(rows, kernels.row_tile), token_tiles = tiles_of(x.rows, tile);
  const int64_t parts = std::clamp<int64_t>(pool.threads() / row_tiles, 1, token_tiles);
  const int64_t part_tokens = tiles_of(token_tiles, parts) * tile;
  const int64_t units = row_tiles * tiles_of(x.rows, part_tokens);
  const int64_t grain = parts == 1 ? kernels.panels : 1;
  pool.parallel_for(units, grain, [&](int64_t begin, int64_t end, int worker) {
    while (begin < end) {
      const int64_t part = begin / row_tiles, first = begin % row_tiles;
      const int64_t last = std::min(first + end - begin, row_tiles);
      LinearArgs share = a;
      share.tokens = std::min(part_tokens, x.rows - part * part_tokens);
      share.out += part * part_tokens * a.out_stride;
      const RowTiles tiles(kernels, w, rows, packed + part * part_tokens * w.cols, share);
      tiles.multiply(first, last, workspace.worker(worker));
      begin += last - first;
    }
  });
}

}  // namespace cpu
}  // namespace spillway
