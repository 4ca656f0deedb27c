// SPDX-License-Identifier: Apache-2.0
// Runs a decoder-only network of any family over a batch of sequences: executes the lowered op
// lists of its spec (model/lowered_layer.h).
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

#include "device/address_epoch.h"
#include "device/device.h"
#include "device/sparse_attention.h"
#include "kv/kv_cache.h"
#include "memory/transfer_scheduler.h"
#include "model/model_spec.h"
#include "plan/block_schedule.h"
#include "plan/plan.h"
#include "runtime/cpu_executor.h"
#include "runtime/graph_keys.h"
#include "runtime/hidden_states_link.h"
#include "runtime/host_attention.h"
#include "runtime/host_linear.h"
#include "runtime/host_tables.h"
#include "runtime/kv_swap.h"
#include "runtime/layer_swapper.h"
#include "runtime/micro_batch.h"
#include "runtime/model_weights.h"
#include "runtime/residual_store.h"
#include "runtime/stall_clock.h"
#include "runtime/timeline.h"
#include "runtime/weight_stream.h"

namespace spillway {

// How a decoder runs a model, in particular one that is not entirely on its device.
struct DecoderOptions {
  int max_tokens = 512;     // most tokens of a step
  int micro_tokens = 0;     // most tokens of a micro-batch; 0: max_tokens
  int micro_sequences = 0;  // most sequences of a micro-batch; 0: any number
  // The device's copies; null: the decoder has a scheduler of its own.
  TransferScheduler* transfers = nullptr;
  // Streams the weights that are not on the device; null: all are there.
  WeightStream* stream = nullptr;
  // The CPU's share of the rows of linear ops, by the tokens of a step's largest micro-batch; this
  // selects the streaming schedule of `stream`.
  std::vector<CpuLinearShare> cpu_linear = {};
  // The CPU device, in whose memory KV and embeddings live that are not on the device; null: none
  // do.
  Device* host = nullptr;
  // The share of the decoding sequences with KV in host memory whose attention the CPU computes.
  double host_share = 1;
  int32_t staging_blocks = 0;  // KV blocks in each of two buffers on the device; 0: no swapping
  // Whether attention over KV partitions may occur. Its memory is then allocated when a cache is
  // attached, not in the first step that needs it.
  bool partitioned = false;
  int64_t fixed_blocks = 0;  // KV blocks of a partition (PartitionLimits); 0: as large as possible
  // How the hidden states of a step of `max_tokens` tokens are divided among the tiers while they
  // wait between layers: the first rows are on the device, the last ones on disk.
  TierShares activations = {};
  IoQueue* queue = nullptr;  // the engine's, for hidden states on disk; null: none are there
  std::filesystem::path disk_dir = {};
  uint64_t disk_budget = ~uint64_t{0};  // for hidden states on disk
  bool overlap = true;
  // Only for a decoder that runs a part of a model (model/model_part.h): the facts of the whole
  // model, and the link that hidden states come from and go to. Otherwise the facts are those of
  // the weights, and there is no link.
  std::optional<ModelFacts> facts = {};
  HiddenStatesLink* link = nullptr;
};

// Statistics of a decoder over a number of steps: what it moved, and how long its ops waited.
struct DecoderStats {
  HostAttention::Stats host_attention;
  HostLinear::Stats host_linear;
  KvSwap::Stats swap;
  LayerSwapper::Stats layer_swaps;
  WeightStream::Stats weights;
  ResidualStore::Stats activations;
  AttentionTraffic attention;
  std::array<double, kStallCauseCount> stall_s = {};
  DecoderStats& operator+=(const DecoderStats& other);
};

// Owns the activation buffers of a step and runs one step at a time. The device, weights and spec
// must outlive it.
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
  // Allocates memory for `logit_rows` rows of logits now. Without this call it is allocated in the
  // first step that has that number of rows.
  void expect_rows(int64_t logit_rows);
  int max_tokens() const { return options_.max_tokens; }
  Device& device() const { return device_; }
  TransferScheduler& transfers() const { return *options_.transfers; }

  // The observer is called in every layer of a step with what its attention is about to read (q
  // rotated, K and V appended). It is for measurements: steps are then computed op by op and never
  // replayed.
  using AttentionObserver =
      std::function<void(const Activations& q, const KvLayerView& kv,
                         std::span<const SequenceSpan> spans, const AttentionParams& params)>;
  void observe_attention(AttentionObserver observer) { observer_ = std::move(observer); }

  // Allocates now what steps with this cache need besides the cache, instead of in the first step
  // with it. Throws kOutOfMemory.
  void attach(const KvCache& kv);

  // Changes the number of swapped layers, whose KV is loaded from host memory in each step, to
  // `swapped_layers`, at most the number that the cache was made for (LayerSwapper::change). This
  // changes device_blocks() of the cache. Call it between steps.
  void change_swapped_layers(KvCache& kv, int swapped_layers,
                             std::span<const KvCache::BlockCopy> moves = {});

  // Returns the statistics of the steps since the last call. Waits for the device.
  DecoderStats take_stats();
  // Records the following steps in the timeline; recorded steps are never replayed. Null stops
  // recording.
  void record(Timeline* timeline);

  // Sets the share of the context that rows which generate attend to (AttentionParams::top_k); 0:
  // all.
  void set_attention_topk(float share) { attention_topk_ = share; }
  float attention_topk() const { return attention_topk_; }
  // A sequence's KV may continue in another memory only at multiples of this many blocks. 0: it
  // must be in one memory, since rows that attend to a share of their context cannot use
  // partitions.
  int64_t span_blocks() const {
    if (attention_topk_ > 0) return 0;
    return options_.fixed_blocks > 0 ? options_.fixed_blocks : kPartitionBlocks;
  }

  // Returns the last key or value that was beyond the range of the KV type, on the device or where
  // the host computes attention. Steps continue after this. Waits for the device.
  std::optional<KvFault> find_kv_fault();

  // Computes the step, appends K and V to the cache, and returns logits [sum of logit_rows, vocab],
  // F32, in the device's memory, in the order of the sequences, valid until the next step. A part
  // of a model without a head returns nothing. Throws kInvalidArgument for a token outside the
  // vocabulary, a position outside the context, or too many tokens; the cache is then unchanged.
  // Throws kCorrupt if KV or activations read from disk differ from what was written; the step's
  // results are then invalid.
  Activations step(KvCache& kv, std::span<const StepSequence> sequences);

 private:
  void check_step(const KvCache& kv, std::span<const StepSequence> sequences) const;
  void check_table(const KvCache& kv, const StepSequence& sequence, int group) const;
  uint64_t graph_key(const KvCache& kv);
  StepBatch batch_of(const MicroBatch& batch) const;
  const AttentionSpec& attention_of(int layer) const {
    const LoweredLayer& list = model_->layer(layer);
    return list.of(list.attention_op()).attention;
  }
  AttentionParams attention_params(int layer) const;
  void count_attention(const KvCache& kv);
  bool has_shape(const KvCache& kv) const;
  // Returns where the rows of a micro-batch find their KV in this layer.
  const KvRows& kv_rows(const MicroBatch& batch, int layer) const {
    return batch.of(spec_.states.layers[static_cast<size_t>(layer)].group);
  }
  bool values_stay(const KvCache& kv) const;
  size_t schedule_of_step() const;
  bool executor_is_used() const;
  StepShape shape_of_step(const KvCache& kv) const;
  void run_events(KvCache& kv);
  void run_events(size_t begin, size_t end, KvCache& kv);
  std::span<const StepPart> parts_of_step(KvCache& kv);
  // The only functions that distinguish kinds of events (execute) and kinds of ops (run_op).
  void execute(const StepEvent& event, KvCache& kv);
  void run_op(const StepEvent& event, KvCache& kv);
  void run_event(const StepEvent& event, KvCache& kv);
  bool continues_linear(const StepEvent& event) const;
  void end_drawn_linear();
  void embed(const MicroBatch& batch);
  void wait_for_hidden_states(const MicroBatch& batch);
  void take_over(const MicroBatch& batch);
  void hand_over(const MicroBatch& batch);
  const LoweredOp& lowered(const StepEvent& event) const {
    return model_->layer(event.layer).ops[static_cast<size_t>(event.op)];
  }
  // Returns a `rows` x `columns` view of what a place of a list refers to. For the residual stream
  // that is the current micro-batch's.
  Activations at(const LoweredLayer& list, Place place, int64_t rows, int64_t columns);
  // With `is_added`, the result is added to the residual stream.
  void norm(int layer, int op, int64_t rows, bool is_added = false);
  // These run a linear op: the GPU's part on the device, and the CPU's rows beside it.
  void prepare_linear(const StepEvent& event, int64_t rows);
  void run_linear(const StepEvent& event, int64_t rows);
  void start_linear_on_cpu(const StepEvent& event, int64_t rows);
  void multiply_segment(const StepEvent& event);
  bool try_project_and_append(const StepEvent& event, KvCache& kv, const MicroBatch& batch);
  const StreamedLinear* try_streamed(int layer, int op) const;
  // Sets now_.qkv, now_.attended and now_.angles for a layer's attention.
  void begin_attention(int layer, const MicroBatch& batch);
  void attend_on_device(int layer, const KvCache& kv, const MicroBatch& batch);
  void start_on_host(int layer, KvCache& kv, const MicroBatch& batch);
  void append_and_attend(int layer, const PathRows& path, const KvLayerView& view);
  void attend_swapped(int layer, const MicroBatch& batch, const SwapGroup& group);
  void begin_partitions(int layer, const KvCache& kv, const MicroBatch& batch);
  void end_partitions(int layer, const MicroBatch& batch);
  // Returns the softmax state of a micro-batch's rows with partitioned KV.
  SoftmaxState softmax_state_of(const MicroBatch& batch);
  // Activations of the current micro-batch.
  struct PathActivations {
    Activations all, q, k, v, angles, out;
  };
  PathActivations rows_on(int layer, const PathRows& path) const;
  void rope_rows(int layer, const PathActivations& rows);
  void gather_logit_rows(const StepEvent& event, const MicroBatch& batch);
  Activations angles_of(const MicroBatch& batch, int rope);
  // Returns the first `rows` rows of a buffer, which grows if it is too small.
  Activations take(Buffer& buffer, DType type, int64_t rows, int64_t cols);
  Activations scratch(int buffer, int64_t rows, int64_t columns);
  Activations residual(Buffer& buffer, int64_t rows, int64_t cols);

  Device& device_;
  Ops& ops_;
  const ModelSpec& spec_;
  std::shared_ptr<const LoweredModel> model_;
  std::vector<StateRule> rules_;  // by layer group
  const ModelWeights& weights_;
  DecoderOptions options_;
  std::unique_ptr<TransferScheduler> own_transfers_;  // null if the options name one
  ModelFacts facts_;
  DType inner_type_;  // type of activations between matrices
  GraphKeys graph_keys_;
  AttentionObserver observer_;
  float attention_topk_ = 0;
  AttentionTraffic traffic_;
  std::optional<KvFault> kv_fault_;

  std::unique_ptr<StallClock> stalls_;
  Timeline* timeline_ = nullptr;
  // For the timeline: the linear op that CPU and GPU currently share, and the marks where it began
  // and where it ends so far.
  struct {
    const StreamedLinear* op = nullptr;
    size_t begin = 0, end = 0;
  } drawn_;
  std::unique_ptr<CpuExecutor> executor_;  // the CPU executor; null if the CPU has no part in steps
  std::unique_ptr<HostLinear> host_linear_;
  std::unique_ptr<HostAttention> host_attention_;
  std::unique_ptr<KvSwap> swap_;
  std::unique_ptr<LayerSwapper> swapper_;  // null where all layers' KV is resident
  std::unique_ptr<HostTables> tables_;     // null where embeddings are on the device

  CutStep step_;  // the current one, divided into micro-batches
  StepShape shape_;
  std::vector<StepEvent> events_;       // of a step with shape_
  std::vector<GraphSegment> segments_;  // of these events
  std::vector<StepPart> parts_;         // the graph segments of the current step
  KvCache* kv_ = nullptr;               // the cache that parts_ refer to
  int64_t tokens_ = 0;
  size_t streaming_schedule_ = 0;  // the streaming schedule of the current step
  std::vector<int> first_pieces_;  // first weight segment of each streamed linear op
  std::vector<std::span<const WeightView>> weight_segments_;  // acquired weight segments, by number
  // State that the events of a micro-batch in a layer pass to each other.
  struct {
    Activations x;
    Activations qkv, angles, attended;  // for attention
    RopeStyle rope_style = RopeStyle::kHalves;
    bool appended = false;                     // k and v are already in the cache
    SoftmaxState sums;                         // softmax state of rows with partitioned KV
    KvLayerView swapped;                       // the pages of the swap group that has arrived
    LinearOp op;                               // the current linear op
    const StreamedLinear* streamed = nullptr;  // its streamed rows; null: all is on the device
    bool started = false;                      // the CPU has started its rows of it
    int first_segment = 0;
  } now_;

  AddressEpoch epoch_;                // address epoch of the memory below
  std::unique_ptr<ResidualStore> x_;  // [tokens of the step, hidden]
  std::vector<Buffer> scratches_;     // LoweredModel::buffers; the head's grow on demand
  std::vector<Buffer> angles_;        // for each rope [tokens of the step, dims]
  Buffer sums_;                       // SoftmaxState [tokens], for attention over KV partitions
};

}  // namespace spillway
