// SPDX-License-Identifier: Apache-2.0
// Runs a decoder-only network over a batch of sequences, whatever its family: the lists of ops of
// its spec, as they are lowered (model/lowered_layer.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/device.h"
#include "device/generation.h"
#include "device/sparse_attention.h"
#include "kv/kv_cache.h"
#include "model/model_spec.h"
#include "plan/block_schedule.h"
#include "plan/plan.h"
#include "runtime/hidden_states_link.h"
#include "runtime/host_attention.h"
#include "runtime/host_lane.h"
#include "runtime/host_linear.h"
#include "runtime/host_tables.h"
#include "runtime/kv_swap.h"
#include "runtime/kv_turns.h"
#include "runtime/micro_batch.h"
#include "runtime/model_weights.h"
#include "runtime/residual_store.h"
#include "runtime/stall_clock.h"
#include "runtime/step_programs.h"
#include "runtime/timeline.h"
#include "runtime/weight_stream.h"

namespace spillway {

// How a decoder runs a model that is not all on its device.
struct DecoderOptions {
  int max_tokens = 512;     // of a step: of a block, in FlexGen's words
  int micro_tokens = 0;     // of a micro-batch; 0: of a step
  int micro_sequences = 0;  // of a micro-batch; 0: any number
  // Where weights are streamed from; null: all are on the device.
  WeightStream* stream = nullptr;
  // By tokens of a step's largest micro-batch: which of the stream's orders it goes by.
  std::vector<CpuLinearShare> cpu_linear = {};
  // The CPU, where KV and embeddings live that are not on the device; null: there are none.
  Device* host = nullptr;
  // Of the decoding sequences whose KV is in host memory, the share that the CPU attends to.
  double host_share = 1;
  int32_t staging_blocks = 0;  // of KV on the device, in each of two buffers; 0: nothing is swapped
  // Sequences may be attended to in parts: memory for that is taken with a cache, and not in the
  // first step that needs it.
  bool parts = false;
  int64_t fixed_blocks = 0;  // of a part (PartLimits); 0: as large as it can be
  // Of a step's tokens (of `max_tokens`), where the residual stream is between layers: the first
  // ones' on the device, the last ones' on disk.
  TierShares activations = {};
  IoQueue* queue = nullptr;  // the engine's, for those on disk; null: there are none
  std::filesystem::path disk_dir = {};
  uint64_t disk_budget = ~uint64_t{0};  // for these rows
  bool overlap = true;
  // Of a part of a model (model/model_part.h): the facts of the whole model, and where hidden
  // states come from and go to. Else the facts are those of the weights, and there is no link.
  std::optional<ModelFacts> facts = {};
  HiddenStatesLink* link = nullptr;
};

// What a decoder has moved and waited for in some steps.
struct DecoderStats {
  HostAttention::Stats host_attention;
  HostLinear::Stats host_linear;
  KvSwap::Stats swap;
  KvTurns::Stats turns;
  WeightStream::Stats weights;
  ResidualStore::Stats activations;
  AttentionTraffic attention;
  std::array<double, kStallCauseCount> stall_s = {};
  DecoderStats& operator+=(const DecoderStats& other);
};

// Owns the activation buffers of a step. One step at a time. The device, weights and spec must
// outlive it.
//
// A step goes layer by layer, and inside a layer micro-batch by micro-batch (FlexGen, Algorithm 1):
// each layer's weights come to the device once a step, however many tokens it has.
class Decoder {
 public:
  // A step has at most `max_tokens` tokens.
  Decoder(Device& device, const ModelSpec& spec, const ModelWeights& weights, int max_tokens);
  Decoder(Device& device, const ModelSpec& spec, const ModelWeights& weights,
          const DecoderOptions& options);

  const ModelSpec& spec() const { return spec_; }
  // Steps may have so many rows of logits: memory for them is taken now. Else it is when a step
  // has them.
  void expect_rows(int64_t logit_rows);
  int max_tokens() const { return options_.max_tokens; }
  Device& device() const { return device_; }

  // Called in every layer of a step with what its attention is about to read (q rotated, K and V
  // appended): for measurements. Steps are then computed op by op, and never replayed.
  using AttentionObserver =
      std::function<void(const Activations& q, const KvLayerView& kv,
                         std::span<const SequenceSpan> spans, const AttentionParams& params)>;
  void observe_attention(AttentionObserver observer) { observer_ = std::move(observer); }

  // Takes what steps with this cache need beside it now, and not in the first of them. Throws
  // kOutOfMemory.
  void attach(const KvCache& kv);

  // So many layers' KV takes turns on the device from now on (KvTurns::change): device_blocks() of
  // the cache are then others. Between steps, with what the cache was made for.
  void change_turns(KvCache& kv, int turning, std::span<const KvCache::BlockCopy> moves = {});

  // Of the steps since the last call; waits for the device.
  DecoderStats take_stats();
  // Draws the steps from now on, which are then never replayed; null: not any more.
  void record(Timeline* timeline);

  // Rows that generate attend to this share of their context (AttentionParams::top_k); 0 = all.
  void set_attention_topk(float share) { attention_topk_ = share; }
  float attention_topk() const { return attention_topk_; }
  // Behind which multiples of blocks a sequence may go on in another memory; 0: it may not, as rows
  // that attend to a share of their context have no parts.
  int64_t span_blocks() const {
    if (attention_topk_ > 0) return 0;
    return options_.fixed_blocks > 0 ? options_.fixed_blocks : kAttentionPartBlocks;
  }

  // The last number that was beyond the range of the KV type, on the device or where the host
  // attends; steps go on after it. Waits for the device.
  std::optional<KvFault> find_kv_fault();

  // Computes the step, appends K and V to the cache, and returns logits [sum of logit_rows, vocab],
  // F32, in the device's memory, in order of the sequences, valid until the next step. Throws
  // kInvalidArgument for a token outside the vocabulary, a position outside the context, or too
  // many tokens; the cache is then as it was. kCorrupt where KV or activations did not come back
  // from the disk as they went there: nothing of this step counts then. A part of a model without
  // head returns nothing.
  Activations step(KvCache& kv, std::span<const StepSequence> sequences);

 private:
  void check_step(const KvCache& kv, std::span<const StepSequence> sequences) const;
  void check_table(const KvCache& kv, const StepSequence& sequence, int group) const;
  uint64_t program(const KvCache& kv);
  StepBatch batch_of(const MicroBatch& batch) const;
  const AttentionSpec& attention_of(int layer) const {
    const LoweredLayer& list = model_->layer(layer);
    return list.of(list.attention_op()).attention;
  }
  AttentionParams attention_params(int layer) const;
  void count_attention(const KvCache& kv);
  bool has_shape(const KvCache& kv) const;
  // Where the rows of a micro-batch find their KV in a layer.
  const KvRows& kv_rows(const MicroBatch& batch, int layer) const {
    return batch.of(spec_.states.layers[static_cast<size_t>(layer)].group);
  }
  bool values_stay(const KvCache& kv) const;
  size_t order_of_step() const;
  bool lane_is_used() const;
  StepShape shape_of_step(const KvCache& kv) const;
  void run_events(KvCache& kv);
  void run_events(size_t begin, size_t end, KvCache& kv);
  std::span<const StepPart> parts_of_step(KvCache& kv);
  // The one place where execution tells events apart, and where it tells ops apart.
  void execute(const StepEvent& event, KvCache& kv);
  void run_op(const StepEvent& event, KvCache& kv);
  void run_event(const StepEvent& event, KvCache& kv);
  bool continues_linear(const StepEvent& event) const;
  void end_drawn_linear();
  void embed(const MicroBatch& batch);
  void take_rows(const MicroBatch& batch);
  void take_over(const MicroBatch& batch);
  void hand_over(const MicroBatch& batch);
  const LoweredOp& lowered(const StepEvent& event) const {
    return model_->layer(event.layer).ops[static_cast<size_t>(event.op)];
  }
  // What a place of a list holds: rows of so many columns. Of the residual stream, the
  // micro-batch's at hand.
  Activations at(const LoweredLayer& list, Place place, int64_t rows, int64_t columns);
  void norm(int layer, int op, int64_t rows);
  // A linear op: what is on the device, and the CPU's rows of what is not.
  void prepare_linear(const StepEvent& event, int64_t rows);
  void run_linear(const StepEvent& event, int64_t rows);
  void start_linear_on_cpu(const StepEvent& event, int64_t rows);
  void multiply_segment(const StepEvent& event);
  bool try_project_and_append(const StepEvent& event, KvCache& kv, const MicroBatch& batch);
  const StreamedLinear* try_streamed(int layer, int op) const;
  // Finds q, k and v of a layer and where attention's result goes.
  void begin_attention(int layer, const MicroBatch& batch);
  void attend_on_device(int layer, const KvCache& kv, const MicroBatch& batch);
  void start_on_host(int layer, KvCache& kv, const MicroBatch& batch);
  void append_and_attend(int layer, const PathRows& path, const KvLayerView& view);
  void attend_swapped(int layer, const MicroBatch& batch, const SwapGroup& group);
  void begin_parts(int layer, const KvCache& kv, const MicroBatch& batch);
  void end_parts(int layer, const MicroBatch& batch);
  // Of the parted rows of a micro-batch, the sums.
  AttentionSums sums_of(const MicroBatch& batch);
  // Of the micro-batch at hand.
  struct PathActivations {
    Activations all, q, k, v, angles, out;
  };
  PathActivations rows_on(int layer, const PathRows& path) const;
  void rope_rows(int layer, const PathActivations& rows);
  void gather_logit_rows(const StepEvent& event, const MicroBatch& batch);
  Activations angles_of(const MicroBatch& batch, int rope);
  // The first `rows` rows of a buffer.
  Activations take(Buffer& buffer, DType type, int64_t rows, int64_t cols);
  Activations scratch(int buffer, int64_t rows, int64_t columns);
  Activations residual(Buffer& buffer, int64_t rows, int64_t cols);

  Device& device_;
  Ops& ops_;
  const ModelSpec& spec_;
  std::shared_ptr<const LoweredModel> model_;
  std::vector<StateRule> rules_;  // by group of layers
  const ModelWeights& weights_;
  DecoderOptions options_;
  ModelFacts facts_;
  DType inner_type_;  // of activations between matrices
  StepPrograms programs_;
  AttentionObserver observer_;
  float attention_topk_ = 0;
  AttentionTraffic traffic_;
  std::optional<KvFault> kv_fault_;

  std::unique_ptr<StallClock> stalls_;
  Timeline* timeline_ = nullptr;
  // A linear op that CPU and GPU share, in the drawing: where it has begun and come to.
  struct {
    const StreamedLinear* op = nullptr;
    size_t begin = 0, end = 0;
  } drawn_;
  std::unique_ptr<HostLane> lane_;  // null where the CPU has no part in steps
  std::unique_ptr<HostLinear> host_linear_;
  std::unique_ptr<HostAttention> host_attention_;
  std::unique_ptr<KvSwap> swap_;
  std::unique_ptr<KvTurns> turns_;      // null where all layers' KV is resident
  std::unique_ptr<HostTables> tables_;  // null where embeddings are on the device

  CutStep step_;  // the one at hand
  StepShape shape_;
  std::vector<StepEvent> events_;       // of a step of that shape
  std::vector<GraphSegment> segments_;  // of these events
  std::vector<StepPart> parts_;         // of the step at hand: its segments
  KvCache* kv_ = nullptr;               // that the parts are of
  int64_t tokens_ = 0;
  size_t order_ = 0;               // of the stream's
  std::vector<int> first_pieces_;  // of the linear ops that stream, by their number in the order
  std::vector<std::span<const WeightView>> pieces_;  // that are held, by number
  // What events of a micro-batch in a layer hand each other.
  struct {
    Activations x;
    Activations qkv, angles, attended;  // of attention
    RopeStyle rope_style = RopeStyle::kHalves;
    bool appended = false;                     // k and v are in the cache already
    AttentionSums sums;                        // of the parted rows
    KvLayerView swapped;                       // the pages of the group that has come
    LinearOp op;                               // the linear one at hand
    const StreamedLinear* streamed = nullptr;  // of it; null: all is on the device
    bool started = false;                      // the CPU is at its rows of it
    int first_piece = 0;
  } now_;

  Generation generation_;             // of the memory below
  std::unique_ptr<ResidualStore> x_;  // [tokens of the step, hidden]
  std::vector<Buffer> scratches_;     // LoweredModel::buffers; those of the head grow on demand
  std::vector<Buffer> angles_;        // of each rope [tokens of the step, dims]
  Buffer sums_;  // AttentionSums [tokens]; where sequences are attended to in parts
};

}  // namespace spillway
