// SPDX-License-Identifier: Apache-2.0
#include "plan/step_prices.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "plan/activation_sizes.h"

namespace spillway {
namespace {

// Ops of a layer beside products: norm, rope and append; the sum; norm and activation; the sum.
constexpr double kProjectOps = 3, kAttentionOutOps = 1, kUpOps = 2, kDownOps = 1;

CpuLinearShare cpu_share(const std::vector<CpuLinearShare>& shares, double tokens) {
  const size_t number = order_for(shares, static_cast<int64_t>(tokens));
  return number < shares.size() ? shares[number] : CpuLinearShare{};
}

}  // namespace

StepPrices::StepPrices(const Hardware& hardware, const Model& model, const std::vector<Tier>& homes,
                       const Plan& plan, const RunLayout& layout, const StepSize& size)
    : hardware_(hardware), spec_(model.spec), size_(size), kv_type_(layout.kv.type) {
  kv_token_bytes_ =
      2.0 * static_cast<double>(layout.kv.plane_block_bytes()) / double{kKvBlockTokens};
  // A prompt's tokens share what they read.
  keys_read_ = size.tokens_each == 1
                   ? size.keys
                   : std::max(0.0, size.keys - static_cast<double>(size.tokens_each) / 2);
  if (size.tokens_each == 1) traffic_ = kv_traffic(hardware, spec_, kv_type_, plan.attention_topk);
  row_bytes_ = 4.0 * static_cast<double>(spec_.hidden);
  shape_ = {.layers = spec_.layers, .kv_buffers = kKvStagingBuffers, .overlap = plan.overlap};
  const double most_tokens =
      std::min(static_cast<double>(layout.micro_tokens),
               std::min(static_cast<double>(size.sequences), sequences_of_a_batch(plan, layout)) *
                   static_cast<double>(size.tokens_each));
  describe_weights(model, homes,
                   {.slots = layout.slots,
                    .cpu = cpu_share(plan.shared_linear(!hardware.has_device()), most_tokens)});
  describe_batches(plan, layout);
  shape_.weight_slots = std::max(1, layout.weight_slots);
  double largest = 1;
  for (const Piece& piece : pieces_) largest = std::max(largest, piece.from_disk);
  const double staged = static_cast<double>(layout.weight_stages) * double{kStreamReadBytes};
  shape_.pieces_read_ahead = static_cast<int>(std::min(1e6, staged / largest));
  bool link_busy = !pieces_.empty();
  for (const Batch& batch : batches_) {
    link_busy = link_busy || batch.swapped > 0 || batch.rows != Tier::kDevice;
    cpu_busy_ = cpu_busy_ || batch.on_cpu > 0;
  }
  if (link_busy && cpu_busy_) {
    link_share_ = hardware.link_beside_cpu;
    cpu_share_ = hardware.cpu_beside_link;
  }
}

void StepPrices::describe_weights(const Model& model, const std::vector<Tier>& homes,
                                  const StreamCut& cut) {
  linears_.resize(static_cast<size_t>(spec_.layers + 1) * kGroups);
  const BoundWeight& head = head_of(model);
  for (size_t i = 0; i < model.weights.size(); ++i) {
    const BoundWeight& weight = model.weights[i];
    const WeightSlot& slot = weight.slot;
    const bool is_head = &weight == &head;
    if (slot.layer < 0 && homes[i] == Tier::kHost && slot.role != WeightRole::kHead) {
      looked_up_bytes_ += static_cast<double>(weight.bytes()) / static_cast<double>(slot.rows);
    }
    if (slot.is_vector() || (slot.layer < 0 && !is_head)) continue;
    const int layer = is_head ? spec_.layers : slot.layer;
    const WeightRole role = is_head ? WeightRole::kHead : slot.role;
    if (homes[i] != Tier::kDevice) continue;
    linear(layer, group_of(role))
        .resident.push_back({weight.dtype,
                             static_cast<double>(slot.rows) * static_cast<double>(slot.cols),
                             static_cast<double>(weight.bytes())});
  }
  const StreamOrder order = stream_order(model, homes, cut);
  cpu_busy_ = order.uses_cpu();
  shape_.slotfuls = order.slotfuls();
  for (const StreamedLinear& streamed : order.linears) {
    const auto product_of = [&](const MatrixRows& rows) {
      const BoundWeight& weight = model.weights[rows.weight];
      const auto count = static_cast<double>(rows.count);
      return Product{
          weight.dtype, count * static_cast<double>(weight.slot.cols),
          count * static_cast<double>(weight.bytes()) / static_cast<double>(weight.slot.rows)};
    };
    for (const MatrixRows& rows : streamed.on_cpu) {
      Linear& of = linear(streamed.layer, streamed.group);
      of.on_cpu.push_back(product_of(rows));
      of.cpu_rows += static_cast<double>(rows.count);
      of.columns = static_cast<double>(model.weights[rows.weight].slot.cols);
    }
    double cpu_from_disk = 0;
    for (const MatrixRows& rows : streamed.on_cpu) {
      if (homes[rows.weight] == Tier::kDisk) cpu_from_disk += product_of(rows).bytes;
    }
    if (streamed.pieces.empty())
      linear(streamed.layer, streamed.group).cpu_from_disk = cpu_from_disk;
    for (const OpRows& of_piece : streamed.pieces) {
      Piece& piece = pieces_.emplace_back();
      piece.cpu_from_disk = cpu_from_disk / static_cast<double>(streamed.pieces.size());
      for (const MatrixRows& rows : of_piece) {
        const Product product = product_of(rows);
        const bool on_disk = homes[rows.weight] == Tier::kDisk;
        (on_disk ? piece.from_disk : piece.from_host) += product.bytes;
        if (is_quantized(product.type)) piece.source = Hardware::Source::kPageable;
        piece.products.push_back(product);
      }
    }
    shape_.streamed.push_back(streamed_shape(streamed));
  }
}

double StepPrices::sequences_of_a_batch(const Plan& plan, const RunLayout& layout) const {
  const double most = std::max(1.0, std::floor(static_cast<double>(layout.micro_tokens) /
                                               static_cast<double>(size_.tokens_each)));
  if (size_.tokens_each > 1 || plan.micro_batch <= 0) return most;
  return std::min(most, static_cast<double>(plan.micro_batch));
}

void StepPrices::describe_batches(const Plan& plan, const RunLayout& layout) {
  const auto all = static_cast<double>(size_.sequences);
  const auto each = static_cast<double>(size_.tokens_each);
  double most = sequences_of_a_batch(plan, layout);
  if (layout.parts && size_.tokens_each > layout.micro_tokens) {
    readers_ = std::ceil(each / static_cast<double>(layout.micro_tokens));
    most = 1 / readers_;
  }
  const auto blocks = static_cast<double>(layout.device_blocks + layout.blocks_away());
  const double on_host = static_cast<double>(layout.host_blocks) / blocks;
  const double on_disk = static_cast<double>(layout.disk_blocks) / blocks;
  double cpu_share = plan.attention == AttentionPlace::kCpu ? 1 : 0;
  if (plan.attention == AttentionPlace::kAuto && on_host > 0) {
    double streamed = 0;
    for (const Piece& piece : pieces_) streamed += piece.from_host + piece.from_disk;
    cpu_share = plan.cpu_attention.value_or(
        balanced_cpu_share(kv_bytes(all * on_host), streamed / static_cast<double>(spec_.layers)));
  }
  // Whole sequences: as many as the decoder gives to the CPU. Of those that come in parts it has a
  // share.
  if (const double away = all * on_host; away > 0 && !layout.parts)
    cpu_share = std::min(1.0, std::floor(away * cpu_share + 1e-6) / away);
  // Prompts are attended to on the device, unless there is no room for KV to come there.
  if (size_.tokens_each > 1) {
    const int64_t least = std::min(layout.sequence_blocks, layout.least_staging());
    cpu_share = layout.staging_blocks < least ? 1 : 0;
  }
  cpu_attention_ = cpu_share;
  // As many rows of a step, whatever its size, as there is room for (runtime/residual_store.h).
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
    row += std::llround(batch.tokens);
    batch.rows = homes.home_of(row);
    BatchShape shape{.rows_away = batch.rows != Tier::kDevice,
                     .on_device = batch.resident > 1e-9,
                     .on_host = batch.on_cpu > 1e-9,
                     .parts = layout.parts,
                     .logits = size_.logits};
    if (batch.swapped > 1e-9) {
      const double wanted = readers_ * batch.swapped * static_cast<double>(layout.sequence_blocks);
      const auto room = static_cast<double>(std::max(1, layout.staging_blocks));
      // More of them move the same bytes in smaller pieces.
      const auto groups = static_cast<size_t>(std::clamp(std::ceil(wanted / room), 1.0, 16.0));
      shape.swaps.assign(groups, false);
    }
    batches_.push_back(batch);
    shape_.batches.push_back(shape);
  }
}

double StepPrices::balanced_cpu_share(double kv_bytes, double weight_bytes) const {
  if (!hardware_.has_device() || kv_bytes <= 0) return 1;
  const double cpu_s =
      attend_bytes(hardware_.host, kv_bytes * traffic_.read) / hardware_.cpu_beside_link;
  const auto link_s = [&](double bytes, Hardware::Source source) {
    return bytes / (hardware_.link_beside_cpu * hardware_.to_device_rate(bytes, source));
  };
  const double kv_s =
      link_s(kv_bytes * (traffic_.moved + traffic_.over_bus), Hardware::Source::kPageable);
  const double weights_s = link_s(weight_bytes, Hardware::Source::kPinned);
  return std::clamp((weights_s + kv_s) / (kv_s + cpu_s), 0.0, 1.0);
}

double StepPrices::products(const Processor& on, const std::vector<Product>& of,
                            double tokens) const {
  double seconds = 0;
  for (const Product& product : of)
    seconds += linear_seconds(on, product.type, tokens, product.elements, product.bytes);
  return seconds;
}

EventPrice StepPrices::multiply(int piece, double tokens) const {
  const auto& of = pieces_[static_cast<size_t>(piece)];
  if (last_.piece < 0 || last_.tokens != tokens ||
      pieces_[static_cast<size_t>(last_.piece)] != of) {
    last_.price[Worker::kDevice] = products(hardware_.device(), of.products, tokens);
    last_.tokens = tokens;
  }
  last_.piece = piece;
  return last_.price;
}

EventPrice StepPrices::begin_linear(int layer, LinearGroup group, double ops, double tokens) const {
  const Linear& of = linear(layer, group);
  EventPrice price;
  price[Worker::kDevice] =
      ops * hardware_.device().launch_s + products(hardware_.device(), of.resident, tokens);
  if (!of.on_cpu.empty()) {
    price[Worker::kCpu] = hand_over_seconds(hardware_, tokens, of.columns, of.cpu_rows) +
                          products(hardware_.host, of.on_cpu, tokens) / cpu_share_;
    if (of.cpu_from_disk > 0)
      price[Worker::kDiskRead] = of.cpu_from_disk / std::max(1.0, hardware_.disk_read);
  }
  return price;
}

// Nothing else between the products takes time that shows: on a CPU it is a twentieth of a small
// model's prompts. ReLU is a comparison.
double StepPrices::activate(double tokens) const {
  const double rate = hardware_.device().activations_per_s;
  if (rate <= 0 || spec_.activation == ActivationKind::kRelu) return 0;
  return tokens * static_cast<double>(spec_.ffn) / rate;
}

double StepPrices::attend(const Processor& on, double sequences) const {
  if (sequences <= 0) return 0;
  if (size_.tokens_each == 1) return attend_bytes(on, kv_bytes(sequences) * traffic_.read);
  const double pairs = sequences * static_cast<double>(size_.tokens_each) * size_.keys;
  return prompt_attention_seconds(on, 4 * pairs * static_cast<double>(spec_.q_dim()));
}

EventPrice StepPrices::attend_swapped(const Batch& batch, double groups) const {
  EventPrice price;
  const double sequences = batch.swapped / groups;
  price[Worker::kDevice] = attend(hardware_.device(), sequences);
  if (traffic_.over_bus <= 0) return price;
  const double at_home = kv_bytes(sequences - batch.swapped_from_disk / groups) * traffic_.over_bus;
  const double there = kv_bytes(sequences) * traffic_.read - at_home;
  price[Worker::kDevice] = attend_bytes(hardware_.device(), there);
  price[Worker::kToDevice] = up(at_home);
  return price;
}

double StepPrices::up(double bytes, Hardware::Source source) const {
  if (bytes <= 0 || !hardware_.has_device()) return 0;
  return hardware_.transfer_s + bytes / (hardware_.to_device_rate(bytes, source) * link_share_);
}
double StepPrices::down(double bytes) const {
  if (bytes <= 0 || !hardware_.has_device()) return 0;
  return hardware_.transfer_s + bytes / (hardware_.to_host.at(bytes) * link_share_);
}

EventPrice StepPrices::of(const StepEvent& event) const {
  EventPrice price;
  const double launch = hardware_.device().launch_s;
  const auto disk = [&](double bytes, double rate) {
    return bytes <= 0 ? 0 : hardware_.disk_access_s + bytes / std::max(rate, 1.0);
  };
  const Batch& batch = batches_[static_cast<size_t>(std::max(0, event.batch))];
  const auto groups = [&] {
    return static_cast<double>(shape_.batches[static_cast<size_t>(event.batch)].swaps.size());
  };
  switch (event.action) {
    case StepAction::kLoadWeights: {
      const Piece& piece = pieces_[static_cast<size_t>(event.group)];
      price[Worker::kToDevice] = up(piece.from_host + piece.from_disk, piece.source);
      price[Worker::kDiskRead] = disk(piece.from_disk + piece.cpu_from_disk, hardware_.disk_read);
      break;
    }
    case StepAction::kMultiply:
      return multiply(event.group,
                      event.batch < 0 ? static_cast<double>(size_.sequences) : batch.tokens);
    case StepAction::kEmbed:
      price[Worker::kToDevice] = up(batch.tokens * looked_up_bytes_);
      [[fallthrough]];
    case StepAction::kGather:
      price[Worker::kDevice] = launch;
      break;
    case StepAction::kLoadRows:
      price[Worker::kToDevice] = up(batch.tokens * row_bytes_);
      if (batch.rows == Tier::kDisk)
        price[Worker::kDiskRead] = disk(batch.tokens * row_bytes_, hardware_.disk_read);
      break;
    case StepAction::kStoreRows:
      if (batch.rows == Tier::kDevice) break;  // they are where they live
      price[Worker::kToHost] = down(batch.tokens * row_bytes_);
      if (batch.rows == Tier::kDisk)
        price[Worker::kDiskWrite] = disk(batch.tokens * row_bytes_, hardware_.disk_write);
      break;
    case StepAction::kProject:
      return begin_linear(event.layer, LinearGroup::kProject, kProjectOps, batch.tokens);
    case StepAction::kAttentionOut:
      return begin_linear(event.layer, LinearGroup::kAttentionOut, kAttentionOutOps, batch.tokens);
    case StepAction::kUp:
      price = begin_linear(event.layer, LinearGroup::kUp, kUpOps, batch.tokens);
      price[Worker::kDevice] += activate(batch.tokens);
      break;
    case StepAction::kDown:
      return begin_linear(event.layer, LinearGroup::kDown, kDownOps, batch.tokens);
    case StepAction::kHead:
      if (!size_.logits) break;
      return begin_linear(event.layer, LinearGroup::kHead, 1, static_cast<double>(size_.sequences));
    case StepAction::kStartOnHost: {
      const double width = static_cast<double>(spec_.q_dim() + 2 * spec_.kv_dim());
      const double rows = batch.on_cpu * static_cast<double>(size_.tokens_each);
      price[Worker::kToHost] = down(rows * width * inner_bytes_);
      price[Worker::kCpu] = attend(hardware_.host, batch.on_cpu) / cpu_share_;
      price[Worker::kToDevice] = up(rows * static_cast<double>(spec_.q_dim()) * inner_bytes_);
      break;
    }
    case StepAction::kBeginParts:
      price[Worker::kDevice] = 2 * launch;
      break;
    case StepAction::kEndParts:
      price[Worker::kDevice] = launch;
      break;
    case StepAction::kAttend:
      price[Worker::kDevice] = attend(hardware_.device(), batch.resident);
      break;
    case StepAction::kLoadKv:
      price[Worker::kToDevice] =
          up(readers_ *
                 kv_bytes((batch.swapped - batch.swapped_from_disk) * traffic_.moved +
                          batch.swapped_from_disk) /
                 groups(),
             Hardware::Source::kPageable);
      price[Worker::kDiskRead] =
          disk(readers_ * kv_bytes(batch.swapped_from_disk) / groups(), hardware_.disk_read);
      break;
    case StepAction::kAttendSwapped:
      price = attend_swapped(batch, groups());
      break;
    case StepAction::kStoreKv:
      price[Worker::kToHost] = down(new_kv_bytes(batch.swapped) / groups());
      price[Worker::kDiskWrite] =
          disk(new_kv_bytes(batch.swapped_from_disk) / groups(), hardware_.disk_write);
      break;
    case StepAction::kFinishLayer:
    case StepAction::kJoinLinear:
    case StepAction::kUseWeights:
    case StepAction::kLeaveWeights:
    case StepAction::kTakeRows:
    case StepAction::kDropRows:
    case StepAction::kJoinHost:
      break;
  }
  return price;
}

Worker StepEstimate::bottleneck() const {
  const auto most = std::max_element(busy.begin(), busy.end());
  return static_cast<Worker>(most - busy.begin());
}

StepEstimate estimate_step(const StepPrices& prices) {
  StepEstimate all;
  const auto layers = static_cast<size_t>(prices.shape().layers);
  // Behind the layers' sums: what belongs to none, and a head that streams.
  std::vector<EventPrice> sums(layers + 1);
  size_t at = layers;
  for (const StepEvent& event : schedule_step(prices.shape())) {
    const EventPrice price = prices.of(event);
    // Rows come while a layer computes.
    if (event.action != StepAction::kLoadRows)
      at = event.layer < 0 ? layers : std::min(layers, static_cast<size_t>(event.layer));
    EventPrice& sum = sums[at];
    for (size_t i = 0; i < price.seconds.size(); ++i) sum.seconds[i] += price.seconds[i];
  }
  for (const EventPrice& sum : sums) {
    all.seconds += *std::max_element(sum.seconds.begin(), sum.seconds.end());
    for (size_t i = 0; i < sum.seconds.size(); ++i) all.busy[i] += sum.seconds[i];
  }
  return all;
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
