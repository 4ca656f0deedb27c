// SPDX-License-Identifier: Apache-2.0
#include "plan/block_schedule.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace spillway {
namespace {

class Scheduling {
 public:
  explicit Scheduling(const StepShape& shape) : shape_(shape), batches_(batch_count()) {
    for (const StreamedShape& linear : shape.streamed) {
      first_piece_.push_back(static_cast<int>(layer_of_piece_.size()));
      layer_of_piece_.insert(layer_of_piece_.end(), static_cast<size_t>(linear.pieces),
                             linear.layer);
    }
    SPW_ASSERT(shape.slotfuls.size() == layer_of_piece_.size());
    for (size_t first = 0, i = 0; batches_ > 1 && i < layer_of_piece_.size(); ++i) {
      if (layer_of_piece_[i] >= shape.layers) break;
      if (layer_of_piece_[i] != layer_of_piece_[first]) first = i;
      SPW_ASSERT(shape.slotfuls[i] - shape.slotfuls[first] < shape.weight_slots);
    }
  }

  std::vector<StepEvent> run() {
    load_kv_ahead();
    for (int b = 0; b < batches_; ++b) {
      add(StepAction::kEmbed, -1, b);
      add(StepAction::kStoreRows, -1, b);
    }
    for (int layer = 0; layer < shape_.layers; ++layer) run_layer(layer);
    bool head = false;
    for (int b = 0; b < batches_; ++b) {
      if (!batch(b).logits) continue;
      head = true;
      take_rows(shape_.layers, b);
      add(StepAction::kGather, -1, b);
      add(StepAction::kDropRows, -1, b);
      load_rows_ahead(shape_.layers, b);
    }
    run_head(head);
    return std::move(events_);
  }

 private:
  int batch_count() const { return static_cast<int>(shape_.batches.size()); }
  const BatchShape& batch(int b) const { return shape_.batches[static_cast<size_t>(b)]; }
  void add(StepAction action, int layer = -1, int b = -1, int group = -1) {
    events_.push_back({action, layer, b, group});
  }

  void run_layer(int layer) {
    for (int b = 0; b < batches_; ++b) run_batch(layer, b);
  }

  // The linear op of a layer for a batch: what is on the device, then piece by piece what comes,
  // while the CPU is at its rows.
  void run_linear(StepAction action, LinearGroup group, int layer, int b) {
    add(action, layer, b);
    const auto found = std::ranges::lower_bound(
        shape_.streamed, std::pair(layer, group), {},
        [](const StreamedShape& linear) { return std::pair(linear.layer, linear.group); });
    if (found == shape_.streamed.end() || found->layer != layer || found->group != group) return;
    run_pieces(*found, b, /*multiply=*/true);
    if (found->on_cpu) add(StepAction::kJoinLinear, layer, b);
  }
  void run_pieces(const StreamedShape& linear, int b, bool multiply) {
    const int first = first_piece_[static_cast<size_t>(&linear - shape_.streamed.data())];
    for (int piece = first; piece < first + linear.pieces; ++piece) {
      if (b <= 0) use_weights(linear.layer, b, piece);
      if (multiply) add(StepAction::kMultiply, linear.layer, b, piece);
      if (b < 0 || b + 1 == batches_) leave_weights(linear.layer, b, piece);
    }
  }

  // Pieces of the head take their turn also where no logits are wanted: what comes goes round.
  void run_head(bool wanted) {
    const bool streamed = !shape_.streamed.empty() && shape_.streamed.back().layer >= shape_.layers;
    if (wanted) return run_linear(StepAction::kHead, LinearGroup::kHead, shape_.layers, -1);
    if (streamed) run_pieces(shape_.streamed.back(), -1, /*multiply=*/false);
  }

  void use_weights(int layer, int b, int piece) {
    if (!shape_.overlap) add(StepAction::kLoadWeights, layer, -1, piece);
    add(StepAction::kUseWeights, layer, b, piece);
  }
  // With the last piece of a slotful its slot is free, and pieces of another come.
  void leave_weights(int layer, int b, int piece) {
    add(StepAction::kLeaveWeights, layer, b, piece);
    const auto count = static_cast<int>(shape_.slotfuls.size());
    const auto slotful = [&](int of) { return shape_.slotfuls[static_cast<size_t>(of)]; };
    if (!shape_.overlap || (piece + 1 < count && slotful(piece + 1) == slotful(piece))) return;
    const int next = (slotful(piece) + shape_.weight_slots) % (slotful(count - 1) + 1);
    const auto first = std::ranges::lower_bound(shape_.slotfuls, next);
    for (auto i = static_cast<int>(first - shape_.slotfuls.begin());
         i < count && slotful(i) == next; ++i)
      add(StepAction::kLoadWeights, layer_of_piece_[static_cast<size_t>(i)], -1, i);
  }

  // The CPU's rows first: it works on them while the device attends to its own.
  void run_batch(int layer, int b) {
    const BatchShape& shape = batch(b);
    take_rows(layer, b);
    load_rows_ahead(layer, b);
    run_linear(StepAction::kProject, LinearGroup::kProject, layer, b);
    if (shape.parts) add(StepAction::kBeginParts, layer, b);
    if (shape.on_host) add(StepAction::kStartOnHost, layer, b);
    if (shape.on_device) add(StepAction::kAttend, layer, b);
    for (int group = 0; group < static_cast<int>(shape.swaps.size()); ++group) {
      // Whatever came ahead of its turn, this one has to be there.
      while (next_kv_ <= kv_item(layer, b, group)) load_next_kv();
      add(StepAction::kAttendSwapped, layer, b, group);
      add(StepAction::kStoreKv, layer, b, group);
      --kv_loaded_;
      load_kv_ahead();
    }
    if (shape.on_host) add(StepAction::kJoinHost, layer, b);
    if (shape.parts) add(StepAction::kEndParts, layer, b);
    run_linear(StepAction::kAttentionOut, LinearGroup::kAttentionOut, layer, b);
    run_linear(StepAction::kUp, LinearGroup::kUp, layer, b);
    run_linear(StepAction::kDown, LinearGroup::kDown, layer, b);
    add(StepAction::kFinishLayer, layer, b);
    const bool last = layer + 1 == shape_.layers && !shape.logits;
    add(last ? StepAction::kDropRows : StepAction::kStoreRows, layer, b);
  }

  void load_rows(int b) {
    add(StepAction::kLoadRows, -1, b);
    rows_loaded_ = b;
  }
  void take_rows(int layer, int b) {
    if (batch(b).rows_away && rows_loaded_ != b) load_rows(b);
    if (rows_loaded_ == b) rows_loaded_ = -1;
    add(StepAction::kTakeRows, layer, b);
  }
  // Those that are taken next, unless they are these.
  void load_rows_ahead(int layer, int b) {
    const int next = batch_after(layer, b);
    if (shape_.overlap && rows_loaded_ < 0 && next >= 0 && next != b && batch(next).rows_away)
      load_rows(next);
  }
  // Behind the last layer rows are taken for logits alone. -1: none.
  int batch_after(int layer, int b) const {
    int next = b + 1;
    if (layer < shape_.layers) {
      if (next < batches_) return next;
      next = 0;
      if (layer + 1 < shape_.layers) return next;
    }
    while (next < batches_ && !batch(next).logits) ++next;
    return next < batches_ ? next : -1;
  }

  // Groups of all layers, in the order of their use.
  struct KvItem {
    int layer = 0, batch = 0, group = 0;
    auto operator<=>(const KvItem&) const = default;
  };
  static KvItem kv_item(int layer, int b, int group) { return {layer, b, group}; }
  // Skips what has no groups; false at the end.
  bool find_next_kv() {
    while (next_kv_.layer < shape_.layers) {
      if (next_kv_.batch == batches_) {
        next_kv_ = {next_kv_.layer + 1, 0, 0};
      } else if (next_kv_.group == static_cast<int>(batch(next_kv_.batch).swaps.size())) {
        next_kv_ = {next_kv_.layer, next_kv_.batch + 1, 0};
      } else {
        return true;
      }
    }
    return false;
  }
  void load_next_kv() {
    if (!find_next_kv()) return;
    add(StepAction::kLoadKv, next_kv_.layer, next_kv_.batch, next_kv_.group);
    ++next_kv_.group;
    ++kv_loaded_;
  }
  void load_kv_ahead() {
    if (!shape_.overlap) return;
    while (kv_loaded_ < shape_.kv_buffers && find_next_kv()) {
      const bool continues = batch(next_kv_.batch).swaps[static_cast<size_t>(next_kv_.group)];
      if (continues && kv_loaded_ > 0) return;
      load_next_kv();
    }
  }

  const StepShape& shape_;
  const int batches_;
  std::vector<int> first_piece_;     // of each linear op that streams
  std::vector<int> layer_of_piece_;  // of all of them
  std::vector<StepEvent> events_;
  int rows_loaded_ = -1;  // the batch whose rows have come ahead
  KvItem next_kv_;
  int kv_loaded_ = 0;  // groups that have come and not gone
};

}  // namespace

StreamedShape streamed_shape(const StreamedLinear& linear) {
  return {.layer = linear.layer,
          .group = linear.group,
          .pieces = static_cast<int>(linear.pieces.size()),
          .on_cpu = !linear.on_cpu.empty()};
}

const char* action_name(StepAction action) {
  switch (action) {
    case StepAction::kLoadWeights:
      return "load weights";
    case StepAction::kUseWeights:
      return "use weights";
    case StepAction::kLeaveWeights:
      return "leave weights";
    case StepAction::kEmbed:
      return "embed";
    case StepAction::kLoadRows:
      return "load rows";
    case StepAction::kTakeRows:
      return "take rows";
    case StepAction::kStoreRows:
      return "store rows";
    case StepAction::kDropRows:
      return "drop rows";
    case StepAction::kLoadKv:
      return "load KV";
    case StepAction::kProject:
      return "q, k, v";
    case StepAction::kStartOnHost:
      return "attention on the CPU";
    case StepAction::kAttend:
      return "attention";
    case StepAction::kAttendSwapped:
      return "attention to moved KV";
    case StepAction::kStoreKv:
      return "store KV";
    case StepAction::kJoinHost:
      return "join the CPU";
    case StepAction::kBeginParts:
      return "begin attention in parts";
    case StepAction::kEndParts:
      return "end attention in parts";
    case StepAction::kMultiply:
      return "multiply";
    case StepAction::kJoinLinear:
      return "join the CPU's rows";
    case StepAction::kAttentionOut:
      return "output of attention";
    case StepAction::kUp:
      return "up";
    case StepAction::kDown:
      return "down";
    case StepAction::kFinishLayer:
      return "end of the layer";
    case StepAction::kGather:
      return "gather";
    case StepAction::kHead:
      return "head";
  }
  fail(ErrorCode::kInternal, "an action without a name");
}

std::vector<StepEvent> schedule_step(const StepShape& shape) {
  SPW_ASSERT(shape.layers > 0 && shape.weight_slots > 0 && shape.kv_buffers > 0);
  return Scheduling(shape).run();
}

}  // namespace spillway
