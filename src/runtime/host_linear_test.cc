// SPDX-License-Identifier: Apache-2.0
// Tests that the CPU's rows and the device's rows of a linear op together are the whole product,
// bit for bit, however the rows are split.
#include "runtime/host_linear.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "plan/weight_homes.h"
#include "runtime/weight_mover.h"
#include "storage/test_folder.h"
#include "tests/generation/tiny_models.h"
#include "tests/test_machine.h"

namespace spillway {
namespace {

constexpr int kRoom = 24;  // most tokens that fit into the buffers

// A device with the model's weights, and the buffers of what it computes.
struct Side {
  Side(Device& on, const Model& model, const WeightPlacement& placement)
      : device(on), weights(load_weights(on, model, {}, {}, placement)) {}

  Activations floats(int64_t rows, int64_t cols, const std::vector<float>& values) {
    const auto bytes = static_cast<size_t>(rows * cols) * sizeof(float);
    buffers.push_back(device.allocate(bytes, MemoryTag::kActivations));
    device.copy_to_device(buffers.back().data(), reinterpret_cast<const std::byte*>(values.data()),
                          bytes);
    return {DType::kF32, rows, cols, cols, buffers.back().data()};
  }
  std::vector<float> read(const Activations& x) {
    std::vector<float> values(static_cast<size_t>(x.rows * x.cols));
    for (int64_t row = 0; row < x.rows; ++row) {
      device.copy_to_host(reinterpret_cast<std::byte*>(values.data() + row * x.cols),
                          x.row_range(row, 1).data, static_cast<size_t>(x.cols) * sizeof(float));
    }
    return values;
  }

  Device& device;
  ModelWeights weights;
  std::vector<Buffer> buffers;
};

struct Shared {
  const char* kind;
  DType type;
  Tier home;
  uint64_t pinnable_bytes = ~uint64_t{0};
};
constexpr Shared kShared[] = {
    {"llama", DType::kF16, Tier::kHost},   // gates
    {"opt", DType::kF32, Tier::kHost},     // biases, ReLU
    {"qwen2", DType::kQ8_0, Tier::kHost},  // biases of q, k and v; groups of rows
    {"llama", DType::kF16, Tier::kHost, 0}, {"opt", DType::kF16, Tier::kDisk},
};

class HostLinearTest : public testing::TestWithParam<Shared> {
 protected:
  HostLinearTest()
      : machine_(/*has_accelerator=*/true, GetParam().pinnable_bytes),
        model_(testing_models::tiny_model(GetParam().kind, GetParam().type)),
        plan_{.shares = {0, GetParam().home == Tier::kHost ? 1.0 : 0.0,
                         GetParam().home == Tier::kDisk ? 1.0 : 0.0}},
        whole_(machine_.host, model_, {}),
        split_(machine_.device(), model_,
               {.homes = weight_homes(/*host_visible=*/false, model_, plan_),
                .host = &machine_.host,
                .queue = &machine_.queue,
                .disk_dir = folder_.path()}),
        stalls_(machine_.device()),
        executor_(machine_.device()) {
    const std::vector<Tier> homes = weight_homes(/*host_visible=*/false, model_, plan_);
    schedule_ = streaming_schedule(model_, homes, {.cpu = {kAnyTokens, kShare}});
    const StreamingSchedule* const schedules[] = {&schedule_};
    CpuRows uses{.tokens = kRoom};
    for (const StreamedLinear& linear : schedule_.linears) {
      int64_t rows = 0;
      for (const MatrixRows& some : linear.on_cpu) rows += some.count;
      uses.rows = std::max(uses.rows, rows);
    }
    linear_ = std::make_unique<HostLinear>(machine_.device(), machine_.host, executor_, model_.spec,
                                           split_.weights, schedules, std::span(&uses, 1),
                                           &machine_.queue);
  }

  static std::vector<float> random(int64_t count) {
    static std::mt19937 generator(11);
    std::uniform_real_distribution<float> values(-1, 1);
    std::vector<float> all(static_cast<size_t>(count));
    for (float& value : all) value = values(generator);
    return all;
  }
  // Returns the op as a decoder prepares it.
  LinearOp op_of(Side& side, const StreamedLinear& linear, const Activations& x,
                 const Activations& out) {
    const LoweredLayer& list = model_.spec.lowered->layer(linear.layer);
    const LoweredOp& lowered = list.ops[static_cast<size_t>(linear.op)];
    LinearOp op;
    op.x = x;
    if (lowered.finish == LinearFinish::kAdd) op.mode = LinearMode::kAccumulate;
    if (lowered.activation >= 0) {
      op.kind = lowered.finish == LinearFinish::kGate ? LinearOp::Kind::kGated
                                                      : LinearOp::Kind::kActivated;
      op.activation = list.spec->ops[static_cast<size_t>(lowered.activation)].activation.kind;
    }
    const OpSpec& of = list.of(linear.op);
    int64_t first = 0;
    for (size_t i = 0; i < of.matrices.size(); ++i) {
      const auto matrix = static_cast<int>(i);
      const MatrixWeights& w = side.weights.list(linear.layer).of(lowered.op, matrix);
      const WeightView whole = w.weight.empty()
                                   ? side.weights.streamed_of(linear.layer, lowered.op, matrix).view
                                   : w.weight;
      op.parts.push_back({whole, w.bias, out.columns(first, whole.rows)});
      first += whole.rows;
    }
    return op;
  }
  // Returns the device's rows of the op, as they are streamed to it.
  LinearOp::SomeRows rows_that_came(const LinearOp& op, const StreamedLinear& linear) {
    LinearOp::SomeRows some;
    for (size_t i = 0; i < op.parts.size(); ++i) {
      LinearOp::Rows rows{.view = op.parts[i].whole};
      rows.view.sliced_from = std::exchange(rows.view.rows, 0);
      for (const OpRows& segment : linear.segments) {
        for (const MatrixRows& of : segment) {
          if (of.matrix != static_cast<int>(i)) continue;
          rows = {op.parts[i].whole.slice(of.first, of.count), of.first};
          const std::vector<std::byte> bytes = bytes_of(linear, of, rows.view);
          split_.buffers.push_back(split_.device.allocate(bytes.size(), MemoryTag::kStaging));
          rows.view.data = split_.buffers.back().data();
          split_.device.copy_to_device(split_.buffers.back().data(), bytes.data(), bytes.size());
        }
      }
      some.push_back(rows);
    }
    return some;
  }
  std::vector<std::byte> bytes_of(const StreamedLinear& linear, const MatrixRows& rows,
                                  const WeightView& view) {
    const StreamedWeight& weight =
        split_.weights.streamed_of(linear.layer, linear.spec_op, rows.matrix);
    const auto skipped = static_cast<size_t>(rows.first * view.row_bytes());
    std::vector<std::byte> bytes(static_cast<size_t>(view.bytes()));
    if (weight.host != nullptr) {
      std::memcpy(bytes.data(), weight.host + skipped, bytes.size());
    } else {
      std::ifstream file(split_.weights.files.at(static_cast<size_t>(weight.extent.file)));
      file.seekg(static_cast<std::streamoff>(weight.extent.offset + skipped));
      file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
    return bytes;
  }

  void expect_whole_product(const StreamedLinear& linear, int64_t tokens) {
    SCOPED_TRACE(fmt::format("{} of layer {}, {} tokens", linear.name, linear.layer, tokens));
    const OpSpec& of = model_.spec.lowered->layer(linear.layer).of(linear.op);
    int64_t columns = 0;
    for (const MatrixSpec& matrix : of.matrices) columns += matrix.rows;
    const std::vector<float> x = random(tokens * of.matrices.front().cols),
                             before = random(tokens * columns);
    const auto activations = [&](Side& side, const std::vector<float>& values) {
      return side.floats(tokens, static_cast<int64_t>(values.size()) / tokens, values);
    };
    const Activations expected = activations(whole_, before), found = activations(split_, before);
    const LinearOp reference = op_of(whole_, linear, activations(whole_, x), expected);
    LinearOp::SomeRows all;
    for (const LinearOp::Part& part : reference.parts) all.push_back({part.whole, 0});
    reference.run(machine_.host.ops(), all);

    const LinearOp op = op_of(split_, linear, activations(split_, x), found);
    linear_->start(op, linear, stalls_);
    op.run(machine_.device().ops(), rows_that_came(op, linear));
    linear_->join(stalls_);
    executor_.synchronize();
    // The columns of a gate are scratch, so they are not compared.
    const bool gated = op.kind == LinearOp::Kind::kGated;
    const int64_t first = gated ? op.parts[0].out.cols : 0;
    EXPECT_EQ(split_.read(found.columns(first, columns - first)),
              whole_.read(expected.columns(first, columns - first)));
    split_.buffers.clear();
    whole_.buffers.clear();
  }

  static constexpr double kShare = 0.4;
  TempFolder folder_;
  TestMachine machine_;
  Model model_;
  WeightPlan plan_;
  Side whole_, split_;
  StallClock stalls_;
  StreamingSchedule schedule_;
  CpuExecutor executor_;
  std::unique_ptr<HostLinear> linear_;
};

// A head may have more tokens than fit into the buffers, and is then computed in several passes.
// Kernels are chosen by the number of tokens, so passes have the bits of the whole only in
// deterministic mode.
TEST_P(HostLinearTest, RowsOfBothAreTheWholeProduct) {
  for (const int64_t tokens : {1, 5, kRoom, 3 * kRoom + 1}) {
    machine_.host.ops().set_deterministic(tokens > kRoom);
    machine_.device().ops().set_deterministic(tokens > kRoom);
    for (const StreamedLinear& linear : schedule_.linears) {
      EXPECT_FALSE(linear.on_cpu.empty()) << linear.name;
      EXPECT_FALSE(linear.segments.empty()) << linear.name;
      expect_whole_product(linear, tokens);
      if (HasFailure()) return;
    }
  }
}

TEST_P(HostLinearTest, CountsWhatMovedAndWhatTheCpuRead) {
  const StreamedLinear& down = schedule_.linears[3];
  ASSERT_EQ(down.name, "mlp_down");
  constexpr uint64_t kTokens = 3;
  expect_whole_product(down, kTokens);
  const auto rows = static_cast<uint64_t>(down.on_cpu.front().count);
  const WeightView& view =
      split_.weights.streamed_of(down.layer, down.spec_op, down.on_cpu.front().matrix).view;
  const HostLinear::Stats stats = linear_->take_stats();
  EXPECT_EQ(stats.weight_bytes, rows * static_cast<uint64_t>(view.row_bytes()));
  EXPECT_EQ(stats.few_bytes, stats.weight_bytes);
  // Input of the op, and the values that its results are added to.
  EXPECT_EQ(stats.to_host_bytes, 4 * kTokens * (static_cast<uint64_t>(view.cols) + rows));
  EXPECT_EQ(stats.to_device_bytes, 4 * kTokens * rows);
  EXPECT_GT(stats.compute_s, 0);
  EXPECT_EQ(linear_->take_stats().weight_bytes, 0U);
}

std::string name_of(const testing::TestParamInfo<Shared>& test) {
  return fmt::format("{}_{}_{}{}", test.param.kind, dtype_name(test.param.type),
                     test.param.home == Tier::kHost ? "host" : "disk",
                     test.param.pinnable_bytes == 0 ? "_not_pinned" : "");
}
INSTANTIATE_TEST_SUITE_P(Machines, HostLinearTest, testing::ValuesIn(kShared), name_of);

}  // namespace
}  // namespace spillway
