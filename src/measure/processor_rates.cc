// SPDX-License-Identifier: Apache-2.0
#include "measure/processor_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "tensor/kv_shape.h"
#include "tensor/packed_layout.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr int64_t kHeadDim = 128;
constexpr int kKvHeads = 8;
constexpr int64_t kContext = 512;
constexpr size_t kFillBytes = size_t{16} << 20;
constexpr int kGroups[] = {1, 4, 8};   // query heads per KV head
constexpr double kPointSeconds = 0.1;  // for one number of tokens
constexpr double kWarmSeconds = 0.3;
constexpr int kQueuedOps = 64;
constexpr uint64_t kOwnGraphKey = ~uint64_t{0};

// The types most common in models come first; others are measured while there is time. Types
// without a curve are priced by memory and arithmetic.
constexpr DType kTypes[] = {DType::kF16,  DType::kQ4_0, DType::kQ4_K, DType::kQ8_0, DType::kQ6_K,
                            DType::kBF16, DType::kG4,   DType::kQ4_1, DType::kQ5_K, DType::kQ5_0,
                            DType::kQ5_1, DType::kQ3_K, DType::kQ2_K, DType::kF32};
constexpr size_t kMainTypes = 7;
// The first two numbers say the most about a curve; each further one fills its largest gap.
constexpr int64_t kTokens[] = {1, 64, 8, 1024, 256, 16, 4, 32, 2};
constexpr size_t kMainTokens = 2;
constexpr int64_t kMostTokens = 1024;

// Returns Llama's inner width for a side, rounded to whole blocks of any type.
int64_t wide_of(int64_t side) { return (side * 11 / 4 + 255) / 256 * 256; }

// Returns random values of a type in the device's memory. For timing memory zeros would do, but a
// GPU's clock is higher while it multiplies zeros.
Activations random_rows(Device& device, Buffer& buffer, DType type, int64_t rows, int64_t cols) {
  std::vector<std::byte> values(static_cast<size_t>(row_bytes(type, rows * cols)));
  fill_random(type, values.data(), rows * cols, 1, 0.5F);
  buffer = device.allocate(values.size(), MemoryTag::kActivations);
  device.copy_to_device(buffer.data(), values.data(), values.size());
  return {type, rows, cols, cols, buffer.data()};
}

// Multiplies the shapes of a layer's products one after the other: kernels are faster with some
// than with others, by a seventh between square ones and those of an MLP. Uses copies of them in
// rotation.
class ProductLoad {
 public:
  ProductLoad(Device& device, DType type, int64_t side, uint64_t rotate_bytes, int64_t most_tokens)
      : device_(device) {
    const int64_t wide = wide_of(side);
    const std::pair<int64_t, int64_t> shapes[kShapes] = {{side, side}, {wide, side}, {side, wide}};
    std::vector<std::byte> values(static_cast<size_t>(row_bytes(type, side) * (side + 2 * wide)));
    const WeightLayout layout = device.preferred_layout(type, side, side);
    const RandomPattern random(type, 1, 0.02F);
    std::vector<WeightView> views;
    std::byte* at = values.data();
    for (const auto& [rows, cols] : shapes) {
      random.fill(at, rows * cols);
      if (layout == WeightLayout::kGroups16) pack_groups(type, at, at, rows / kGroupRows, cols);
      views.push_back({type, rows, cols, at, layout});
      at += views.back().bytes();
      elements_ += static_cast<double>(rows * cols);
    }
    bytes_ = static_cast<double>(values.size());
    const uint64_t copies = std::max<uint64_t>(2, rotate_bytes / values.size() + 1);
    matrices_ = device.allocate(copies * values.size(), MemoryTag::kWeights);
    for (uint64_t i = 0; i < copies; ++i) {
      std::byte* const to = matrices_.data() + i * values.size();
      device.copy_to_device(to, values.data(), values.size());
      for (WeightView view : views) {
        view.data = to + (view.data - values.data());
        views_.push_back(view);
      }
    }
    const DType inner = device.activation_type(type);
    x_ = random_rows(device, x_buffer_, inner, most_tokens, wide);
    out_ = random_rows(device, out_buffer_, inner, most_tokens, wide);
  }

  static constexpr int kShapes = 3;
  // Multiplies each of the shapes once.
  void run(int64_t tokens) {
    for (int i = 0; i < kShapes; ++i) {
      const WeightView& w = views_[next_++ % views_.size()];
      // Rows are contiguous, as in a step.
      device_.ops().linear(w, {}, {x_.dtype, tokens, w.cols, w.cols, x_.data},
                           {out_.dtype, tokens, w.rows, w.rows, out_.data}, LinearMode::kStore);
    }
  }
  double bytes() const { return bytes_; }
  double elements_each() const { return elements_ / kShapes; }
  double flop(int64_t tokens) const { return 2.0 * static_cast<double>(tokens) * elements_; }

 private:
  Device& device_;
  Buffer matrices_, x_buffer_, out_buffer_;
  std::vector<WeightView> views_;
  size_t next_ = 0;
  double elements_ = 0, bytes_ = 0;
  Activations x_, out_;
};

// Returns `seconds` without the fixed time of every op, which is priced separately.
double without_launch(double seconds, double launch_s) {
  return std::max(seconds - launch_s, seconds / 2);
}

class ProcessorMeasure {
 public:
  ProcessorMeasure(Device& device, const ProcessorSizes& sizes, MeasurePace& pace)
      : device_(device), sizes_(sizes), pace_(pace) {
    const DeviceInfo& info = device.info();
    result_.memory_bytes = static_cast<uint64_t>(info.memory_bytes);
    // A decoder does this before its first step too: a GPU loads its library then, which multiplies
    // prompts.
    const int64_t widest = wide_of(sizes.matrix_side);
    device.ops().prepare({kMostTokens, widest, widest * sizes.matrix_side});
  }

  void measure_launch() {
    constexpr int64_t kSide = 64;
    Buffer matrix, x_buffer, out_buffer;
    const DType inner = device_.activation_type(DType::kF16);
    const Activations w = random_rows(device_, matrix, DType::kF16, kSide, kSide);
    const Activations x = random_rows(device_, x_buffer, inner, 1, kSide);
    const Activations out = random_rows(device_, out_buffer, inner, 1, kSide);
    const WeightView view{DType::kF16, kSide, kSide, w.data};
    // Many ops are in one step that is repeated, as in decoding: a GPU replays it, and begins the
    // next op while one ends.
    const std::vector<int32_t> zero = {0};
    const SequenceSpan span{0, 1, 0, zero};
    const StepBatch step{.ids = zero,
                         .positions = zero,
                         .table_rows = zero,
                         .logit_rows = {},
                         .spans = {&span, 1},
                         .graph_key = kOwnGraphKey};
    const double seconds = time_op(device_, pace_, kPointSeconds, [&] {
      device_.ops().run_step(step, [&] {
        for (int i = 0; i < kQueuedOps; ++i)
          device_.ops().linear(view, {}, x, out, LinearMode::kStore);
      });
    });
    result_.launch_s = seconds / kQueuedOps;
  }

  void measure_products() {
    if (!device_.host_visible()) measure_small_products();
    const size_t count = std::size(kTypes);
    for (size_t i = 0; i < count && (i < kMainTypes || pace_.left() > 0); ++i)
      measure_type(kTypes[i], pace_.left() / static_cast<double>(count - i));
  }

  void measure_attention() {
    size_t left = std::size(kAllKvTypes) * std::size(kGroups);
    for (const KvType type : kAllKvTypes) {
      AttentionLoad load(device_, type, sizes_.kv_bytes, kGroups[std::size(kGroups) - 1]);
      std::vector<std::pair<double, double>> rates;
      for (const int group : kGroups) {
        const double seconds = time_op(device_, pace_, pace_.left() / static_cast<double>(left--),
                                       [&] { load.run(group); });
        rates.emplace_back(group, load.bytes() / without_launch(seconds, result_.launch_s));
        saw_read(rates.back().second);
      }
      result_.attention[type] = RateCurve(std::move(rates));
    }
  }

  void measure_prompts() {
    const int64_t rows = sizes_.prompt_tokens, width = kKvHeads * kHeadDim;
    const KvGroupShape shape{1, kKvHeads, int{kHeadDim}, KvType::kF16};
    Buffer planes, q_buffer, out_buffer;
    const auto blocks = blocks_for_tokens(rows);
    const DType inner = device_.activation_type(DType::kF16);
    const Activations pages =
        random_rows(device_, planes, DType::kF16, 1, blocks * shape.block_bytes() / 2);
    const Activations q = random_rows(device_, q_buffer, inner, rows, width);
    const Activations out = random_rows(device_, out_buffer, inner, rows, width);
    KvLayerView kv{
        .type = shape.type, .blocks = blocks, .kv_heads = kKvHeads, .head_dim = int{kHeadDim}};
    kv.k = pages.data;
    kv.v = kv.k + blocks * kv.block_bytes();
    std::vector<int32_t> table(static_cast<size_t>(blocks));
    std::iota(table.begin(), table.end(), 0);
    const SequenceSpan span{0, static_cast<int32_t>(rows), 0, table};
    const AttentionParams params{.heads = kKvHeads, .scale = 0.1F};
    const double seconds = time_op(device_, pace_, pace_.left(), [&] {
      device_.ops().attention(q, kv, {&span, 1}, params, out);
    });
    const double pairs = static_cast<double>(rows) * static_cast<double>(rows + 1) / 2;
    result_.prompt_attention_flop_per_s =
        4 * pairs * static_cast<double>(width) / without_launch(seconds, result_.launch_s);
  }

  void measure_activations() {
    const int64_t rows = 128, width = sizes_.matrix_side;
    Buffer gate_buffer, up_buffer;
    const DType inner = device_.activation_type(DType::kF16);
    const Activations gate = random_rows(device_, gate_buffer, inner, rows, width);
    const Activations up = random_rows(device_, up_buffer, inner, rows, width);
    const double seconds = time_op(device_, pace_, kPointSeconds, [&] {
      device_.ops().gated_activate(ActivationKind::kSilu, gate, up, gate);
    });
    result_.activations_per_s =
        static_cast<double>(rows * width) / without_launch(seconds, result_.launch_s);
  }

  const Processor& result() const { return result_; }

 private:
  void saw_read(double bytes_per_s) {
    result_.read_bytes_per_s = std::max(result_.read_bytes_per_s, bytes_per_s);
  }

  // Measures what share of a GPU's speed small matrices, such as those of a 1B model, reach.
  void measure_small_products() {
    constexpr int64_t kSide = 2048;
    if (sizes_.matrix_side <= kSide) return;
    ProductLoad small(device_, DType::kF16, kSide, sizes_.rotate_bytes, kMostTokens);
    ProductLoad large(device_, DType::kF16, sizes_.matrix_side, sizes_.rotate_bytes, kMostTokens);
    std::vector<std::pair<double, double>> shares;
    const double launches = ProductLoad::kShapes * result_.launch_s;
    for (const int64_t tokens : {1, 8, 64, 256, 1024}) {
      const auto rate = [&](ProductLoad& load) {
        const double seconds = time_op(device_, pace_, kPointSeconds, [&] { load.run(tokens); });
        return load.flop(tokens) / without_launch(seconds, launches);
      };
      shares.emplace_back(tokens, std::min(1.0, rate(small) / rate(large)));
    }
    result_.small_share = RateCurve(std::move(shares));
    result_.small_elements = small.elements_each();
    result_.large_elements = large.elements_each();
  }

  void measure_type(DType type, double budget_s) {
    const double until = pace_.left() - budget_s;
    ProductLoad load(device_, type, sizes_.matrix_side, sizes_.rotate_bytes, kMostTokens);
    std::map<int64_t, double> seconds;
    for (size_t i = 0; i < std::size(kTokens); ++i) {
      const int64_t tokens = kTokens[i];
      const double left = pace_.left() - until;
      if (i >= kMainTokens) {
        // Skips numbers that would take too long, as estimated from fewer tokens.
        const auto fewer = std::prev(seconds.lower_bound(tokens));
        const double expected =
            fewer->second * static_cast<double>(tokens) / static_cast<double>(fewer->first);
        if (2 * expected > left) continue;
      }
      const auto run = [&] { load.run(tokens); };
      // A GPU that multiplies for long gets warm and slower than one that has just begun.
      if (!device_.host_visible() && tokens == kMostTokens)
        repeat_for(device_, pace_, kWarmSeconds, run);
      seconds[tokens] = time_op(device_, pace_, std::min(kPointSeconds, left / 3), run);
    }
    std::vector<std::pair<double, double>> points;
    const double launches = ProductLoad::kShapes * result_.launch_s;
    for (const auto& [tokens, took] : seconds)
      points.emplace_back(tokens, load.flop(tokens) / without_launch(took, launches));
    saw_read(load.bytes() / without_launch(seconds.at(1), launches));
    const RateCurve curve(std::move(points));
    if (type == DType::kF16 || type == DType::kBF16)
      result_.flop_per_s = std::max(result_.flop_per_s, curve.best());
    result_.linear[type] = curve;
  }

  Device& device_;
  const ProcessorSizes& sizes_;
  MeasurePace& pace_;
  Processor result_;
};

}  // namespace

ProcessorSizes sizes_for(const Device& device) {
  // A product of one token should take many times as long as starting an op; servers have caches of
  // hundreds of MiB.
  const bool host = device.host_visible(), small = host && device.info().threads <= 4;
  const auto part = static_cast<uint64_t>(device.info().memory_bytes) / 8;
  return {.matrix_side = small  ? 2048
                         : host ? 4096
                                : 8192,
          .rotate_bytes = std::min((small  ? 128
                                    : host ? 1024
                                           : 384) *
                                       kMiB,
                                   part),
          .kv_bytes = std::min((small ? 256 : 2048) * kMiB, part),
          .prompt_tokens = host ? 512 : 2048};
}

AttentionLoad::AttentionLoad(Device& device, KvType type, uint64_t f16_bytes, int most_queries)
    : device_(device) {
  kv_ = {.type = type, .kv_heads = kKvHeads, .head_dim = int{kHeadDim}};
  const uint64_t each = 2 * 2 * kKvHeads * kHeadDim * uint64_t{kContext};
  const auto sequences = static_cast<int64_t>(std::max<uint64_t>(1, f16_bytes / each));
  const int64_t blocks_each = blocks_for_tokens(kContext);
  kv_.blocks = sequences * blocks_each;
  const auto plane = static_cast<size_t>(kv_.blocks * kv_.block_bytes());
  bytes_ = 2.0 * static_cast<double>(plane);
  planes_ = device.allocate(2 * plane, MemoryTag::kKv);
  // The byte 0x2c gives small numbers in every KV type, as elements and as scales.
  const std::vector<std::byte> values(std::min(2 * plane, kFillBytes), std::byte{0x2c});
  for (size_t at = 0; at < 2 * plane; at += values.size())
    device.copy_to_device(planes_.data() + at, values.data(),
                          std::min(values.size(), 2 * plane - at));
  kv_.k = planes_.data();
  kv_.v = planes_.data() + plane;
  blocks_.resize(static_cast<size_t>(kv_.blocks));
  std::iota(blocks_.begin(), blocks_.end(), 0);
  for (int64_t i = 0; i < sequences; ++i) {
    spans_.push_back({static_cast<int32_t>(i), 1, static_cast<int32_t>(kContext - 1),
                      std::span(blocks_).subspan(static_cast<size_t>(i * blocks_each),
                                                 static_cast<size_t>(blocks_each))});
  }
  const DType inner = device.activation_type(type == KvType::kF32 ? DType::kF32 : DType::kF16);
  const Activations rows =
      random_rows(device, rows_, inner, 2 * sequences, most_queries * kKvHeads * kHeadDim);
  q_ = rows.row_range(0, sequences);
  out_ = rows.row_range(sequences, sequences);
}

void AttentionLoad::run(int queries) {
  const AttentionParams params{.heads = queries * kKvHeads, .scale = 0.1F};
  const int64_t width = params.heads * kHeadDim;
  if (device_.host_visible()) {
    // A host appends keys and values in a separate op; on a GPU that is part of the projections.
    const Activations rows = q_.columns(0, kKvHeads * kHeadDim);
    device_.ops().kv_append(rows, rows, kv_, spans_);
  }
  device_.ops().attention(q_.columns(0, width), kv_, spans_, params, out_.columns(0, width));
}

Processor measure_processor(Device& device, const ProcessorSizes& sizes, MeasurePace& pace,
                            double share) {
  ProcessorMeasure measure(device, sizes, pace);
  const std::string name = device.info().hardware;
  pace.begin(name + ": small ops", 0.02 * share);
  measure.measure_launch();
  measure.measure_activations();
  pace.begin(name + ": products", 0.7 * share);
  measure.measure_products();
  pace.begin(name + ": attention", 0.2 * share);
  measure.measure_attention();
  pace.begin(name + ": prompts", 0.08 * share);
  measure.measure_prompts();
  return measure.result();
}

}  // namespace spillway
