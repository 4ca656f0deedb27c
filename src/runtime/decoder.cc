// SPDX-License-Identifier: Apache-2.0
#include "runtime/decoder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "device/expected_ops.h"
#include "model/weight_slots.h"

namespace spillway {
namespace {

bool is_load(const StepEvent& event) { return event.kind == EventKind::kLoad; }
bool is_hand_over(const StepEvent& event) { return event.subject == EventSubject::kHandOver; }
// Whether the event, or a later event of the same micro-batch's run, may call ops.
bool calls_ops(const StepEvent& event) { return !is_load(event) && !is_hand_over(event); }

// Returns what is added to a position to find its row of a learned position table; 0 if there is
// none.
int position_offset(const ModelSpec& spec) {
  for (const OpSpec& op : spec.embedding->ops) {
    if (op.embedding.by_position) return op.embedding.offset;
  }
  return 0;
}

// Whether the event may come between those of a linear op without ending it.
bool is_beside_linear(const StepEvent& event) {
  return event.subject == EventSubject::kWeights || event.subject == EventSubject::kLayerKv ||
         is_load(event);
}

std::vector<StateRule> rules_of(const ModelSpec& spec) {
  std::vector<StateRule> rules;
  for (const StateGroup& group : spec.states.groups) rules.push_back(group.state.rule());
  return rules;
}

bool has_rows_on_device(const MicroBatch& batch) {
  return batch.resident.rows > 0 || !batch.partitioned.resident.empty();
}

}  // namespace

Decoder::Decoder(Device& device, const ModelSpec& spec, const ModelWeights& weights, int max_tokens)
    : Decoder(device, spec, weights, DecoderOptions{.max_tokens = max_tokens}) {}

Decoder::Decoder(Device& device, const ModelSpec& spec, const ModelWeights& weights,
                 const DecoderOptions& options)
    : device_(device),
      ops_(device.ops()),
      spec_(spec),
      model_(spec.lowered),
      rules_(rules_of(spec)),
      weights_(weights),
      options_(options),
      facts_(options.facts ? *options.facts : weights.facts()),
      inner_type_(device.activation_type(facts_.matrix_type)),
      stalls_(std::make_unique<StallClock>(device)) {
  SPW_CHECK(spec.executable, kUnsupported,
            "{} is known as a shape for planning only; it cannot be run", spec.name);
  SPW_CHECK(options.max_tokens > 0, kInvalidArgument, "a step of {} tokens does nothing",
            options.max_tokens);
  SPW_ASSERT(weights.streamed.empty() || options.stream != nullptr);
  const bool is_part = model_->embedding.ops.empty() || model_->head.ops.empty();
  SPW_ASSERT(!is_part || (options.facts && options.link != nullptr));
  if (options_.micro_tokens <= 0) options_.micro_tokens = options_.max_tokens;
  options_.micro_tokens = std::min(options_.micro_tokens, options_.max_tokens);
  const int of_step = options_.max_tokens, of_batch = options_.micro_tokens;
  if (options_.transfers == nullptr) {
    own_transfers_ = std::make_unique<TransferScheduler>(device);
    options_.transfers = own_transfers_.get();
  }
  x_ = std::make_unique<ResidualStore>(
      *options_.transfers, options_.host == nullptr ? device : *options_.host,
      ResidualStoreOptions{
          .sizes = residual_sizes(options_.activations, of_step, of_batch, spec.hidden),
          .overlap = options_.overlap,
          .queue = options_.queue,
          .disk_dir = options_.disk_dir,
          .disk_budget = options_.disk_budget});
  LookedUpRows looked_up;
  if (!weights.on_host.by_token.empty()) {
    SPW_ASSERT(options_.host != nullptr);
    tables_ = std::make_unique<HostTables>(device, *options_.host, weights.on_host, of_batch);
    looked_up = tables_->sizes();
  }
  const DecoderBuffers bytes = decoder_buffers(spec, inner_type_, of_step, of_batch, 0, looked_up);
  const auto make = [&](Buffer& buffer, uint64_t size) {
    if (size > 0) buffer = device.allocate(size, MemoryTag::kActivations);
  };
  scratches_.resize(bytes.scratch.size());
  angles_.resize(bytes.angles.size());
  for (size_t i = 0; i < scratches_.size(); ++i) make(scratches_[i], bytes.scratch[i]);
  for (size_t i = 0; i < angles_.size(); ++i) make(angles_[i], bytes.angles[i]);
  if (options_.stream != nullptr) {
    std::vector<const StreamingSchedule*> schedules;
    bool on_cpu = false;
    for (size_t i = 0; i <= options_.cpu_linear.size(); ++i) {
      schedules.push_back(&options_.stream->schedule(i));
      on_cpu = on_cpu || schedules.back()->uses_cpu();
    }
    if (on_cpu) {
      SPW_ASSERT(options_.host != nullptr && options_.host != &device);
      executor_ = std::make_unique<CpuExecutor>(device);
      host_linear_ = std::make_unique<HostLinear>(
          device, *options_.host, *executor_, spec, weights, schedules,
          cpu_rows(schedules, options_.cpu_linear, of_batch), options_.queue);
    }
  }
  ops_.prepare({of_batch, spec.widest_input(),
                std::max(spec.vocab_size * spec.embedding_dim, spec.hidden * spec.ffn)});
}

Activations Decoder::take(Buffer& buffer, DType type, int64_t rows, int64_t cols) {
  const auto bytes = static_cast<size_t>(row_bytes(type, rows * cols));
  if (buffer.bytes() < bytes) {
    epoch_.renew();
    buffer = Buffer();  // free the old buffer first
    buffer = device_.allocate(bytes, MemoryTag::kActivations);
  }
  return {type, rows, cols, cols, buffer.data()};
}

Activations Decoder::residual(Buffer& buffer, int64_t rows, int64_t cols) {
  return take(buffer, DType::kF32, rows, cols);
}

Activations Decoder::scratch(int buffer, int64_t rows, int64_t columns) {
  const auto number = static_cast<size_t>(buffer);
  const DType type = model_->buffers[number].f32 ? DType::kF32 : inner_type_;
  return take(scratches_[number], type, rows, columns);
}

void Decoder::expect_rows(int64_t logit_rows) {
  for (size_t i = 0; i < scratches_.size(); ++i) {
    const int64_t columns = model_->buffers[i].head_columns;
    if (columns > 0) scratch(static_cast<int>(i), logit_rows, columns);
  }
}

bool Decoder::has_shape(const KvCache& kv) const {
  const std::vector<StateGroup>& groups = spec_.states.groups;
  if (kv.groups() != static_cast<int>(groups.size()) || kv.shapes().layers() != spec_.layer_count())
    return false;
  for (int i = 0; i < kv.groups(); ++i) {
    const StateGroup& group = groups[static_cast<size_t>(i)];
    const KvGroupShape& shape = kv.shape(i);
    if (shape.layers != static_cast<int>(group.layers.size()) ||
        shape.kv_heads != group.state.planes.front().heads ||
        shape.head_dim != group.state.planes.front().width || shape.rule != group.state.rule())
      return false;
  }
  return true;
}

void Decoder::check_step(const KvCache& kv, std::span<const StepSequence> sequences) const {
  SPW_ASSERT(has_shape(kv));
  int64_t tokens = 0;
  for (const StepSequence& sequence : sequences) {
    const auto count = static_cast<int64_t>(sequence.tokens.size());
    const int64_t end = sequence.start + count;
    SPW_CHECK(count > 0 && sequence.start >= 0, kInvalidArgument,
              "a sequence with {} tokens at position {} in a step", count, sequence.start);
    SPW_CHECK(end <= spec_.max_context, kInvalidArgument,
              "position {} is past the model's context of {} tokens", end - 1, spec_.max_context);
    tokens += count;
    SPW_CHECK(tokens <= options_.max_tokens, kInvalidArgument, "a step of more than {} tokens",
              options_.max_tokens);
    SPW_ASSERT(sequence.logit_rows >= 0 && sequence.logit_rows <= count);
    for (int group = 0; group < kv.groups(); ++group) check_table(kv, sequence, group);
    for (const int32_t id : sequence.tokens) {
      SPW_CHECK(id >= 0 && id < spec_.vocab_size, kInvalidArgument,
                "token id {} is outside the vocabulary of {} tokens", id, spec_.vocab_size);
    }
  }
}

// Asserts that every token the step's rows can reach has a block, and that the blocks are in
// memories where they may be.
void Decoder::check_table(const KvCache& kv, const StepSequence& sequence, int group) const {
  const std::span<const BlockId> table = sequence.table(group);
  const int64_t end = sequence.start + static_cast<int64_t>(sequence.tokens.size());
  SPW_ASSERT(static_cast<int64_t>(table.size()) * kKvBlockTokens >= end);
  const int64_t first_held = kv.shape(group).rule.first_reachable(sequence.start) / kKvBlockTokens;
  Tier tier = Tier::kDevice;
  for (size_t i = 0; i < table.size(); ++i) {
    const BlockId block = table[i];
    // Tables may have blocks after the step's tokens, some groups' tables more than others'.
    SPW_ASSERT(block.group == group);
    SPW_ASSERT(i >= sequence.block_table.size() || block.tier == sequence.block_table[i].tier);
    if (block.is_released()) {
      SPW_ASSERT(static_cast<int64_t>(i) < first_held && (i == 0 || table[i - 1].is_released()));
    } else {
      SPW_ASSERT(kv.has(block));
    }
    SPW_ASSERT(block.tier == tier || (tier < block.tier && i % kPartitionBlocks == 0));
    tier = block.tier;
  }
  SPW_ASSERT(tier == Tier::kDevice || options_.host != nullptr);
}

uint64_t Decoder::graph_key(const KvCache& kv) {
  return graph_keys_.number_of({weights_.address_epoch(), epoch_.number(), kv.shapes(),
                                kv.layers().swapped_count(), attention_topk_});
}

StepBatch Decoder::batch_of(const MicroBatch& batch) const {
  // With embeddings in host memory, ops look up the small tables of brought rows by row number, not
  // by id.
  const bool on_host = tables_ != nullptr;
  const auto numbers = on_host ? tables_->numbers(batch.tokens) : std::span<const int32_t>();
  return {on_host ? numbers : batch.ids,
          batch.positions,
          on_host ? numbers : batch.table_rows,
          batch.logit_rows,
          batch.resident.spans,
          batch.other_spans,
          /*graph_key=*/0,
          facts_.matrices,
          facts_.layer_types};
}

void Decoder::change_swapped_layers(KvCache& kv, int swapped_layers,
                                    std::span<const KvCache::BlockCopy> moves) {
  attach(kv);
  SPW_ASSERT(swapper_ != nullptr);
  swapper_->change(kv.swapped(), swapped_layers, moves);
}

void Decoder::attach(const KvCache& kv) {
  if (kv.layers().sizes().most > 0 && swapper_ == nullptr)
    swapper_ = std::make_unique<LayerSwapper>(*options_.transfers, options_.overlap);
  if (kv.host_blocks() > 0 && host_attention_ == nullptr) {
    if (executor_ == nullptr) executor_ = std::make_unique<CpuExecutor>(device_);
    host_attention_ = std::make_unique<HostAttention>(
        *options_.transfers, *options_.host, *executor_, inner_type_, options_.micro_tokens,
        spec_.q_dim(), spec_.kv_dim(), options_.overlap);
  }
  if (kv.host_blocks() + kv.disk_blocks() > 0 && swap_ == nullptr && options_.staging_blocks > 0) {
    swap_ = std::make_unique<KvSwap>(*options_.transfers, *options_.host, kv.shapes(),
                                     options_.staging_blocks, options_.overlap);
  }
  if (!options_.partitioned || kv.host_blocks() + kv.disk_blocks() == 0) return;
  residual(sums_, options_.micro_tokens, softmax_state_columns(spec_.heads, spec_.head_dim));
  if (host_attention_ != nullptr) host_attention_->prepare_partitions(spec_.heads);
}

AttentionParams Decoder::attention_params(int layer) const {
  const AttentionSpec& of = attention_of(layer);
  // Chunked attention needs no window: block tables leave out what a chunk hides (micro_batch.h).
  return {of.heads, of.scale, of.chunked ? 0 : of.window, attention_topk_};
}

// Swapped rows that attend to a share of their positions read V over the bus if that is fewer bytes
// than copying its pages: each query head reads entries of its own. Quantized V is always copied:
// an entry is spread over its page, and reading one touches as many sectors as reading all 16.
bool Decoder::values_stay(const KvCache& kv) const {
  return attention_topk_ > 0 &&
         attention_topk_ * static_cast<float>(spec_.heads) < static_cast<float>(spec_.kv_heads) &&
         !is_quantized(kv.shape().type) && kv.host_readable();
}

Activations Decoder::step(KvCache& kv, std::span<const StepSequence> sequences) {
  check_step(kv, sequences);
  if (sequences.empty()) return {};
  step_ = cut_step(sequences, {.tokens = options_.micro_tokens,
                               .rules = rules_,
                               .sequences = options_.micro_sequences,
                               .staging_blocks = options_.staging_blocks,
                               .fixed_blocks = options_.fixed_blocks,
                               .position_offset = position_offset(spec_),
                               .host_share = options_.host_share,
                               .values_stay = values_stay(kv),
                               .sparse = attention_topk_ > 0});
  const MicroBatch& last = step_.batches.back();
  tokens_ = last.first_row + last.tokens;
  // Everything that can grow does so here, before the graph key is computed from its addresses.
  const int64_t logit_rows = step_.logits;
  if (logit_rows > 0) expect_rows(logit_rows);
  for (const MicroBatch& batch : step_.batches) softmax_state_of(batch);
  attach(kv);
  if (timeline_ != nullptr) record(timeline_);  // attach() may have made new recorders
  streaming_schedule_ = schedule_of_step();
  const ExpectedOps expected(executor_ != nullptr && executor_is_used() ? options_.host : nullptr);
  try {
    if (swapper_ != nullptr) swapper_->begin_step(kv.swapped(), kv.swapped_group(), sequences);
    if (options_.stream != nullptr) options_.stream->begin_step(streaming_schedule_);
    run_events(kv);
    if (swapper_ != nullptr) swapper_->end_step();
  } catch (...) {
    drawn_ = {};
    // Work that is still queued refers to step_ and must not outlive it.
    if (executor_ != nullptr) executor_->reset();
    if (swap_ != nullptr) swap_->reset();
    if (swapper_ != nullptr) swapper_->reset(kv.swapped());
    x_->reset();
    throw;
  }
  count_attention(kv);
  if (logit_rows == 0 || model_->head.ops.empty()) return {};
  if (device_.host_visible()) device_.synchronize();
  return scratch(model_->head.buffers[static_cast<size_t>(model_->head.ops.back().output)],
                 logit_rows, spec_.vocab_size);
}

void Decoder::count_attention(const KvCache& kv) {
  for (int group = 0; group < kv.groups(); ++group) {
    const std::vector<int>& layers = spec_.states.groups[static_cast<size_t>(group)].layers;
    const KvLayerView pages = kv.layer(layers.front());
    const AttentionParams params = attention_params(layers.front());
    const int count = kv.shapes().readers(group);
    for (const MicroBatch& batch : step_.batches) {
      const KvRows& rows = batch.of(group);
      traffic_.add(rows.resident.spans, pages, params, count);
      traffic_.add(rows.on_host.spans, pages, params, count);
      traffic_.add(rows.on_host.shared, pages, params, count);
      for (const auto& spans : rows.partitioned.resident) traffic_.add(spans, pages, params, count);
      for (const SwapGroup& swap : rows.swaps) traffic_.add(swap.spans, pages, params, count);
    }
  }
}

// Whether the CPU computes a part of the current step.
bool Decoder::executor_is_used() const {
  return (options_.stream != nullptr &&
          options_.stream->schedule(streaming_schedule_).uses_cpu()) ||
         std::ranges::any_of(step_.batches,
                             [](const MicroBatch& batch) { return batch.on_host.rows > 0; });
}

// How linear ops are split between CPU and GPU depends only on the tokens that go through a layer
// together.
size_t Decoder::schedule_of_step() const {
  int64_t most = 0;
  for (const MicroBatch& batch : step_.batches) most = std::max<int64_t>(most, batch.tokens);
  return schedule_for(options_.cpu_linear, most);
}

StepShape Decoder::shape_of_step(const KvCache& kv) const {
  StepShape shape{.model = model_, .kv_buffers = kKvStagingBuffers, .overlap = options_.overlap};
  if (options_.stream != nullptr) {
    const StreamingSchedule& schedule = options_.stream->schedule(streaming_schedule_);
    for (const StreamedLinear& linear : schedule.linears)
      shape.streamed.push_back(streamed_shape(linear));
    shape.slot_groups = schedule.slot_groups();
    shape.weight_slots = options_.stream->slots();
  }
  const LayerTable& layers = kv.layers();
  shape.swapped_layers = layers.swapped_count();
  if (shape.swapped_layers > 0) {
    shape.layer_buffers = layers.sizes().spare_with(shape.swapped_layers);
    if (kv.groups() > 1)
      shape.swappable = spec_.states.groups[static_cast<size_t>(kv.swapped_group())].layers;
  }
  for (const MicroBatch& batch : step_.batches) {
    BatchShape& of = shape.batches.emplace_back();
    of.hidden_states_offloaded = x_->is_away(batch.first_row, batch.tokens);
    of.on_device = has_rows_on_device(batch);
    of.partitioned = batch.partitioned.rows > 0;
    of.on_host = batch.on_host.rows > 0;
    for (const SwapGroup& group : batch.swaps) of.swaps.push_back(group.continues);
    of.logits = !batch.logit_rows.empty();
  }
  return shape;
}

// Returns the graph segments of a step in the form in which a device calls them. Each function
// captures so little that std::function stores it without allocating.
std::span<const StepPart> Decoder::parts_of_step(KvCache& kv) {
  kv_ = &kv;
  parts_.clear();
  for (const GraphSegment& segment : segments_) {
    StepPart& part = parts_.emplace_back();
    if (segment.begin < segment.ops)
      part.before = [this, &segment] { run_events(segment.begin, segment.ops, *kv_); };
    part.ops = [this, &segment] { run_events(segment.ops, segment.end, *kv_); };
  }
  return parts_;
}

void Decoder::run_events(size_t begin, size_t end, KvCache& kv) {
  for (size_t at = begin; at < end; ++at) run_event(events_[at], kv);
}

void Decoder::run_events(KvCache& kv) {
  StepShape shape = shape_of_step(kv);
  if (shape != shape_) {
    events_ = schedule_step(shape);
    segments_ = graph_segments(events_);
    shape_ = std::move(shape);
    weight_segments_.assign(shape_.slot_groups.size(), {});
    first_pieces_.clear();
    for (int first = 0; const StreamedShape& linear : shape_.streamed) {
      first_pieces_.push_back(first);
      first += linear.segments;
    }
  }
  const std::vector<MicroBatch>& batches = step_.batches;
  if (batches.size() == 1) {
    const MicroBatch& all = batches.front();
    const bool resident = options_.stream == nullptr && all.swaps.empty() &&
                          all.on_host.rows == 0 && all.partitioned.rows == 0 &&
                          options_.activations.device == 1 && !observer_ && timeline_ == nullptr;
    StepBatch batch = batch_of(all);
    std::vector<KvPlanes> planes;
    if (resident) {
      planes = kv.planes_of_step();
      batch.graph_key = graph_key(kv);
      batch.kv = planes;
    }
    ops_.run_step(batch, parts_of_step(kv));
  } else {
    // Each micro-batch's run of events is one step for the device. Loads join the run of what is
    // computed before them: they call no ops, and each step for the device begins with an upload.
    for (size_t i = 0; i < events_.size();) {
      const StepEvent& first = events_[i];
      size_t end = i + 1;
      while (calls_ops(first) && end < events_.size() && !is_hand_over(events_[end]) &&
             (is_load(events_[end]) || events_[end].batch == first.batch)) {
        ++end;
      }
      const auto run = [&, i] { run_events(i, end, kv); };
      const bool head =
          std::any_of(events_.begin() + static_cast<ptrdiff_t>(i),
                      events_.begin() + static_cast<ptrdiff_t>(end), [&](const StepEvent& event) {
                        return event.subject == EventSubject::kOp && event.batch < 0;
                      });
      if (head) {
        ops_.run_step(StepBatch{}, run);
      } else if (first.batch >= 0 && calls_ops(first)) {
        ops_.run_step(batch_of(batches[static_cast<size_t>(first.batch)]), run);
      } else {
        run();
      }
      i = end;
    }
  }
  end_drawn_linear();
  // Work that the host has yet to do reads step_.
  if (executor_ != nullptr) executor_->synchronize();
  if (swap_ != nullptr) swap_->synchronize();
  x_->synchronize();
}

void Decoder::record(Timeline* timeline) {
  if (timeline != timeline_) drawn_ = {};
  timeline_ = timeline;
  stalls_->record(timeline);
  if (options_.stream != nullptr)
    options_.stream->record(timeline);
  else
    options_.transfers->observe(timeline);
  if (host_linear_ != nullptr) host_linear_->record(timeline);
  if (host_attention_ != nullptr) host_attention_->record(timeline);
  if (swap_ != nullptr) swap_->record(timeline);
  if (swapper_ != nullptr) swapper_->record(timeline);
}

// Whether the event belongs to the current linear op, whose rows CPU and GPU share.
bool Decoder::continues_linear(const StepEvent& event) const {
  if (is_beside_linear(event)) return true;
  const bool of_op = event.subject == EventSubject::kOp || event.subject == EventSubject::kCpu;
  if (!of_op || event.layer < 0 || lowered(event).kind != LoweredKind::kLinear) return false;
  return event.kind == EventKind::kJoin || event.group >= 0 ||
         (event.kind == EventKind::kRun && now_.started);
}

// Executes the event; if a timeline records, between two of its marks.
void Decoder::run_event(const StepEvent& event, KvCache& kv) {
  if (timeline_ == nullptr) return execute(event, kv);
  const bool continues = continues_linear(event);
  if (!continues) {
    end_drawn_linear();
    now_.streamed = nullptr;
  }
  const size_t begin = timeline_->mark(device_.compute());
  execute(event, kv);
  const size_t end = timeline_->mark(device_.compute());
  timeline_->add(TimelineLane::kGpu, event_name(*model_, event), event.layer, begin, end);
  if (!continues && now_.streamed != nullptr && !now_.streamed->on_cpu.empty())
    drawn_ = {now_.streamed, begin, end};
  if (continues && !is_beside_linear(event)) drawn_.end = end;
}

void Decoder::end_drawn_linear() {
  if (drawn_.op == nullptr || timeline_ == nullptr) return;
  timeline_->add(TimelineLane::kLinears, drawn_.op->name, drawn_.op->layer, drawn_.begin,
                 drawn_.end);
  drawn_.op = nullptr;
}

void Decoder::execute(const StepEvent& event, KvCache& kv) {
  using enum EventSubject;
  const int layer = event.layer;
  const MicroBatch* const batch =
      event.batch < 0 ? nullptr : &step_.batches[static_cast<size_t>(event.batch)];
  const auto group = [&]() -> const SwapGroup& {
    return kv_rows(*batch, layer).swaps[static_cast<size_t>(event.group)];
  };
  // Returns the index of a swapped layer in its layer group.
  const auto swapped_layer = [&] { return kv.shapes().place(layer).index; };
  WeightStream* const stream = options_.stream;
  switch (event.kind) {
    case EventKind::kLoad:
      if (event.subject == kWeights) return stream->load_next();
      if (event.subject == kKv) return swap_->load(kv, layer, group());
      if (event.subject == kHandOver) return take_over(*batch);
      if (event.subject == kLayerKv) return swapper_->load(kv.swapped(), swapped_layer());
      return x_->expect(batch->first_row, batch->tokens, *stalls_);
    case EventKind::kWait:
      if (event.subject == kWeights) {
        weight_segments_[static_cast<size_t>(event.group)] = stream->acquire(event.group, *stalls_);
      } else if (event.subject == kKv) {
        now_.swapped = swap_->begin(kv, layer, group(), attention_params(layer), *stalls_);
      } else if (event.subject == kLayerKv) {
        swapper_->wait_for(kv.swapped(), swapped_layer());
      } else {
        wait_for_hidden_states(*batch);
      }
      return;
    case EventKind::kRun:
      return run_op(event, kv);
    case EventKind::kStart:
      if (event.subject == kPartitions) return begin_partitions(layer, kv, *batch);
      if (lowered(event).kind == LoweredKind::kAttention) return start_on_host(layer, kv, *batch);
      return start_linear_on_cpu(event, batch == nullptr ? step_.logits : batch->tokens);
    case EventKind::kJoin:
      if (event.subject == kPartitions) return end_partitions(layer, *batch);
      if (lowered(event).kind == LoweredKind::kAttention) return host_attention_->finish(*stalls_);
      return host_linear_->join(*stalls_);
    case EventKind::kStore:
      if (event.subject == kKv) return swap_->end(kv, layer, group(), *stalls_);
      if (event.subject == kHandOver) return hand_over(*batch);
      if (event.subject == kLayerKv) return swapper_->store(kv.swapped(), swapped_layer());
      return x_->put(*stalls_);
    case EventKind::kRelease:
      if (event.subject == kWeights) return stream->release(event.group);
      if (event.subject == kLayerKv) return swapper_->release(kv.swapped(), swapped_layer());
      return x_->release();
  }
}

void Decoder::run_op(const StepEvent& event, KvCache& kv) {
  const MicroBatch* const batch =
      event.batch < 0 ? nullptr : &step_.batches[static_cast<size_t>(event.batch)];
  if (event.layer == kEmbeddingList) return embed(*batch);
  const int64_t rows = batch == nullptr ? step_.logits : batch->tokens;
  switch (lowered(event).kind) {
    case LoweredKind::kLinear:
      if (event.group >= 0) return multiply_segment(event);
      if (batch != nullptr && try_project_and_append(event, kv, *batch)) return;
      return run_linear(event, rows);
    case LoweredKind::kAttention:
      if (event.group < 0) return attend_on_device(event.layer, kv, *batch);
      return attend_swapped(event.layer, *batch,
                            kv_rows(*batch, event.layer).swaps[static_cast<size_t>(event.group)]);
    case LoweredKind::kNorm:
      return norm(event.layer, lowered(event).op, rows,
                  lowered(event).finish == LinearFinish::kAdd);
    case LoweredKind::kGather:
      return gather_logit_rows(event, *batch);
    case LoweredKind::kEmbedding:
      fail(ErrorCode::kInternal, "internal error: a table in a layer");
  }
}

std::optional<KvFault> Decoder::find_kv_fault() {
  if (const auto fault = ops_.take_kv_fault()) kv_fault_ = fault;
  if (options_.host != nullptr) {
    if (const auto fault = options_.host->ops().take_kv_fault()) kv_fault_ = fault;
  }
  if (host_attention_ != nullptr && host_attention_->fault()) kv_fault_ = host_attention_->fault();
  return kv_fault_;
}

DecoderStats Decoder::take_stats() {
  DecoderStats stats;
  stats.stall_s = stalls_->take();
  if (host_attention_ != nullptr) stats.host_attention = host_attention_->take_stats();
  if (host_linear_ != nullptr) stats.host_linear = host_linear_->take_stats();
  if (swap_ != nullptr) stats.swap = swap_->take_stats();
  if (swapper_ != nullptr) stats.layer_swaps = swapper_->take_stats();
  stats.stall_s[static_cast<size_t>(StallCause::kKvLoad)] += stats.layer_swaps.waited_s;
  if (options_.stream != nullptr) stats.weights = options_.stream->take_stats();
  stats.activations = x_->take_stats();
  stats.attention = std::exchange(traffic_, {});
  return stats;
}

DecoderStats& DecoderStats::operator+=(const DecoderStats& other) {
  host_attention += other.host_attention;
  host_linear += other.host_linear;
  swap += other.swap;
  layer_swaps += other.layer_swaps;
  weights += other.weights;
  activations += other.activations;
  attention += other.attention;
  for (size_t cause = 0; cause < stall_s.size(); ++cause) stall_s[cause] += other.stall_s[cause];
  return *this;
}

}  // namespace spillway
