// SPDX-License-Identifier: Apache-2.0
#include "plan/block_schedule.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "model/weight_slots.h"
#include "tensor/layer_swap_sizes.h"

namespace spillway {
namespace {

class Scheduling {
 public:
  explicit Scheduling(const StepShape& shape) : shape_(shape), batches_(batch_count()) {
    for (const StreamedShape& linear : shape.streamed) {
      first_segment_.push_back(static_cast<int>(layer_of_segment_.size()));
      layer_of_segment_.insert(layer_of_segment_.end(), static_cast<size_t>(linear.segments),
                               linear.layer);
    }
    SPW_ASSERT(shape.slot_groups.size() == layer_of_segment_.size());
    find_swapped_layers();
    for (size_t first = 0, i = 0; batches_ > 1 && i < layer_of_segment_.size(); ++i) {
      if (layer_of_segment_[i] >= shape.layers()) break;
      if (layer_of_segment_[i] != layer_of_segment_[first]) first = i;
      SPW_ASSERT(shape.slot_groups[i] - shape.slot_groups[first] < shape.weight_slots);
    }
  }

  std::vector<StepEvent> run() {
    events_.reserve(most_events());
    for (int i = 0; shape_.overlap && !swapped_.empty() && i < shape_.layer_buffers; ++i)
      add(Kind::kLoad, Subject::kLayerKv, {.layer = swapped_[static_cast<size_t>(i)]});
    load_kv_ahead();
    const bool takes_over = shape_.model->embedding.ops.empty();
    for (int b = 0; b < batches_; ++b) {
      if (takes_over) add(Kind::kLoad, Subject::kHandOver, {.batch = b});
      add(Kind::kRun, Subject::kOp,
          {.layer = kEmbeddingList, .op = takes_over ? -1 : 0, .batch = b});
      add(Kind::kStore, Subject::kHiddenStates, {.batch = b});
    }
    for (int layer = 0; layer < shape_.layers(); ++layer) {
      for (int b = 0; b < batches_; ++b) run_layer(layer, b);
    }
    run_head();
    return std::move(events_);
  }

 private:
  using Kind = EventKind;
  using Subject = EventSubject;
  struct Where {
    int layer = -1, op = -1, batch = -1, group = -1;
  };

  // Estimates the number of events, so that their list seldom grows: each op and the hidden states
  // of each batch in a layer, and the loads of weights. Steps that swap KV have more.
  size_t most_events() const {
    const size_t ops = shape_.model->layer(0).ops.size() + 4;
    const auto batches = static_cast<size_t>(batches_);
    return static_cast<size_t>(shape_.layers() + 1) * batches * ops +
           (2 + batches) * layer_of_segment_.size() + 2 * batches * shape_.streamed.size();
  }
  int batch_count() const { return static_cast<int>(shape_.batches.size()); }
  const BatchShape& batch(int b) const { return shape_.batches[static_cast<size_t>(b)]; }
  bool hands_over() const { return shape_.model->head.ops.empty(); }
  bool wants_logits(int b) const { return batch(b).logits && !hands_over(); }
  void add(Kind kind, Subject subject, const Where& where) {
    events_.push_back({kind, subject, where.layer, where.op, where.batch, where.group});
  }

  // Adds an op of a layer for a batch, or an op of the head for all batches (-1).
  void run_op(int layer, int op, int b) {
    const LoweredOp& of = shape_.model->layer(layer).ops[static_cast<size_t>(op)];
    if (of.kind == LoweredKind::kAttention) return run_attention(layer, op, b);
    const StreamedShape* const streamed =
        of.kind == LoweredKind::kLinear ? find_streamed(layer, op) : nullptr;
    const Where here{layer, op, b};
    // The CPU multiplies its rows while the device multiplies the resident rows and then each
    // segment that was loaded.
    if (streamed != nullptr && streamed->on_cpu) add(Kind::kStart, Subject::kCpu, here);
    // A projection may write its K and V into the KV cache itself (LinearFinish::kAppend), so a
    // swapped layer's KV must be there before it, not only before attention. Separate ops could
    // append later, but would round differently.
    if (of.finish == LinearFinish::kAppend) wait_for_layer(layer, b);
    add(Kind::kRun, Subject::kOp, here);
    if (streamed == nullptr) return;
    run_segments(*streamed, b, /*multiply=*/true);
    if (streamed->on_cpu) add(Kind::kJoin, Subject::kCpu, here);
  }
  const StreamedShape* find_streamed(int layer, int op) const {
    const auto found = std::ranges::lower_bound(
        shape_.streamed, std::pair(layer, op), {},
        [](const StreamedShape& linear) { return std::pair(linear.layer, linear.op); });
    const bool is_it = found != shape_.streamed.end() && found->layer == layer && found->op == op;
    return is_it ? &*found : nullptr;
  }
  void run_segments(const StreamedShape& linear, int b, bool multiply) {
    const int first = first_segment_[static_cast<size_t>(&linear - shape_.streamed.data())];
    for (int segment = first; segment < first + linear.segments; ++segment) {
      const Where here{linear.layer, linear.op, b, segment};
      if (b <= 0) use_weights(here);
      if (multiply) add(Kind::kRun, Subject::kOp, here);
      if (b < 0 || b + 1 == batches_) leave_weights(here);
    }
  }

  // Segments of the head pass through the slots even if no logits are needed, because slots are
  // filled in a fixed cyclic order.
  void run_head() {
    const int layer = shape_.layers();
    bool wanted = false;
    for (int b = 0; b < batches_; ++b) {
      if (!wants_logits(b)) continue;
      wanted = true;
      wait_for_hidden_states(layer, b);
      add(Kind::kRun, Subject::kOp, {.layer = layer, .op = 0, .batch = b});  // gather
      add(Kind::kRelease, Subject::kHiddenStates, {.batch = b});
      load_rows_ahead(layer, b);
    }
    const int last = shape_.model->head_op();
    for (int op = 1; wanted && op <= last; ++op) run_op(layer, op, -1);
    if (const StreamedShape* head = find_streamed(layer, last); head != nullptr && !wanted)
      run_segments(*head, -1, /*multiply=*/false);
  }

  void use_weights(Where at) {
    if (!shape_.overlap) load_weights(at.group);
    add(Kind::kWait, Subject::kWeights, at);
  }
  void load_weights(int segment) {
    add(Kind::kLoad, Subject::kWeights,
        {.layer = layer_of_segment_[static_cast<size_t>(segment)], .group = segment});
  }
  // After the last segment of a slot group is used, its slot is free and the next group starts
  // loading into it.
  void leave_weights(Where at) {
    add(Kind::kRelease, Subject::kWeights, at);
    const int segment = at.group;
    const auto count = static_cast<int>(shape_.slot_groups.size());
    const auto slot_group = [&](int of) { return shape_.slot_groups[static_cast<size_t>(of)]; };
    if (!shape_.overlap || (segment + 1 < count && slot_group(segment + 1) == slot_group(segment)))
      return;
    const int next = (slot_group(segment) + shape_.weight_slots) % (slot_group(count - 1) + 1);
    const auto first = std::ranges::lower_bound(shape_.slot_groups, next);
    for (auto i = static_cast<int>(first - shape_.slot_groups.begin());
         i < count && slot_group(i) == next; ++i)
      load_weights(i);
  }

  void run_layer(int layer, int b) {
    wait_for_hidden_states(layer, b);
    load_rows_ahead(layer, b);
    const auto ops = static_cast<int>(shape_.model->layer(layer).ops.size());
    for (int op = 0; op < ops; ++op) run_op(layer, op, b);
    const bool last = layer + 1 == shape_.layers() && !wants_logits(b);
    if (last && hands_over())
      return add(Kind::kStore, Subject::kHandOver, {.layer = layer, .batch = b});
    add(last ? Kind::kRelease : Kind::kStore, Subject::kHiddenStates, {.layer = layer, .batch = b});
  }

  // The CPU's sequences are started first, so that it works on them while the device attends to its
  // own.
  void run_attention(int layer, int op, int b) {
    const BatchShape& shape = batch(b);
    Where here{layer, op, b};
    wait_for_layer(layer, b);
    if (shape.partitioned) add(Kind::kStart, Subject::kPartitions, here);
    if (shape.on_host) add(Kind::kStart, Subject::kCpu, here);
    if (shape.on_device) add(Kind::kRun, Subject::kOp, here);
    leave_layer(layer, b);
    for (int group = 0; group < static_cast<int>(shape.swaps.size()); ++group) {
      here.group = group;
      // This group must be loaded, even if the loads ahead have not reached it.
      while (next_kv_ <= kv_item(layer, b, group)) load_next_kv();
      add(Kind::kWait, Subject::kKv, here);
      add(Kind::kRun, Subject::kOp, here);
      add(Kind::kStore, Subject::kKv, here);
      const bool last = group + 1 == static_cast<int>(shape.swaps.size());
      stored_kv_ = kv_item(layer, last ? b + 1 : b, last ? 0 : group + 1);
      --kv_loaded_;
      load_kv_ahead();
    }
    here.group = -1;
    if (shape.on_host) add(Kind::kJoin, Subject::kCpu, here);
    if (shape.partitioned) add(Kind::kJoin, Subject::kPartitions, here);
  }

  // Ignores swapped layers in a step in which no batch has KV on the device.
  void find_swapped_layers() {
    for (int b = 0; b < batches_; ++b) {
      if (!batch(b).on_device) continue;
      if (first_on_device_ < 0) first_on_device_ = b;
      last_on_device_ = b;
    }
    if (shape_.swapped_layers == 0 || last_on_device_ < 0) return;
    SPW_ASSERT(shape_.layer_buffers > 0 && shape_.layer_buffers < shape_.swapped_layers);
    const std::vector<int>& among = shape_.swappable;
    const int layers = among.empty() ? shape_.layers() : static_cast<int>(among.size());
    swapped_ = choose_swapped_layers(layers, shape_.swapped_layers);
    for (int& layer : swapped_)
      if (!among.empty()) layer = among[static_cast<size_t>(layer)];
  }
  // Waits for a swapped layer's KV before the first op of a step that may read or write it.
  void wait_for_layer(int layer, int b) {
    if (b != first_on_device_ || at_swapped_ == swapped_.size() || swapped_[at_swapped_] != layer ||
        std::exchange(waited_for_layer_, true))
      return;
    if (!shape_.overlap) add(Kind::kLoad, Subject::kLayerKv, {.layer = layer, .batch = b});
    add(Kind::kWait, Subject::kLayerKv, {.layer = layer, .batch = b});
  }
  // Releases a swapped layer's KV after its last use: new blocks are stored, and the next layer
  // without a buffer, which may belong to the next step, is loaded into the free one.
  void leave_layer(int layer, int b) {
    if (b != last_on_device_ || at_swapped_ == swapped_.size() || swapped_[at_swapped_] != layer)
      return;
    add(Kind::kStore, Subject::kLayerKv, {.layer = layer, .batch = b});
    add(Kind::kRelease, Subject::kLayerKv, {.layer = layer, .batch = b});
    const size_t next = at_swapped_ + static_cast<size_t>(shape_.layer_buffers);
    if (shape_.overlap)
      add(Kind::kLoad, Subject::kLayerKv, {.layer = swapped_[next % swapped_.size()], .batch = b});
    ++at_swapped_;
    waited_for_layer_ = false;
  }

  void load_hidden_states(int b) {
    add(Kind::kLoad, Subject::kHiddenStates, {.batch = b});
    hidden_states_loaded_ = b;
  }
  void wait_for_hidden_states(int layer, int b) {
    if (batch(b).hidden_states_offloaded && hidden_states_loaded_ != b) load_hidden_states(b);
    if (hidden_states_loaded_ == b) hidden_states_loaded_ = -1;
    add(Kind::kWait, Subject::kHiddenStates, {.layer = layer, .batch = b});
  }
  // Loads the hidden states that are used next, unless they are those of this batch.
  void load_rows_ahead(int layer, int b) {
    const int next = batch_after(layer, b);
    if (shape_.overlap && hidden_states_loaded_ < 0 && next >= 0 && next != b &&
        batch(next).hidden_states_offloaded)
      load_hidden_states(next);
  }
  // Returns the batch whose hidden states are used next, or -1. After the last layer only those
  // that need logits are.
  int batch_after(int layer, int b) const {
    int next = b + 1;
    if (layer < shape_.layers()) {
      if (next < batches_) return next;
      next = 0;
      if (layer + 1 < shape_.layers()) return next;
    }
    while (next < batches_ && !wants_logits(next)) ++next;
    return next < batches_ ? next : -1;
  }

  // Returns whether the next layer whose KV is to be loaded reads the KV of an earlier layer that
  // has not stored all of it yet.
  bool owner_is_at_work() const {
    const LoweredLayer& layer = shape_.model->layer(next_kv_.layer);
    const int back = layer.of(layer.attention_op()).attention.state_back;
    return back > 0 && stored_kv_ < kv_item(next_kv_.layer - back, batches_, 0);
  }

  // A group of a batch in a layer; groups are ordered by their use.
  struct KvItem {
    int layer = 0, batch = 0, group = 0;
    auto operator<=>(const KvItem&) const = default;
  };
  static KvItem kv_item(int layer, int b, int group) { return {layer, b, group}; }
  // Moves on to the next group; false if there is none.
  bool find_next_kv() {
    while (next_kv_.layer < shape_.layers()) {
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
    const LoweredLayer& layer = shape_.model->layer(next_kv_.layer);
    add(Kind::kLoad, Subject::kKv,
        {next_kv_.layer, layer.attention_op(), next_kv_.batch, next_kv_.group});
    ++next_kv_.group;
    ++kv_loaded_;
  }
  void load_kv_ahead() {
    if (!shape_.overlap) return;
    while (kv_loaded_ < shape_.kv_buffers && find_next_kv()) {
      const bool continues = batch(next_kv_.batch).swaps[static_cast<size_t>(next_kv_.group)];
      if (continues && kv_loaded_ > 0) return;
      if (owner_is_at_work()) return;
      load_next_kv();
    }
  }

  const StepShape& shape_;
  const int batches_;
  std::vector<int> first_segment_;     // by streamed linear op
  std::vector<int> layer_of_segment_;  // by weight segment
  std::vector<StepEvent> events_;
  int hidden_states_loaded_ = -1;  // the batch whose hidden states were loaded ahead
  KvItem next_kv_;
  KvItem stored_kv_;          // the group after the last one that was stored
  int kv_loaded_ = 0;         // groups that are loaded and not yet stored
  std::vector<int> swapped_;  // layers whose KV is swapped, in order
  size_t at_swapped_ = 0;     // index of the next one in swapped_
  bool waited_for_layer_ = false;
  int first_on_device_ = -1, last_on_device_ = -1;  // first and last batch with KV on the device
};

}  // namespace

StreamedShape streamed_shape(const StreamedLinear& linear) {
  return {.layer = linear.layer,
          .op = linear.op,
          .segments = static_cast<int>(linear.segments.size()),
          .on_cpu = !linear.on_cpu.empty()};
}

std::string event_name(const LoweredModel& model, const StepEvent& event) {
  constexpr std::array kKinds = {"load", "wait for", "run", "start", "join", "store", "release"};
  constexpr std::array kSubjects = {"op",  "weights",   "KV", "KV of the layer", "hidden states",
                                    "CPU", "partitions"};
  const auto op = [&] {
    if (event.op < 0) return std::string_view("angles");
    const bool embeds = event.layer == kEmbeddingList;
    return (embeds ? model.embedding : model.layer(event.layer)).name(event.op);
  };
  if (event.subject == EventSubject::kHandOver)
    return event.kind == EventKind::kLoad ? "take over hidden states" : "hand over hidden states";
  if (event.subject == EventSubject::kOp) return std::string(op());
  if (event.subject == EventSubject::kCpu)
    return fmt::format("{}{} on the CPU", event.kind == EventKind::kJoin ? "join " : "", op());
  return fmt::format("{} {}", kKinds[static_cast<size_t>(event.kind)],
                     kSubjects[static_cast<size_t>(event.subject)]);
}

bool is_decided_in_step(const StepEvent& event) {
  return event.subject == EventSubject::kLayerKv || event.subject == EventSubject::kHandOver;
}

std::vector<GraphSegment> graph_segments(std::span<const StepEvent> events) {
  std::vector<GraphSegment> segments;
  for (size_t at = 0; at < events.size(); at = segments.back().end) {
    GraphSegment segment{.begin = at, .ops = at};
    while (segment.ops < events.size() && is_decided_in_step(events[segment.ops])) ++segment.ops;
    segment.end = segment.ops;
    while (segment.end < events.size() && !is_decided_in_step(events[segment.end])) ++segment.end;
    segments.push_back(segment);
  }
  return segments;
}

std::vector<StepEvent> schedule_step(const StepShape& shape) {
  SPW_ASSERT(shape.model != nullptr && shape.layers() > 0);
  SPW_ASSERT(shape.weight_slots > 0 && shape.kv_buffers > 0);
  return Scheduling(shape).run();
}

}  // namespace spillway
