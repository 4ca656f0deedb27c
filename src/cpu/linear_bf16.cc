// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear_bf16.h"

#include <algorithm>

#include "base/error.h"
#include "cpu/decode_row.h"
#include "cpu/features.h"
#include "cpu/parallel.h"
#include "tensor/packed_layout.h"

namespace spillway {

const Bf16Kernels* try_bf16_kernels() {
#if defined(__aarch64__)
  if (cpu_features().bf16) return &kBfmmlaKernels;
#elif defined(__x86_64__)
  if (cpu_features().amx_bf16) return &kAmxBf16Kernels;
  if (cpu_features().avx512_bf16) return &kAvx512Bf16Kernels;
#endif
  return nullptr;
}

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

// One worker's share: panels of rows, each decoded once and multiplied with all tokens.
class RowTiles {
 public:
  RowTiles(const Bf16Kernels& kernels, const WeightView& w, int64_t rows, const uint16_t* x,
           const LinearArgs& a)
      : kernels_(kernels), w_(w), rows_(rows), x_(x), a_(a), fill_(try_fill_of(kernels, w)) {}

  void multiply(int64_t first_tile, int64_t last_tile, float* scratch) const {
    for (int64_t tile = first_tile; tile < last_tile; tile += kernels_.panels) {
      const int64_t end = std::min(tile + kernels_.panels, last_tile) * kernels_.row_tile;
      multiply_panels(tile * kernels_.row_tile, std::min(end, rows_), scratch);
    }
  }

 private:
  // Rows [first, last), at most kernels_.panels tiles of them.
  void multiply_panels(int64_t first, int64_t last, float* scratch) const {
    auto* panels = reinterpret_cast<uint16_t*>(scratch);
    const int64_t depth = panel_depth(kernels_, w_.cols), panel = kernels_.row_tile * depth;
    float* floats = scratch + kernels_.panels * panel / 2;
    for (int64_t k = 0; k < w_.cols; k += depth) {
      const int64_t cut = std::min(depth, w_.cols - k);
      for (int64_t row = first; row < last; row += kernels_.row_tile) {
        fill(row, std::min(kernels_.row_tile, last - row), k, cut,
             panels + (row - first) / kernels_.row_tile * panel, floats);
      }
      for (int64_t token = 0; token < a_.tokens; token += kernels_.chunk_tokens) {
        for (int64_t row = first; row < last; row += kernels_.row_tile) {
          const uint16_t* at = panels + (row - first) / kernels_.row_tile * panel;
          multiply_chunk(at, row, std::min(kernels_.row_tile, last - row), token, k, cut);
        }
      }
    }
  }

  void multiply_chunk(const uint16_t* panel, int64_t row, int64_t rows, int64_t token, int64_t k,
                      int64_t cut) const {
    kernels_.multiply({.panel = panel,
                       .x = x_ + token * w_.cols + k * kernels_.token_tile,
                       .x_tile_stride = w_.cols * kernels_.token_tile,
                       .depth = cut,
                       .tokens = std::min(kernels_.chunk_tokens, a_.tokens - token),
                       .rows = rows,
                       .out = a_.out + token * a_.out_stride + row,
                       .out_stride = a_.out_stride,
                       .bias = k == 0 && a_.bias != nullptr ? a_.bias + row : nullptr,
                       .add = k > 0 || a_.accumulate});
  }

  void fill(int64_t row, int64_t count, int64_t k, int64_t cut, uint16_t* panel,
            float* floats) const {
    const int64_t row_bytes = w_.row_bytes();
    const auto* w = reinterpret_cast<const uint8_t*>(w_.data) + row * row_bytes;
    if (fill_ != nullptr) {
      const int64_t side_by_side = is_packed(w_) ? kGroupRows : 1;
      fill_(w + side_by_side * spillway::row_bytes(w_.dtype, k), row_bytes, count, cut, panel);
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
  return static_cast<size_t>(kernels.panels * panel / 2 + decoded);
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
  const RowTiles tiles(kernels, w, rows, packed, a);
  pool.parallel_for(tiles_of(rows, kernels.row_tile), 1,
                    [&](int64_t begin, int64_t end, int worker) {
                      tiles.multiply(begin, end, workspace.worker(worker));
                    });
}

}  // namespace cpu
}  // namespace spillway
