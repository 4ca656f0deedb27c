// SPDX-License-Identifier: Apache-2.0
#include "plan/step_prices.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "model/weight_slots.h"
#include "plan/activation_sizes.h"

namespace spillway {
namespace {

// Returns the kernel launches of a linear op besides its products: norm, rope and append; the sum;
// norm and activation.
double launches_of(LinearFinish finish) {
  switch (finish) {
    case LinearFinish::kAppend:
      return 3;
    case LinearFinish::kActivate:
    case LinearFinish::kGate:
      return 2;
    case LinearFinish::kAdd:
    case LinearFinish::kStore:
      break;
  }
  return 1;
}

CpuLinearShare cpu_share(const std::vector<CpuLinearShare>& shares, double tokens) {
  const size_t number = schedule_for(shares, static_cast<int64_t>(tokens));
  return number < shares.size() ? shares[number] : CpuLinearShare{};
}

double sequences_of_a_batch(const Plan& plan, const RunLayout& layout, const StepSize& size) {
  const double most = std::max(1.0, std::floor(static_cast<double>(layout.micro_tokens) /
                                               static_cast<double>(size.tokens_each)));
  if (!size.generates || plan.micro_batch <= 0) return most;
  return std::min(most, static_cast<double>(plan.micro_batch));
}

void add_price(EventPrice& to, const EventPrice& price, double times = 1) {
  for (size_t i = 0; i < price.seconds.size(); ++i) to.seconds[i] += times * price.seconds[i];
}

}  // namespace

StreamSplit StepPrices::cut_of(const Hardware& hardware, const Plan& plan, const RunLayout& layout,
                               const StepSize& size) {
  const double most_tokens = std::min(
      static_cast<double>(layout.micro_tokens),
      std::min(static_cast<double>(size.sequences), sequences_of_a_batch(plan, layout, size)) *
          static_cast<double>(size.tokens_each));
  return {.slots = layout.slots,
          .cpu = cpu_share(plan.shared_linear(!hardware.has_device()), most_tokens)};
}

StepPrices::StepPrices(const Hardware& hardware, const Model& model, const std::vector<Tier>& homes,
                       const Plan& plan, const RunLayout& layout, const StepSize& size)
    : StepPrices(hardware, model.spec,
                 std::make_shared<const StepWeights>(
                     step_weights(model, homes, cut_of(hardware, plan, layout, size))),
                 plan, layout, size) {}

StepPrices::StepPrices(const Hardware& hardware, const ModelSpec& spec,
                       std::shared_ptr<const StepWeights> weights, const Plan& plan,
                       const RunLayout& layout, const StepSize& size)
    : hardware_(hardware),
      links_(hardware),
      spec_(spec),
      size_(size),
      weights_(std::move(weights)),
      kv_type_(layout.kv.group(0).type) {
  // A prompt's tokens share what they read, and what this step has written is on the device
  // already.
  keys_read_ = size.generates
                   ? size.keys
                   : std::max(0.0, size.keys - static_cast<double>(size.tokens_each) / 2);
  kv_token_bytes_ = layout.kv.mean_token_bytes(std::max(1.0, keys_read_));
  new_token_bytes_ = layout.kv.mean_new_token_bytes();
  const KvGroupShape& swapped = layout.kv.group(layout.kv.swapped_group());
  swapped_token_bytes_ = static_cast<double>(swapped.layer_block_bytes()) / double{kKvBlockTokens};
  keys_seen_ = layout.kv.mean_keys(size.keys);
  if (size.generates) traffic_ = kv_traffic(hardware, spec_, kv_type_, plan.attention_topk);
  if (size.generates && plan.attention_topk.value_or(0) > 0)
    own_reads_ = static_cast<double>(size.tokens_each);
  row_bytes_ = 4.0 * static_cast<double>(spec_.hidden);
  shape_ = {.model = spec_.lowered,
            .streamed = weights_->streamed,
            .slot_groups = weights_->slot_groups,
            .weight_slots = std::max(1, layout.weight_slots),
            .kv_buffers = kKvStagingBuffers,
            .swapped_layers = layout.swapped_layers,
            .overlap = plan.overlap};
  if (shape_.swapped_layers > 0) {
    shape_.layer_buffers = layout.swap_sizes.spare_with(shape_.swapped_layers);
    if (layout.kv.groups() > 1)
      shape_.swappable = spec_.states.groups[static_cast<size_t>(layout.kv.swapped_group())].layers;
  }
  const double staged = static_cast<double>(layout.weight_stages) * double{kStreamReadBytes};
  shape_.segments_read_ahead =
      static_cast<int>(std::min(1e6, staged / std::max(1.0, weights_->largest_on_disk)));
  describe_batches(plan, layout);
  bool link_busy = !weights_->segments.empty() || shape_.swapped_layers > 0;
  bool cpu_busy = weights_->uses_cpu;
  for (const Batch& batch : batch_kinds_) {
    link_busy = link_busy || batch.swapped > 0 || batch.rows != Tier::kDevice;
    cpu_busy = cpu_busy || batch.on_cpu > 0;
  }
  if (link_busy && cpu_busy) {
    link_share_ = hardware.link_beside_cpu;
    cpu_share_ = hardware.cpu_beside_link;
  }
  price_all();
}

void StepPrices::describe_batches(const Plan& plan, const RunLayout& layout) {
  const auto all = static_cast<double>(size_.sequences);
  const auto each = static_cast<double>(size_.tokens_each);
  double most = sequences_of_a_batch(plan, layout, size_);
  if (layout.partitioned && size_.tokens_each > layout.micro_tokens) {
    readers_ = std::ceil(each / static_cast<double>(layout.micro_tokens));
    most = 1 / readers_;
  }
  const int32_t device_blocks = layout.swapped_layers > 0
                                    ? layout.swap_sizes.blocks_with(layout.swapped_layers)
                                    : layout.device_blocks;
  const auto blocks = static_cast<double>(device_blocks + layout.blocks_away());
  const double on_host = static_cast<double>(layout.host_blocks) / blocks;
  const double on_disk = static_cast<double>(layout.disk_blocks) / blocks;
  double cpu_share = plan.attention == AttentionPlace::kCpu ? 1 : 0;
  if (plan.attention == AttentionPlace::kAuto && on_host > 0) {
    cpu_share = plan.cpu_attention.value_or(
        balanced_cpu_share(kv_bytes(all * on_host),
                           weights_->streamed_bytes / static_cast<double>(spec_.layer_count())));
  }
  // The decoder gives whole sequences to the CPU. If sequences are attended to in partitions, the
  // CPU has a share of each.
  if (const double away = all * on_host; away > 0 && !layout.partitioned)
    cpu_share = std::min(1.0, std::floor(away * cpu_share + 1e-6) / away);
  // The device attends to prompts, unless there is no room for their KV to be loaded there.
  if (!size_.generates) {
    const int64_t least = std::min(layout.sequence_blocks, layout.least_staging());
    cpu_share = layout.staging_blocks < least ? 1 : 0;
  }
  cpu_attention_ = cpu_share;
  // The number of rows in each memory is fixed by its capacity and does not depend on the step's
  // size (runtime/residual_store.h).
  const ResidualSizes homes =
      residual_sizes(layout.activations, layout.max_tokens, layout.micro_tokens, spec_.hidden)
          .on(!hardware_.has_device());
  int64_t row = 0;
  for (double left = all; left > 1e-9; left -= most) {
    const double sequences = std::min(most, left);
    Batch batch{.tokens = sequences * each};
    batch.on_cpu = sequences * on_host * cpu_share;
    batch.swapped_from_disk = sequences * on_disk;
    batch.swapped = sequences * on_host * (1 - cpu_share) + batch.swapped_from_disk;
    batch.resident = sequences - batch.on_cpu - batch.swapped;
    resident_ += batch.resident;
    row += std::llround(batch.tokens);
    batch.rows = homes.home_of(row);
    BatchShape shape{.hidden_states_offloaded = batch.rows != Tier::kDevice,
                     .on_device = batch.resident > 1e-9,
                     .on_host = batch.on_cpu > 1e-9,
                     .partitioned = layout.partitioned,
                     .logits = size_.logits};
    if (batch.swapped > 1e-9) {
      const double wanted = readers_ * batch.swapped * static_cast<double>(layout.sequence_blocks);
      const auto room = static_cast<double>(std::max(1, layout.staging_blocks));
      // More groups would move the same bytes in smaller transfers.
      const auto groups = static_cast<size_t>(std::clamp(std::ceil(wanted / room), 1.0, 16.0));
      shape.swaps.assign(groups, false);
      batch.groups = static_cast<double>(groups);
    }
    const auto kind = std::ranges::find(batch_kinds_, batch);
    batches_.push_back(static_cast<size_t>(kind - batch_kinds_.begin()));
    if (kind == batch_kinds_.end()) batch_kinds_.push_back(batch);
    shape_.batches.push_back(std::move(shape));
  }
}

double StepPrices::balanced_cpu_share(double kv_bytes, double weight_bytes) const {
  if (!hardware_.has_device() || kv_bytes <= 0) return 1;
  const double cpu_s =
      attend_bytes(hardware_.host, kv_bytes * traffic_.read) / hardware_.cpu_beside_link;
  using Source = Hardware::Source;
  const double kv_s =
      links_.up_beside_cpu(kv_bytes * (traffic_.moved + traffic_.over_bus), Source::kPageable);
  const double weights_s = links_.up_beside_cpu(weight_bytes, Source::kPinned);
  return std::clamp((weights_s + kv_s) / (kv_s + cpu_s), 0.0, 1.0);
}

double StepPrices::products(const Processor& on, const OpProducts& of, double tokens) const {
  double seconds = 0;
  for (const WeightProduct& product : of)
    seconds += linear_seconds(on, product.type, tokens, product.elements, product.bytes);
  return seconds;
}

// The head multiplies the rows of all batches for which logits are computed.
double StepPrices::tokens_of(const StepWeights::Linear& of, double batch_tokens) const {
  return of.is_head ? static_cast<double>(size_.sequences) : batch_tokens;
}

EventPrice StepPrices::price_of_linear(const StepWeights::Linear& of, double tokens) const {
  EventPrice price;
  if (of.is_head && !size_.logits) return price;
  tokens = tokens_of(of, tokens);
  price[Worker::kDevice] = launches_of(of.finish) * hardware_.device().launch_s +
                           products(hardware_.device(), of.resident, tokens);
  if (of.activations > 0) price[Worker::kDevice] += activate(tokens * of.activations);
  return price;
}

EventPrice StepPrices::price_on_cpu(const StepWeights::Linear& of, double tokens) const {
  EventPrice price;
  if (of.on_cpu.empty() || (of.is_head && !size_.logits)) return price;
  tokens = tokens_of(of, tokens);
  price[Worker::kCpu] = links_.hand_over(tokens, of.columns, of.cpu_rows) +
                        products(hardware_.host, of.on_cpu, tokens) / cpu_share_;
  if (of.cpu_from_disk > 0) price[Worker::kDiskRead] = links_.bulk_disk_read(of.cpu_from_disk);
  return price;
}

EventPrice StepPrices::price_of_load(const StepWeights::Segment& segment) const {
  using Source = Hardware::Source;
  EventPrice price;
  price[Worker::kToDevice] = up(segment.from_host + segment.from_disk,
                                segment.pageable ? Source::kPageable : Source::kPinned);
  price[Worker::kDiskRead] = links_.disk_read(segment.from_disk + segment.cpu_from_disk);
  return price;
}

// Other work between the products takes no noticeable time; on a CPU, activations are a twentieth
// of a small model's prefill.
double StepPrices::activate(double elements) const {
  const double rate = hardware_.device().activations_per_s;
  return rate <= 0 ? 0 : elements / rate;
}

double StepPrices::attend(const Processor& on, double sequences) const {
  if (sequences <= 0) return 0;
  const double pairs = sequences * static_cast<double>(size_.tokens_each) * keys_seen_;
  const auto computed = [&] {
    return prompt_attention_seconds(on, 4 * pairs * static_cast<double>(spec_.q_dim()));
  };
  if (!size_.generates) return computed();
  // The rows of a sequence share the KV that is read, as long as the products take no longer.
  const double read = attend_bytes(on, kv_bytes(sequences) * own_reads_ * traffic_.read);
  return size_.tokens_each == 1 ? read : std::max(read, computed());
}

EventPrice StepPrices::attend_swapped(const Batch& batch) const {
  EventPrice price;
  const double sequences = batch.swapped / batch.groups;
  price[Worker::kDevice] = attend(hardware_.device(), sequences);
  if (traffic_.over_bus <= 0) return price;
  const double at_home =
      kv_bytes(sequences - batch.swapped_from_disk / batch.groups) * own_reads_ * traffic_.over_bus;
  const double there = kv_bytes(sequences) * own_reads_ * traffic_.read - at_home;
  price[Worker::kDevice] = attend_bytes(hardware_.device(), there);
  price[Worker::kToDevice] = up(at_home);
  return price;
}

double StepPrices::bytes_of_layer() const {
  // A sequence's last block is half full on average. Prompts come in whole blocks.
  const double padding = size_.generates ? (kKvBlockTokens - 1) / 2.0 : 0;
  return resident_ * (keys_read_ + padding) * swapped_token_bytes_;
}
double StepPrices::new_bytes_of_layer() const {
  const auto blocks = static_cast<double>(blocks_for_tokens(size_.tokens_each));
  return resident_ * blocks * kKvBlockTokens * swapped_token_bytes_;
}

EventPrice StepPrices::price_of_batch(Priced what, const Batch& batch) const {
  EventPrice price;
  const double launch = hardware_.device().launch_s;
  switch (what) {
    case Priced::kNothing:
      break;
    case Priced::kEmbed:
      price[Worker::kToDevice] = up(batch.tokens * weights_->looked_up_bytes);
      [[fallthrough]];
    case Priced::kGather:
      price[Worker::kDevice] = launch;
      break;
    case Priced::kLoadHiddenStates:
      price[Worker::kToDevice] = up(batch.tokens * row_bytes_);
      if (batch.rows == Tier::kDisk)
        price[Worker::kDiskRead] = links_.disk_read(batch.tokens * row_bytes_);
      break;
    case Priced::kStoreHiddenStates:
      if (batch.rows == Tier::kDevice) break;  // they stay on the device
      price[Worker::kToHost] = down(batch.tokens * row_bytes_);
      if (batch.rows == Tier::kDisk)
        price[Worker::kDiskWrite] = links_.disk_write(batch.tokens * row_bytes_);
      break;
    case Priced::kAttendOnCpu: {
      const double width = static_cast<double>(spec_.q_dim() + 2 * spec_.kv_dim());
      const double rows = batch.on_cpu * static_cast<double>(size_.tokens_each);
      price[Worker::kToHost] = down(rows * width * inner_bytes_);
      price[Worker::kCpu] = attend(hardware_.host, batch.on_cpu) / cpu_share_;
      price[Worker::kToDevice] = up(rows * static_cast<double>(spec_.q_dim()) * inner_bytes_);
      break;
    }
    case Priced::kStartPartitions:
      price[Worker::kDevice] = 2 * launch;
      break;
    case Priced::kJoinPartitions:
      price[Worker::kDevice] = launch;
      break;
    case Priced::kAttend:
      price[Worker::kDevice] = attend(hardware_.device(), batch.resident);
      break;
    case Priced::kLoadKv:
      if (batch.groups == 0) break;
      price[Worker::kToDevice] =
          up(readers_ *
                 kv_bytes((batch.swapped - batch.swapped_from_disk) * traffic_.moved +
                          batch.swapped_from_disk) /
                 batch.groups,
             Hardware::Source::kPageable);
      price[Worker::kDiskRead] =
          links_.disk_read(readers_ * kv_bytes(batch.swapped_from_disk) / batch.groups);
      break;
    case Priced::kAttendSwapped:
      if (batch.groups > 0) return attend_swapped(batch);
      break;
    case Priced::kStoreKv:
      if (batch.groups == 0) break;
      price[Worker::kToHost] = down(new_kv_bytes(batch.swapped) / batch.groups);
      price[Worker::kDiskWrite] =
          links_.disk_write(new_kv_bytes(batch.swapped_from_disk) / batch.groups);
      break;
    case Priced::kTakeOver:
      price[Worker::kToDevice] = up(batch.tokens * row_bytes_);
      break;
    case Priced::kHandOver:
      price[Worker::kToHost] = down(batch.tokens * row_bytes_);
      break;
    case Priced::kLoadLayer:
      price[Worker::kToDevice] = up(bytes_of_layer(), Hardware::Source::kPageable);
      break;
    case Priced::kStoreLayer:
      price[Worker::kToHost] = down(new_bytes_of_layer());
      break;
  }
  return price;
}

void StepPrices::price_all() {
  batch_prices_.reserve(kPriced * batch_kinds_.size());
  for (size_t what = 0; what < kPriced; ++what) {
    for (const Batch& batch : batch_kinds_)
      batch_prices_.push_back(price_of_batch(static_cast<Priced>(what), batch));
  }
  for (const StepWeights::Linear& linear : weights_->linear_kinds) {
    for (const Batch& batch : batch_kinds_) {
      linear_prices_.push_back(price_of_linear(linear, batch.tokens));
      cpu_prices_.push_back(price_on_cpu(linear, batch.tokens));
    }
  }
  const auto multiply = [&](const StepWeights::Segment& segment, double tokens) {
    EventPrice price;
    price[Worker::kDevice] = products(hardware_.device(), segment.products, tokens);
    multiply_prices_.push_back(price);
  };
  for (const StepWeights::Segment& segment : weights_->segment_kinds) {
    load_prices_.push_back(price_of_load(segment));
    for (const Batch& batch : batch_kinds_) multiply(segment, batch.tokens);
    multiply(segment, static_cast<double>(size_.sequences));
  }
}

// Only here do prices distinguish kinds of events; events that are not named here only wait.
StepPrices::Priced StepPrices::find_priced(const StepEvent& event) const {
  const bool is_load = event.kind == EventKind::kLoad, is_store = event.kind == EventKind::kStore;
  switch (event.subject) {
    case EventSubject::kHiddenStates:
      return is_load    ? Priced::kLoadHiddenStates
             : is_store ? Priced::kStoreHiddenStates
                        : Priced::kNothing;
    case EventSubject::kHandOver:
      return is_load ? Priced::kTakeOver : Priced::kHandOver;
    case EventSubject::kKv:
      return is_load ? Priced::kLoadKv : is_store ? Priced::kStoreKv : Priced::kNothing;
    case EventSubject::kLayerKv:
      // Usually everything was loaded in the step before.
      if (event.batch < 0) return Priced::kNothing;
      return is_load ? Priced::kLoadLayer : is_store ? Priced::kStoreLayer : Priced::kNothing;
    case EventSubject::kCpu:
      return event.kind == EventKind::kStart ? Priced::kAttendOnCpu : Priced::kNothing;
    case EventSubject::kPartitions:
      return event.kind == EventKind::kStart ? Priced::kStartPartitions : Priced::kJoinPartitions;
    case EventSubject::kOp:
      if (event.layer == kEmbeddingList) return Priced::kEmbed;
      switch (shape_.model->layer(event.layer).ops[static_cast<size_t>(event.op)].kind) {
        case LoweredKind::kGather:
          return Priced::kGather;
        case LoweredKind::kAttention:
          return event.group < 0 ? Priced::kAttend : Priced::kAttendSwapped;
        default:
          return Priced::kNothing;
      }
    case EventSubject::kWeights:
      break;
  }
  return Priced::kNothing;
}

const EventPrice& StepPrices::of(const StepEvent& event) const {
  const size_t kind = batches_[static_cast<size_t>(std::max(0, event.batch))];
  const auto segment = [&] { return weights_->segments[static_cast<size_t>(event.group)]; };
  if (event.subject == EventSubject::kWeights && event.kind == EventKind::kLoad)
    return load_prices_[static_cast<size_t>(segment())];
  const bool of_op = event.subject == EventSubject::kOp || event.subject == EventSubject::kCpu;
  const int linear = of_op && event.layer >= 0 ? weights_->linear_kind(event.layer, event.op) : -1;
  if (linear < 0 || event.kind == EventKind::kJoin) return batch_price(find_priced(event), kind);
  if (event.kind == EventKind::kStart) return cpu_price(linear, kind);
  if (event.group < 0) return linear_price(linear, kind);
  return multiply_price(segment(), event.batch < 0 ? batch_kinds_.size() : kind);
}

StepEstimate StepPrices::sums() const {
  const auto layers = static_cast<size_t>(spec_.layer_count());
  // A part of a model may have no embedding list or no head list.
  const bool takes_over = shape_.model->embedding.ops.empty();
  const bool hands_over = shape_.model->head.ops.empty();
  const bool logits = size_.logits && !hands_over;
  std::vector<double> count(batch_kinds_.size());  // number of batches by kind
  for (const size_t kind : batches_) count[kind] += 1;
  const auto over_batches = [&](EventPrice& to, auto price_of_kind) {
    for (size_t kind = 0; kind < count.size(); ++kind)
      add_price(to, price_of_kind(kind), count[kind]);
  };
  // First the sum of everything that is the same in every layer.
  EventPrice each, stored, loaded;  // `stored`, `loaded`: hidden states that are not on the device
  for (size_t b = 0; b < batches_.size(); ++b) {
    const size_t kind = batches_[b];
    const BatchShape& shape = shape_.batches[b];
    const auto with = [&](Priced what, double times = 1) {
      add_price(each, batch_price(what, kind), times);
    };
    if (shape.partitioned) with(Priced::kStartPartitions), with(Priced::kJoinPartitions);
    if (shape.on_host) with(Priced::kAttendOnCpu);
    if (shape.on_device) with(Priced::kAttend);
    const double groups = batch_kinds_[kind].groups;
    for (const Priced what : {Priced::kLoadKv, Priced::kAttendSwapped, Priced::kStoreKv}) {
      if (groups > 0) with(what, groups);
    }
    add_price(stored, batch_price(Priced::kStoreHiddenStates, kind));
    if (b > 0 && shape.hidden_states_offloaded)
      add_price(loaded, batch_price(Priced::kLoadHiddenStates, kind));
  }
  // Hidden states of the first batch are loaded while the last batch of the layer before is
  // computed.
  const EventPrice first = shape_.batches.front().hidden_states_offloaded
                               ? batch_price(Priced::kLoadHiddenStates, batches_.front())
                               : EventPrice{};
  // The entry after the layers' sums has what belongs to no layer, and a head that is streamed.
  std::vector<EventPrice> sums(layers + 1);
  std::vector<EventPrice> of_linear(weights_->linear_kinds.size());
  for (size_t i = 0; i < of_linear.size(); ++i) {
    over_batches(of_linear[i],
                 [&](size_t kind) { return linear_price(static_cast<int>(i), kind); });
    over_batches(of_linear[i], [&](size_t kind) { return cpu_price(static_cast<int>(i), kind); });
  }
  // Copies of swapped layers are hidden behind all layers of a step (Pie, 3.1).
  if (shape_.swapped_layers > 0 && std::ranges::any_of(shape_.batches, &BatchShape::on_device)) {
    const double share = static_cast<double>(shape_.swapped_layers) / static_cast<double>(layers);
    for (const Priced what : {Priced::kLoadLayer, Priced::kStoreLayer})
      add_price(each, batch_price(what, 0), share);
  }
  for (size_t layer = 0; layer < layers; ++layer) {
    EventPrice& sum = sums[layer];
    add_price(sum, each);
    add_price(sum, loaded);
    for (auto op = static_cast<size_t>(weights_->first_of[layer]);
         op < static_cast<size_t>(weights_->first_of[layer + 1]); ++op) {
      if (const int linear = weights_->linears[op]; linear >= 0)
        add_price(sum, of_linear[static_cast<size_t>(linear)]);
    }
    if (layer + 1 < layers || logits) {
      add_price(sum, stored);
      add_price(sum, first);
    }
  }
  EventPrice& rest = sums[layers];
  over_batches(rest, [&](size_t kind) { return batch_price(Priced::kEmbed, kind); });
  add_price(rest, stored);
  add_price(rest, first);
  for (const auto& [is_there, what] :
       {std::pair(takes_over, Priced::kTakeOver), std::pair(hands_over, Priced::kHandOver)}) {
    if (is_there) over_batches(rest, [&](size_t kind) { return batch_price(what, kind); });
  }
  if (logits) {
    over_batches(rest, [&](size_t kind) { return batch_price(Priced::kGather, kind); });
    add_price(rest, loaded);
    const int head = weights_->linears.back();
    add_price(rest, linear_price(head, 0));
    add_price(rest, cpu_price(head, 0));
  }
  std::vector<EventPrice> of_segment(weights_->segment_kinds.size());
  for (size_t i = 0; i < of_segment.size(); ++i) {
    of_segment[i] = load_prices_[i];
    over_batches(of_segment[i],
                 [&](size_t kind) { return multiply_price(static_cast<int>(i), kind); });
  }
  size_t at = 0;
  for (const StreamedShape& linear : weights_->streamed) {
    const bool is_head = linear.layer >= spec_.layer_count();
    for (int i = 0; i < linear.segments; ++i, ++at) {
      const int kind = weights_->segments[at];
      if (!is_head) {
        add_price(sums[static_cast<size_t>(linear.layer)], of_segment[static_cast<size_t>(kind)]);
        continue;
      }
      add_price(rest, load_prices_[static_cast<size_t>(kind)]);
      if (logits) add_price(rest, multiply_price(kind, batch_kinds_.size()));
    }
  }
  StepEstimate all;
  for (const EventPrice& sum : sums) {
    all.seconds += *std::max_element(sum.seconds.begin(), sum.seconds.end());
    for (size_t i = 0; i < sum.seconds.size(); ++i) all.busy[i] += sum.seconds[i];
  }
  return all;
}

Worker StepEstimate::bottleneck() const {
  const auto most = std::max_element(busy.begin(), busy.end());
  return static_cast<Worker>(most - busy.begin());
}

StepEstimate simulate_step(const StepPrices& prices) {
  constexpr int kSteps = 3;
  const SimulatedSteps steps = simulate_steps(
      prices.shape(), kSteps, [&](const StepEvent& event) { return prices.of(event); },
      /*keep_events=*/false);
  StepEstimate estimate{.seconds = steps.seconds.back()};
  for (size_t i = 0; i < estimate.busy.size(); ++i) estimate.busy[i] = steps.busy[i] / kSteps;
  return estimate;
}

}  // namespace spillway
