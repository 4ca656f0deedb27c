// SPDX-License-Identifier: Apache-2.0
// Lowers a list of ops to calls of a device. The lowering alone decides which ops become one call
// (device/ops.h), and thereby the bits of the results. It looks only at the list, never at where
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
  // A norm that no linear op begins with: after a layer, of heads, or of a branch before it is
  // added (LinearFinish::kAdd).
  kNorm,
  kLinear,
  kAttention,  // with the rope before it, and with appending k and v
};

// Says how a linear op uses its products; a norm of its own stores or adds.
enum class LinearFinish : uint8_t {
  kStore,
  kAdd,  // adds to its output
  kActivate,
  kGate,  // f(gate) * up, with two matrices that are split at the same rows
  // The products are q, k and v for the attention that follows; if all KV is on the device they are
  // rotated and appended in the same call. If attention reads another layer's state there is only
  // q, which is stored.
  kAppend,
};

// Numbers are indices into LayerSpec::ops; -1: none.
struct LoweredOp {
  LoweredKind kind = LoweredKind::kLinear;
  int op = 0;                   // the op with its name and matrices
  std::vector<int> norms = {};  // for a linear op: the norms before it
  int activation = -1;          // for a linear op: the activation after it
  int rope = -1;                // for attention, and for the linear op before it
  LinearFinish finish = LinearFinish::kStore;
  Place output = kResidual;  // the place where the result goes
};

struct LoweredLayer {
  std::shared_ptr<const LayerSpec> spec = {};  // the list that the numbers refer to
  std::vector<LoweredOp> ops = {};
  // For each scratch of the list, its columns (0: it is never in memory), and its index in the
  // network's buffers.
  std::vector<int64_t> columns = {};
  std::vector<int> buffers = {};

  // The op that gives a lowered op its name and matrices.
  const OpSpec& of(int lowered) const {
    return spec->ops[static_cast<size_t>(ops[static_cast<size_t>(lowered)].op)];
  }
  std::string_view name(int lowered) const { return of(lowered).name; }
  // The lowered op that has this op's matrices; -1: none.
  int number_of(int op) const;
  int attention_op() const { return attention; }

  int attention = -1;  // its index in `ops`; -1: there is none
};

// A scratch buffer of a network, shared by lists that have one of that name.
struct ScratchBuffer {
  std::string_view name = {};
  bool f32 = false;
  // Columns for the embedding and the layers, with a row for each token of a micro-batch; and for
  // the head, with a row for each token whose logits are wanted.
  int64_t columns = 0, head_columns = 0;
};

// Lowers a valid list. The scratch buffers that it needs are added to `buffers`, with their columns
// in the member `of`: ScratchBuffer::columns or head_columns. Throws kUnsupported, naming the op,
// if devices cannot run it.
LoweredLayer lower(std::shared_ptr<const LayerSpec> layer, int64_t residual_columns,
                   std::vector<ScratchBuffer>& buffers,
                   int64_t ScratchBuffer::*of = &ScratchBuffer::columns);

// All lists of a network in lowered form; equal layers share one.
struct LoweredModel {
  LoweredLayer embedding, head;
  std::vector<std::shared_ptr<const LoweredLayer>> layers;
  std::vector<ScratchBuffer> buffers;  // the scratch buffers that the lists need

  int layer_count() const { return static_cast<int>(layers.size()); }
  // Returns a layer, or the head for a number after the last layer.
  const LoweredLayer& layer(int number) const {
    return number < layer_count() ? *layers[static_cast<size_t>(number)] : head;
  }
  size_t widest_buffer() const;  // among those with a row for each token
  // The index of the product with the head, the last op of the head's list.
  int head_op() const { return static_cast<int>(head.ops.size()) - 1; }
};

}  // namespace spillway
