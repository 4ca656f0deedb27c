// SPDX-License-Identifier: Apache-2.0
#include "runtime/host_linear.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "plan/activation_sizes.h"

namespace spillway {
namespace {

WeightView columns_of(const WeightView& bias, int64_t first, int64_t count) {
  if (bias.empty()) return {};
  return {bias.dtype, 1, count, bias.data + row_bytes(bias.dtype, first)};
}

// Returns how many columns the CPU computes. Each part's first columns are the CPU's.
int64_t cpu_columns(const StreamedLinear& streamed) {
  int64_t columns = 0;
  for (const MatrixRows& rows : streamed.on_cpu) columns += rows.count;
  return columns;
}

const MatrixRows* find_rows(const OpRows& rows, size_t matrix) {
  const auto* const found = std::ranges::find(rows, static_cast<int>(matrix), &MatrixRows::matrix);
  return found == rows.end() ? nullptr : &*found;
}

}  // namespace

LinearOp LinearOp::of_tokens(int64_t first, int64_t count_of_tokens) const {
  LinearOp some = *this;
  some.x = x.row_range(first, count_of_tokens);
  for (Part& part : some.parts) part.out = part.out.row_range(first, count_of_tokens);
  return some;
}

void LinearOp::run(Ops& ops, const SomeRows& rows) const {
  SmallVector<Projection, 3> some;
  int64_t any = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [view, first] = rows[i];
    any += view.rows;
    some.push_back({view, columns_of(parts[i].bias, first, view.rows),
                    parts[i].out.columns(first, view.rows)});
  }
  if (any == 0) return;
  switch (kind) {
    case Kind::kLinears:
      if (parts.size() == 1) return ops.linear(some[0].w, some[0].bias, x, some[0].out, mode);
      return ops.linears({some.data(), some.size()}, x);
    case Kind::kActivated:
      return ops.activated_linear(activation, some[0], x);
    case Kind::kGated:
      return ops.gated_linear(activation, some[0], some[1], x);
  }
}

HostLinear::HostLinear(Device& device, Device& host, CpuExecutor& executor, const ModelSpec& spec,
                       const WeightViews& weights,
                       std::span<const StreamingSchedule* const> schedules,
                       std::span<const CpuRows> uses, IoQueue* queue)
    : device_(device),
      host_(host),
      executor_(executor),
      weights_(weights),
      ready_(device.make_signal()) {
  const HostLinearBytes bytes = host_linear_bytes(spec, uses);
  input_ = PinnedBuffer(host, device, bytes.input, MemoryTag::kStaging);
  output_ = PinnedBuffer(host, device, bytes.output, MemoryTag::kStaging);
  ops_reach_them_ = input_.is_pinned() && output_.is_pinned() && device.reads_pinned_memory();
  staging_ = device.allocate(bytes.staging, MemoryTag::kStaging);
  copy_biases(schedules);
  bool on_disk = false;
  for (const StreamingSchedule* schedule : schedules) {
    for (const StreamedLinear& linear : schedule->linears)
      on_disk = on_disk || DiskRows::has(weights, linear);
  }
  if (!on_disk) return;
  SPW_ASSERT(queue != nullptr);
  disk_rows_ = std::make_unique<DiskRows>(host, *queue, weights, schedules);
}

// Biases live on the device; the CPU needs copies.
void HostLinear::copy_biases(std::span<const StreamingSchedule* const> schedules) {
  for (const StreamingSchedule* schedule : schedules) {
    for (const StreamedLinear& linear : schedule->linears) {
      for (const MatrixRows& rows : linear.on_cpu) {
        const WeightView& bias = weights_.list(linear.layer).of(linear.spec_op, rows.matrix).bias;
        std::vector<std::byte>& copy = biases_[{linear.layer, linear.spec_op, rows.matrix}];
        if (bias.empty() || !copy.empty()) continue;
        copy.resize(static_cast<size_t>(bias.bytes()));
        device_.copy_to_host(copy.data(), bias.data, copy.size());
      }
    }
  }
}

// Returns the op as the CPU computes it: on its rows alone, with the parts' results side by side.
LinearOp HostLinear::on_host(const LinearOp& op, const StreamedLinear& streamed) const {
  const int64_t tokens = op.x.rows, columns = cpu_columns(streamed);
  LinearOp host = op;
  host.x = {DType::kF32, tokens, op.x.cols, op.x.cols, input_.data()};
  const Activations all{DType::kF32, tokens, columns, columns, output_.data()};
  int64_t at = 0;
  for (size_t i = 0; i < op.parts.size(); ++i) {
    LinearOp::Part& part = host.parts[i];
    const MatrixRows* const rows = find_rows(streamed.on_cpu, i);
    const int64_t count = rows == nullptr ? 0 : rows->count;
    part.out = all.columns(at, count);
    at += count;
    if (part.bias.empty()) continue;
    const auto bias = biases_.find({streamed.layer, streamed.spec_op, static_cast<int>(i)});
    part.bias.data = bias == biases_.end() ? nullptr : bias->second.data();
  }
  return host;
}

// For a token or a few, ops access host memory directly: a copy would wait for weight copies that
// are already queued on the link. Larger transfers use copies, since ops cross the link at a tenth
// of its speed.
bool HostLinear::goes_straight(const Activations& some) const {
  constexpr int64_t kStraightBytes = 256 << 10;
  return ops_reach_them_ && row_bytes(DType::kF32, some.rows * some.cols) <= kStraightBytes;
}

template <class Fn>
void HostLinear::in_chunks(const Activations& rows, Fn&& chunk) {
  const int64_t each = static_cast<int64_t>(staging_.bytes()) / row_bytes(DType::kF32, rows.cols);
  SPW_ASSERT(each > 0);
  for (int64_t first = 0; first < rows.rows; first += each) {
    const Activations some = rows.row_range(first, std::min(each, rows.rows - first));
    Activations staged = some;
    staged.dtype = DType::kF32;
    staged.stride = some.cols;
    staged.data = staging_.data();
    chunk(first, some, staged);
  }
}

// Copies rows to host memory, where they are contiguous.
void HostLinear::send(const Activations& from, const Activations& to) {
  stats_.to_host_bytes += static_cast<uint64_t>(row_bytes(DType::kF32, to.rows * to.cols));
  if (goes_straight(to)) return device_.ops().copy(from, to);
  in_chunks(from, [&](int64_t first, const Activations& some, const Activations& staged) {
    device_.ops().copy(some, staged);
    const CopyPiece down{to.row_range(first, some.rows).data, staged.data,
                         static_cast<size_t>(row_bytes(DType::kF32, some.rows * some.cols))};
    device_.compute().copy_to_host({&down, 1});
  });
}

// Returns how many tokens fit into the buffers: all of a layer's. Only a head may have more, if
// logits of a whole prompt are wanted.
int64_t HostLinear::tokens_that_fit(const LinearOp& op, const StreamedLinear& streamed) const {
  const auto fit = [](const PinnedBuffer& buffer, int64_t columns) {
    return static_cast<int64_t>(buffer.bytes()) / row_bytes(DType::kF32, columns);
  };
  const int64_t tokens = std::min(fit(input_, op.x.cols), fit(output_, cpu_columns(streamed)));
  SPW_ASSERT(tokens > 0);
  return tokens;
}

void HostLinear::start(const LinearOp& op, const StreamedLinear& streamed, StallClock& stalls) {
  const int64_t fit = tokens_that_fit(op, streamed);
  // Passes have about the same number of tokens. Kernels are chosen by that number, so a last pass
  // of one token would be computed by another kernel, with other bits, than the same token among
  // many.
  const int64_t parts = std::max<int64_t>(1, (op.x.rows + fit - 1) / fit);
  const int64_t tokens = (op.x.rows + parts - 1) / parts;
  int64_t first = 0;
  for (; first + tokens < op.x.rows; first += tokens) {
    begin(op.of_tokens(first, tokens), streamed);
    join(stalls);
  }
  begin(op.of_tokens(first, op.x.rows - first), streamed);
}

void HostLinear::begin(const LinearOp& op, const StreamedLinear& streamed) {
  op_ = op;
  streamed_ = &streamed;
  const LinearOp host = on_host(op, streamed);
  LinearOp::SomeRows rows;
  rows.resize(op.parts.size());
  uint64_t weight_bytes = 0;
  for (size_t i = 0; i < op.parts.size(); ++i) {
    const MatrixRows* const mine = find_rows(streamed.on_cpu, i);
    WeightView view = op.parts[i].whole;
    view.sliced_from = view.rows;
    view.rows = 0;
    if (mine != nullptr) {
      const StreamedWeight& weight =
          weights_.streamed_of(streamed.layer, streamed.spec_op, static_cast<int>(i));
      view.rows = mine->count;
      view.data = weight.host;  // the CPU's are the first rows
      weight_bytes += static_cast<uint64_t>(view.bytes());
    }
    rows[i].view = view;
  }
  send(op.x, host.x);
  if (op.mode == LinearMode::kAccumulate) {
    // The CPU adds to the present values, as the device would, so that a row has the same bits.
    SPW_ASSERT(op.parts.size() == 1);
    send(op.parts[0].out.columns(0, rows[0].view.rows), host.parts[0].out);
  }
  number_ =
      executor_.start(device_.compute(), *ready_, [this, host, rows, weight_bytes, &streamed] {
        LinearOp::SomeRows there = rows;
        if (disk_rows_ != nullptr && disk_rows_->has(streamed)) find_on_disk(streamed, there);
        const auto begin = std::chrono::steady_clock::now();
        host.run(host_.ops(), there);
        const auto end = std::chrono::steady_clock::now();
        stats_.weight_bytes += weight_bytes;
        const double took = std::chrono::duration<double>(end - begin).count();
        stats_.compute_s += took;
        if (host.x.rows <= kFewTokens) {
          stats_.few_bytes += weight_bytes;
          stats_.few_s += took;
        }
        if (timeline_ != nullptr) {
          timeline_->add(TimelineLane::kCpu, streamed.name, streamed.layer, begin, end);
        }
      });
}

// Sets `rows` to the buffers that rows from disk were read into. Runs on the CPU executor, and
// waits for the reads.
void HostLinear::find_on_disk(const StreamedLinear& streamed, LinearOp::SomeRows& rows) {
  const std::vector<const std::byte*>& places = disk_rows_->take(streamed);
  for (size_t i = 0; i < rows.size(); ++i) {
    const MatrixRows* const mine = find_rows(streamed.on_cpu, i);
    if (mine != nullptr)
      rows[i].view.data = places[static_cast<size_t>(mine - streamed.on_cpu.begin())];
  }
}

void HostLinear::join(StallClock& stalls) {
  const int64_t tokens = op_.x.rows, columns = cpu_columns(*streamed_);
  stalls.time(StallCause::kHostLinear, [&] { executor_.wait_for_work(number_); });
  take({DType::kF32, tokens, columns, columns, output_.data()});
}

// Takes over the CPU's results, in which the parts lie side by side.
void HostLinear::take(const Activations& from) {
  if (goes_straight(from)) return take_rows(from, 0);
  in_chunks(from, [&](int64_t first, const Activations& some, const Activations& staged) {
    const CopyPiece up{staged.data, some.data,
                       static_cast<size_t>(row_bytes(DType::kF32, some.rows * some.cols))};
    device_.compute().copy_to_device({&up, 1});
    take_rows(staged, first);
  });
}

// Copies the results of the tokens from `first` on to the parts' outputs.
void HostLinear::take_rows(const Activations& from, int64_t first) {
  int64_t at = 0;
  for (size_t i = 0; i < op_.parts.size(); ++i) {
    const LinearOp::Part& part = op_.parts[i];
    const MatrixRows* const rows = find_rows(streamed_->on_cpu, i);
    if (rows == nullptr) continue;
    const bool is_gate = op_.kind == LinearOp::Kind::kGated && i == 0;
    if (!is_gate) {
      device_.ops().copy(from.columns(at, rows->count),
                         part.out.columns(0, rows->count).row_range(first, from.rows));
      stats_.to_device_bytes += static_cast<uint64_t>(4 * from.rows * rows->count);
    }
    at += rows->count;
  }
}

HostLinear::Stats& HostLinear::Stats::operator+=(const Stats& other) {
  to_host_bytes += other.to_host_bytes;
  to_device_bytes += other.to_device_bytes;
  weight_bytes += other.weight_bytes;
  compute_s += other.compute_s;
  few_bytes += other.few_bytes;
  few_s += other.few_s;
  return *this;
}

}  // namespace spillway
