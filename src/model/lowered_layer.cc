// SPDX-License-Identifier: Apache-2.0
#include "model/lowered_layer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"

namespace spillway {
namespace {

class Lowering {
 public:
  Lowering(std::shared_ptr<const LayerSpec> layer, int64_t residual_columns) : layer_(*layer) {
    lowered_.columns = scratch_columns(layer_, residual_columns);
    lowered_.spec = std::move(layer);
  }

  LoweredLayer run() {
    while (at_ < std::ssize(layer_.ops)) {
      const OpSpec& op = layer_.ops[static_cast<size_t>(at_)];
      switch (op.kind) {
        case OpKind::kNorm:
          if (const OpSpec* next = op_at(at_ + 1);
              next != nullptr && next->kind == OpKind::kLinear && next->input == op.output) {
            norms_.push_back(at_++);
          } else {
            add_norm(op);
          }
          break;
        case OpKind::kLinear:
          add_linear(op);
          break;
        case OpKind::kEmbedding:
          add(LoweredKind::kEmbedding, op);
          break;
        case OpKind::kGather:
          add(LoweredKind::kGather, op);
          break;
        case OpKind::kRope: {
          const OpSpec* next = op_at(at_ + 1);
          SPW_CHECK(next != nullptr && next->kind == OpKind::kAttention, kUnsupported,
                    "no attention follows op '{}'", op.name);
          rope_ = at_++;
          break;
        }
        case OpKind::kAttention:
          add(LoweredKind::kAttention, op).rope = std::exchange(rope_, -1);
          break;
        case OpKind::kActivation:
        case OpKind::kAdd:
          fail(ErrorCode::kUnsupported, "op '{}' follows nothing that it can be computed with",
               op.name);
      }
    }
    forget_unused();
    return std::move(lowered_);
  }

 private:
  const OpSpec* op_at(int number) const {
    return number < std::ssize(layer_.ops) ? &layer_.ops[static_cast<size_t>(number)] : nullptr;
  }
  LoweredOp& add(LoweredKind kind, const OpSpec& op) {
    lowered_.ops.push_back({.kind = kind, .op = at_++, .output = op.output});
    return lowered_.ops.back();
  }
  // A scratch buffer that only fused ops hand each other is never in memory.
  void forget_unused() {
    std::vector<bool> used(layer_.scratches.size());
    const auto use = [&](Place place) {
      if (place != kResidual) used[static_cast<size_t>(place)] = true;
    };
    for (const LoweredOp& op : lowered_.ops) {
      use(layer_.ops[static_cast<size_t>(op.op)].input);
      use(op.output);
      for (const int norm : op.norms) {
        use(layer_.ops[static_cast<size_t>(norm)].input);
        use(layer_.ops[static_cast<size_t>(norm)].output);
      }
    }
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) lowered_.columns[i] = 0;
    }
  }

  // Adds a norm, with the sum that its result goes to.
  void add_norm(const OpSpec& norm) {
    LoweredOp& op = add(LoweredKind::kNorm, norm);
    const OpSpec* const next = op_at(at_);
    if (next == nullptr || next->kind != OpKind::kAdd || next->input != norm.output) return;
    op.finish = LinearFinish::kAdd;
    op.output = next->output;
    ++at_;
  }

  // Adds a linear op, fused with the op that directly uses its products.
  void add_linear(const OpSpec& linear) {
    LoweredOp& op = add(LoweredKind::kLinear, linear);
    op.norms = std::exchange(norms_, {});
    const OpSpec* const next = op_at(at_);
    if (next == nullptr || next->input != linear.output) return;
    const auto check_matrices = [&](size_t count) {
      SPW_CHECK(linear.matrices.size() == count, kUnsupported,
                "op '{}' has {} matrices before op '{}'", linear.name, linear.matrices.size(),
                next->name);
    };
    if (next->kind == OpKind::kActivation) {
      check_matrices(next->activation.gated ? 2 : 1);
      op.finish = next->activation.gated ? LinearFinish::kGate : LinearFinish::kActivate;
      op.activation = at_++;
    } else if (next->kind == OpKind::kAdd) {
      check_matrices(1);
      op.finish = LinearFinish::kAdd;
      op.output = next->output;
      ++at_;
    } else if (next->kind == OpKind::kAttention || next->kind == OpKind::kRope) {
      const OpSpec* const attention = next->kind == OpKind::kRope ? op_at(at_ + 1) : next;
      if (attention != nullptr && !attention->attention.owns_state()) return check_matrices(1);
      check_matrices(3);
      op.finish = LinearFinish::kAppend;
      if (next->kind == OpKind::kRope) op.rope = at_;
    }
  }

  const LayerSpec& layer_;
  LoweredLayer lowered_;
  int at_ = 0;
  std::vector<int> norms_;  // norms that the next linear op begins with
  int rope_ = -1;           // the rope that the next attention begins with
};

}  // namespace

int LoweredLayer::number_of(int op) const {
  const auto found = std::ranges::find(ops, op, &LoweredOp::op);
  return found == ops.end() ? -1 : static_cast<int>(found - ops.begin());
}

size_t LoweredModel::widest_buffer() const {
  const auto widest = std::ranges::max_element(buffers, {}, &ScratchBuffer::columns);
  return static_cast<size_t>(widest - buffers.begin());
}

LoweredLayer lower(std::shared_ptr<const LayerSpec> layer, int64_t residual_columns,
                   std::vector<ScratchBuffer>& buffers, int64_t ScratchBuffer::*of) {
  LoweredLayer lowered = Lowering(std::move(layer), residual_columns).run();
  const auto attention = std::ranges::find(lowered.ops, LoweredKind::kAttention, &LoweredOp::kind);
  if (attention != lowered.ops.end())
    lowered.attention = static_cast<int>(attention - lowered.ops.begin());
  for (size_t i = 0; i < lowered.columns.size(); ++i) {
    const Scratch& scratch = lowered.spec->scratches[i];
    lowered.buffers.push_back(-1);
    if (lowered.columns[i] == 0) continue;
    auto found = std::ranges::find(buffers, scratch.name, &ScratchBuffer::name);
    if (found == buffers.end())
      found = buffers.insert(found, {.name = scratch.name, .f32 = scratch.f32});
    SPW_ASSERT(found->f32 == scratch.f32);
    int64_t& columns = (*found).*of;
    columns = std::max(columns, lowered.columns[i]);
    lowered.buffers.back() = static_cast<int>(found - buffers.begin());
  }
  return lowered;
}

}  // namespace spillway
