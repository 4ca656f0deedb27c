// SPDX-License-Identifier: Apache-2.0
// A list of ops as devices run it. The lowering alone decides which ops become one call of a device
// (device/ops.h), and thereby the bits of the results. It looks at the list only, never at where
// weights or KV are.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "model/layer_spec.h"

namespace spillway {

enum class LoweredKind : uint8_t {
  kEmbedding,
  kGather,
  kNorm,  // one that no linear op begins with: behind a layer, or of heads
  kLinear,
  kAttention,  // with the rope before it, and with appending k and v
};

// What a linear op does with its products.
enum class LinearFinish : uint8_t {
  kStore,
  kAdd,       // to its output
  kActivate,  //
  kGate,      // f(gate) * up: of two matrices, which are split at the same rows
  kAppend,    // q, k and v, which attention follows: where all is on the device they are rotated
              // and appended with it. Where attention reads another layer's state there is q alone,
              // which is stored
};

// Numbers are of LayerSpec::ops; -1: there is none.
struct LoweredOp {
  LoweredKind kind = LoweredKind::kLinear;
  int op = 0;                   // that its name and its matrices are of
  std::vector<int> norms = {};  // of a linear op: before it
  int activation = -1;          // of a linear op
  int rope = -1;                // of attention, and of the linear op before it
  LinearFinish finish = LinearFinish::kStore;
  Place output = kResidual;  // of all of it
};

struct LoweredLayer {
  std::shared_ptr<const LayerSpec> spec = {};  // that the numbers are of
  std::vector<LoweredOp> ops = {};
  // Of each scratch of the list: its columns (0: it is never in memory), and which of the network's
  // buffers it is.
  std::vector<int64_t> columns = {};
  std::vector<int> buffers = {};

  // The op that a lowered one has its name and matrices of.
  const OpSpec& of(int lowered) const {
    return spec->ops[static_cast<size_t>(ops[static_cast<size_t>(lowered)].op)];
  }
  std::string_view name(int lowered) const { return of(lowered).name; }
  // The lowered op that has its matrices of this one; -1: none.
  int number_of(int op) const;
  int attention_op() const { return attention; }

  int attention = -1;  // its number among the lowered; -1: there is none
};

// A scratch buffer of a network: lists share those of one name.
struct ScratchBuffer {
  std::string_view name = {};
  bool f32 = false;
  // Of the embedding and the layers, with a row for each token of a micro-batch; and of the head,
  // with a row for each that logits are wanted of.
  int64_t columns = 0, head_columns = 0;
};

// Of a list that is valid. What it needs beside the residual stream joins `buffers`, with the
// columns in `of`: ScratchBuffer::columns or head_columns. Throws kUnsupported, naming the op,
// where devices cannot run it.
LoweredLayer lower(std::shared_ptr<const LayerSpec> layer, int64_t residual_columns,
                   std::vector<ScratchBuffer>& buffers,
                   int64_t ScratchBuffer::*of = &ScratchBuffer::columns);

// All lists of a network, lowered; equal layers share one.
struct LoweredModel {
  LoweredLayer embedding, head;
  std::vector<std::shared_ptr<const LoweredLayer>> layers;
  std::vector<ScratchBuffer> buffers;  // that they need

  int layer_count() const { return static_cast<int>(layers.size()); }
  // Of a layer, or of the head where `number` is behind the last of them.
  const LoweredLayer& layer(int number) const {
    return number < layer_count() ? *layers[static_cast<size_t>(number)] : head;
  }
  size_t widest_buffer() const;  // of those with a row for each token
  // Of the head's list: the product with the head, which is the last.
  int head_op() const { return static_cast<int>(head.ops.size()) - 1; }
};

}  // namespace spillway
