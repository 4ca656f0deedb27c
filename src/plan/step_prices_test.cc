// SPDX-License-Identifier: Apache-2.0
// Uses a machine and a model whose sizes are powers of two, so that every price can be computed by
// hand, in ticks of 1/1024 s.
#include "plan/step_prices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_part.h"
#include "model/transformer_shape.h"
#include "plan/predict.h"

namespace spillway {
namespace {

double two_to(int exponent) { return std::ldexp(1.0, exponent); }

// Makes a model of two layers with 1024 columns: four matrices of 2 MiB and two of 8 MiB in each. A
// token takes 4 KiB of KV in a layer and 4 KiB of the residual stream.
Model round_model() {
  TransformerShape shape;
  shape.vocab_size = 64;
  shape.hidden = shape.embedding_dim = 1024;
  shape.layers = 2;
  shape.heads = shape.kv_heads = 8;
  shape.head_dim = 128;
  shape.ffn = 4096;
  shape.max_context = 4096;
  shape.gated_mlp = false;
  shape.rope.dims = 128;
  Model model{make_spec(shape), {}};
  for (const WeightSlot& slot : weight_slots(model.spec))
    model.weights.push_back({slot, slot.is_vector() ? DType::kF32 : DType::kF16, {}});
  return model;
}

struct StepPricesTest : testing::Test {
  StepPricesTest() {
    hardware.gpu = Processor{.memory_bytes = uint64_t{1} << 34,
                             .read_bytes_per_s = two_to(31),
                             .flop_per_s = two_to(36)};
    hardware.host = {.memory_bytes = uint64_t{1} << 37,
                     .read_bytes_per_s = two_to(26),
                     .flop_per_s = two_to(33)};
    hardware.to_device = RateCurve(two_to(30));
    hardware.to_host = RateCurve(two_to(29));
    hardware.disk_read = two_to(28);
    hardware.disk_write = two_to(27);
    layout.kv = KvGroupShape{2, 8, 128, KvType::kF16};
    layout.sequence_blocks = 16;
    place_kv(1, 0, 0);
    layout.staging_blocks = 1024;
    layout.max_tokens = layout.micro_tokens = 1 << 20;
  }

  void place_kv(int device, int host, int disk) {
    layout.device_blocks = device * 64;
    layout.host_blocks = host * 64;
    layout.disk_blocks = disk * 64;
  }
  // Returns the ticks of the first event of this name on each worker; for weights, those of all
  // segments of a layer.
  EventPrice price(std::string_view name, int batch = 0, int layer = 0) {
    const StepPrices prices(hardware, model, homes(), plan, layout, size);
    const bool all = name == "load weights" || name == "multiply";
    EventPrice sum;
    bool any = false;
    for (const StepEvent& event : schedule_step(prices.shape())) {
      if (name_of(event) != name) continue;
      if (event.batch >= 0 && event.batch != batch) continue;
      if (event.layer >= 0 && event.layer != layer) continue;
      const EventPrice one = prices.of(event);
      for (size_t i = 0; i < sum.seconds.size(); ++i) sum.seconds[i] += one.seconds[i] * 1024;
      any = true;
      if (!all) break;
    }
    EXPECT_TRUE(any) << "no event " << name;
    return sum;
  }
  bool has(std::string_view name) {
    const StepPrices prices(hardware, model, homes(), plan, layout, size);
    return std::ranges::any_of(schedule_step(prices.shape()),
                               [&](const StepEvent& event) { return name_of(event) == name; });
  }
  // Returns event_name(), with names of their own for products with weight segments and attention
  // to groups.
  std::string name_of(const StepEvent& event) const {
    const std::string name = event_name(*model.spec.lowered, event);
    if (event.kind != EventKind::kRun || event.group < 0) return name;
    return name == "attention" ? "attention, swapped" : "multiply";
  }
  // Returns the ticks of the linear ops after attention.
  double finish_layer() {
    double ticks = 0;
    for (const char* op : {"attention_out", "mlp_up", "mlp_down"})
      ticks += price(op)[Worker::kDevice];
    return ticks;
  }
  const std::vector<Tier>& homes() {
    homes_ = weight_homes(false, model, plan.weight_plan());
    return homes_;
  }

  Hardware hardware;
  Model model = round_model();
  Plan plan;
  RunLayout layout;
  StepSize size{.sequences = 4, .tokens_each = 1, .keys = 128};

 private:
  std::vector<Tier> homes_;
};

TEST_F(StepPricesTest, FewTokensReadTheWeights) {
  EXPECT_DOUBLE_EQ(price("qkv")[Worker::kDevice], 3);
  EXPECT_DOUBLE_EQ(finish_layer(), 1 + 4 + 4);
}

TEST_F(StepPricesTest, ManyTokensMultiply) {
  size = {.sequences = 1, .tokens_each = 1024, .keys = 512.5, .generates = false};
  EXPECT_DOUBLE_EQ(price("qkv")[Worker::kDevice], 3 * 32);
  EXPECT_DOUBLE_EQ(finish_layer(), (1 + 4 + 4) * 32);
  hardware.gpu->prompt_attention_flop_per_s = two_to(31);
  EXPECT_DOUBLE_EQ(price("attention")[Worker::kDevice], 1024 * 1.0009765625)
      << "4 x 1024 tokens x 512.5 keys x 1024";
}

TEST_F(StepPricesTest, WeightsComeOverBusAndDisk) {
  plan.weights = {0, 1, 0};
  EventPrice load = price("load weights");
  EXPECT_DOUBLE_EQ(load[Worker::kToDevice], 24);
  EXPECT_DOUBLE_EQ(load[Worker::kDiskRead], 0);
  plan.weights = {0, 0, 1};
  load = price("load weights");
  EXPECT_DOUBLE_EQ(load[Worker::kToDevice], 24) << "and then over the bus";
  EXPECT_DOUBLE_EQ(load[Worker::kDiskRead], 4 * 24);
}

TEST_F(StepPricesTest, FourBitWeightsAreExpandedWhereTheMachineSaysSo) {
  compress_matrices(model);
  plan.weights = {0, 1, 0};
  constexpr double kShare = 4.5 / 16;
  EXPECT_DOUBLE_EQ(price("multiply")[Worker::kDevice], 12 * kShare);
  EXPECT_DOUBLE_EQ(price("load weights")[Worker::kToDevice], 24 * kShare);
  hardware.gpu->dequantize_bytes_per_s = two_to(30);
  hardware.pageable_to_device = two_to(29);
  EXPECT_DOUBLE_EQ(price("multiply")[Worker::kDevice], 12 * (2 + 1))
      << "expanded at half the speed that the result is read with";
  EXPECT_DOUBLE_EQ(price("load weights")[Worker::kToDevice], 2 * 24 * kShare);
}

TEST_F(StepPricesTest, OnlyWeightsThatAreNotQuantizedArePinned) {
  plan.weights = {0, 1, 0};
  hardware.pageable_to_device = two_to(29);
  EXPECT_DOUBLE_EQ(price("load weights")[Worker::kToDevice], 24);
}

// The CPU reads half of the streamed weights at 64 MiB/s, and the other half crosses the bus.
TEST_F(StepPricesTest, TheCpuMultipliesItsRowsWhereTheyLie) {
  plan.weights = {0, 1, 0};
  plan.cpu_linear = {{4, 0.5}};
  // The floats of four tokens are copied to the host, and results back.
  const auto handed = [&](double columns, double rows) {
    constexpr double kTicks = 1024;  // ticks per second
    return kTicks * 4 * 4 * (columns / hardware.to_host.best() + rows / hardware.to_device.best());
  };
  const double of_down = handed(4 * 1024, 1024.0 / 2);
  EXPECT_DOUBLE_EQ(price("qkv on the CPU")[Worker::kCpu],
                   3 * 32 / 2 + handed(1024, 3 * 1024.0 / 2));
  EXPECT_DOUBLE_EQ(price("mlp_down on the CPU")[Worker::kCpu], 4 * 32 / 2 + of_down);
  EXPECT_DOUBLE_EQ(price("multiply")[Worker::kDevice], 12.0 / 2);
  EXPECT_DOUBLE_EQ(price("load weights")[Worker::kToDevice], 24.0 / 2);
  hardware.cpu_beside_link = 0.5;
  hardware.link_beside_cpu = 0.25;
  EXPECT_DOUBLE_EQ(price("mlp_down on the CPU")[Worker::kCpu], 2 * 4 * 32 / 2 + of_down);
  EXPECT_DOUBLE_EQ(price("load weights")[Worker::kToDevice], 4 * 24.0 / 2);
  size.sequences = 5;
  EXPECT_FALSE(has("mlp_down on the CPU")) << "the share is of fewer tokens";
  EXPECT_DOUBLE_EQ(price("load weights")[Worker::kToDevice], 24);
}

TEST_F(StepPricesTest, RowsThatStayCostNothing) {
  plan.micro_batch = 4;
  size.sequences = 12;
  layout.max_tokens = 12;
  layout.activations = {1.0 / 3, 1.0 / 3, 1.0 / 3};
  EventPrice store = price("store hidden states", 0);
  EXPECT_EQ(store.seconds, EventPrice().seconds);
  store = price("store hidden states", 1);
  EXPECT_DOUBLE_EQ(store[Worker::kToHost], 1.0 / 32);
  EXPECT_DOUBLE_EQ(store[Worker::kDiskWrite], 0);
  store = price("store hidden states", 2);
  EXPECT_DOUBLE_EQ(store[Worker::kToHost], 1.0 / 32);
  EXPECT_DOUBLE_EQ(store[Worker::kDiskWrite], 1.0 / 8);
  EXPECT_DOUBLE_EQ(price("load hidden states", 1)[Worker::kToDevice], 1.0 / 64);
  EXPECT_DOUBLE_EQ(price("load hidden states", 2)[Worker::kDiskRead], 1.0 / 16);
  layout.max_tokens = 36;  // a prompt's step is larger: all decoding tokens fit on the device
  EXPECT_EQ(price("store hidden states", 2).seconds, EventPrice().seconds);
}

TEST_F(StepPricesTest, KvOnTheDeviceIsReadThere) {
  EXPECT_DOUBLE_EQ(price("attention")[Worker::kDevice], 1);
}

TEST_F(StepPricesTest, TheCpuAttendsToWhatItHas) {
  place_kv(0, 1, 0);
  plan.attention = AttentionPlace::kCpu;
  EventPrice start = price("attention on the CPU");
  EXPECT_DOUBLE_EQ(start[Worker::kCpu], 32);
  EXPECT_DOUBLE_EQ(start[Worker::kToHost], 3.0 / 64) << "q, k and v of four tokens";
  EXPECT_DOUBLE_EQ(start[Worker::kToDevice], 1.0 / 128);
  plan.weights = {0, 1, 0};
  hardware.cpu_beside_link = 0.5;
  EXPECT_DOUBLE_EQ(price("attention on the CPU")[Worker::kCpu], 64) << "beside a busy bus";
}

TEST_F(StepPricesTest, PagesComeAndWhatIsNewGoesBack) {
  place_kv(0, 1, 0);
  plan.attention = AttentionPlace::kGpu;
  EXPECT_DOUBLE_EQ(price("load KV")[Worker::kToDevice], 2);
  EXPECT_DOUBLE_EQ(price("attention, swapped")[Worker::kDevice], 1);
  EXPECT_DOUBLE_EQ(price("store KV")[Worker::kToHost], 1.0 / 32);
  hardware.pageable_to_device = two_to(29);
  EXPECT_DOUBLE_EQ(price("load KV")[Worker::kToDevice], 4);
  place_kv(0, 0, 1);
  EXPECT_DOUBLE_EQ(price("load KV")[Worker::kDiskRead], 8);
  EXPECT_DOUBLE_EQ(price("store KV")[Worker::kDiskWrite], 1.0 / 8);
}

// Both layers share one buffer. Whole blocks are copied, of 4 sequences with 128 tokens.
TEST_F(StepPricesTest, SwappedLayersComeAndWhatIsNewGoesBack) {
  layout.swap_sizes = {.layers = 2, .blocks = 64, .most = 2, .spare = 1};
  layout.swapped_layers = 2;
  const auto ticks = [&](EventKind kind, Worker worker, int batch = 0) {
    const StepPrices prices(hardware, model, homes(), plan, layout, size);
    const EventPrice price =
        prices.of({kind, EventSubject::kLayerKv, /*layer=*/1, /*op=*/-1, batch});
    return price[worker] * 1024;
  };
  EXPECT_DOUBLE_EQ(ticks(EventKind::kLoad, Worker::kToDevice), (128 + 7.5) / 64);
  EXPECT_DOUBLE_EQ(ticks(EventKind::kLoad, Worker::kToDevice, /*batch=*/-1), 0) << "it has come";
  EXPECT_DOUBLE_EQ(ticks(EventKind::kStore, Worker::kToHost), 16.0 / 32);
  for (const EventKind kind : {EventKind::kWait, EventKind::kRelease})
    for (int worker = 0; worker < kWorkerCount; ++worker)
      EXPECT_EQ(ticks(kind, static_cast<Worker>(worker)), 0);
  EXPECT_TRUE(has("load KV of the layer"));
  hardware.pageable_to_device = two_to(29);
  EXPECT_DOUBLE_EQ(ticks(EventKind::kLoad, Worker::kToDevice), (128 + 7.5) / 32);
  plan.micro_batch = 1;
  EXPECT_DOUBLE_EQ(ticks(EventKind::kStore, Worker::kToHost), 16.0 / 32) << "of all micro-batches";
  size = {.sequences = 1, .tokens_each = 24, .keys = 140, .generates = false};
  EXPECT_DOUBLE_EQ(ticks(EventKind::kLoad, Worker::kToDevice), 128.0 / 128);
  EXPECT_DOUBLE_EQ(ticks(EventKind::kStore, Worker::kToHost), 32.0 / 128);
}

// The same memory holds the KV of twice as many sequences if two of two layers are swapped.
TEST_F(StepPricesTest, SwappedLayersLeaveRoomForMoreSequencesOnTheDevice) {
  place_kv(1, 2, 0);
  plan.attention = AttentionPlace::kCpu;
  size.sequences = 12;
  EXPECT_DOUBLE_EQ(price("attention")[Worker::kDevice], 1);
  layout.swap_sizes = {.layers = 2, .blocks = layout.device_blocks, .most = 2, .spare = 1};
  layout.swapped_layers = 2;
  EXPECT_DOUBLE_EQ(price("attention")[Worker::kDevice], 1.5);
}

TEST_F(StepPricesTest, HeadsThatShareKeysAttendAtTheirOwnRate) {
  hardware.gpu->attention[KvType::kF16] = RateCurve({{1, two_to(31)}, {4, two_to(29)}});
  EXPECT_DOUBLE_EQ(price("attention")[Worker::kDevice], 1);
  model.spec.kv_heads = 2;
  EXPECT_DOUBLE_EQ(price("attention")[Worker::kDevice], 4);
}

// A token reads no keys outside its window and computes nothing with them.
TEST_F(StepPricesTest, AWindowIsAllThatATokenSees) {
  const double all = price("attention")[Worker::kDevice];
  const auto with_window = [&](int64_t window, bool in_both) {
    KvGroupShape full{1, 8, 128, KvType::kF16}, windowed = full;
    windowed.rule = {StateKind::kWindow, window};
    if (in_both) {
      windowed.layers = 2;
      layout.kv = windowed;
    } else {
      layout.kv = KvShapes({windowed, full}, {{0, 0}, {1, 0}});
    }
    return price("attention")[Worker::kDevice];
  };
  EXPECT_DOUBLE_EQ(with_window(32, true), all / 4);
  EXPECT_DOUBLE_EQ(with_window(32, false), all * (1 + 0.25) / 2) << "on average over the layers";
  EXPECT_DOUBLE_EQ(with_window(128, true), all);
  size = {.sequences = 1, .tokens_each = 1024, .keys = 512, .generates = false};
  hardware.gpu->prompt_attention_flop_per_s = two_to(31);
  layout.kv = KvGroupShape{2, 8, 128, KvType::kF16};
  const double prompt = price("attention")[Worker::kDevice];
  EXPECT_DOUBLE_EQ(with_window(128, true), prompt / 4);
  EXPECT_DOUBLE_EQ(with_window(128, false), prompt * (1 + 0.25) / 2);
  EXPECT_DOUBLE_EQ(with_window(512, true), prompt);
}

// With drafts a sequence has several tokens in a step: they share the KV that is read, and each
// multiplies separately.
TEST_F(StepPricesTest, TokensOfASequenceThatGeneratesReadItsContextOnce) {
  const double one = price("attention")[Worker::kDevice];
  size.tokens_each = 5;
  EXPECT_DOUBLE_EQ(price("attention")[Worker::kDevice], one);
  EXPECT_DOUBLE_EQ(price("qkv")[Worker::kDevice], 3) << "the weights are read once";
  hardware.gpu->prompt_attention_flop_per_s = two_to(31);
  EXPECT_DOUBLE_EQ(price("attention")[Worker::kDevice],
                   4 * 5 * 128 * 4 * 1024 / two_to(31) / (1 / two_to(10)))
      << "as 5 tokens of each of 4 sequences, 128 keys";
  hardware.gpu->prompt_attention_flop_per_s = 0;
  place_kv(0, 1, 0);
  plan.attention = AttentionPlace::kCpu;
  const double on_cpu = price("attention on the CPU")[Worker::kCpu];
  EXPECT_GT(on_cpu, 0) << "they stay where decoding is, and do not come to the device as prompts";
  plan.attention_topk = 0.25F;
  EXPECT_DOUBLE_EQ(price("attention on the CPU")[Worker::kCpu], on_cpu * 5 * (1 + 0.25) / 2)
      << "each chooses positions of its own";
}

TEST_F(StepPricesTest, SparseAttentionReadsAllOfKAndAShareOfV) {
  plan.attention_topk = 0.25F;
  EXPECT_DOUBLE_EQ(price("attention")[Worker::kDevice], (1 + 0.25) / 2);
  place_kv(0, 1, 0);
  plan.attention = AttentionPlace::kCpu;
  EXPECT_DOUBLE_EQ(price("attention on the CPU")[Worker::kCpu], 32 * (1 + 0.25) / 2);
  model.spec.kv_heads = 4;
  EXPECT_DOUBLE_EQ(price("attention on the CPU")[Worker::kCpu], 32 * (1 + 0.5) / 2)
      << "two heads choose for themselves";
  model.spec.kv_heads = 8;
  size.tokens_each = 2;
  size.generates = false;
  const double sparse = price("qkv")[Worker::kDevice];
  plan.attention_topk = 0;
  EXPECT_DOUBLE_EQ(price("qkv")[Worker::kDevice], sparse);
}

TEST_F(StepPricesTest, SparseAttentionLeavesVAtHomeWhereTheDeviceCanReadIt) {
  place_kv(0, 1, 0);
  plan.attention = AttentionPlace::kGpu;
  plan.attention_topk = 0.25F;
  EXPECT_DOUBLE_EQ(price("load KV")[Worker::kToDevice], 1) << "K alone";
  EventPrice attend = price("attention, swapped");
  EXPECT_DOUBLE_EQ(attend[Worker::kDevice], 0.5);
  EXPECT_DOUBLE_EQ(attend[Worker::kToDevice], 0.25) << "what is chosen of V";
  const auto expect_whole_pages = [&](double load) {
    EXPECT_DOUBLE_EQ(price("load KV")[Worker::kToDevice], load);
    attend = price("attention, swapped");
    EXPECT_DOUBLE_EQ(attend[Worker::kDevice], (1 + 0.25) / 2);
    EXPECT_DOUBLE_EQ(attend[Worker::kToDevice], 0);
  };
  place_kv(0, 0, 1);
  expect_whole_pages(2);
  place_kv(0, 1, 0);
  hardware.pageable_to_device = two_to(29);
  expect_whole_pages(4);
  hardware.pageable_to_device = 0;
  plan.attention_topk = 1;
  EXPECT_DOUBLE_EQ(price("load KV")[Worker::kToDevice], 2) << "no less than its pages";
}

TEST_F(StepPricesTest, SequencesAreSharedByTheirHomes) {
  place_kv(2, 1, 1);
  plan.attention = AttentionPlace::kCpu;
  EXPECT_DOUBLE_EQ(price("attention")[Worker::kDevice], 0.5);
  EXPECT_DOUBLE_EQ(price("attention on the CPU")[Worker::kCpu], 8);
  EXPECT_DOUBLE_EQ(price("load KV")[Worker::kDiskRead], 2);
}

TEST_F(StepPricesTest, MicroBatchesShareALayersTripAndReadItEach) {
  plan.micro_batch = 1;
  plan.weights = {0, 1, 0};
  const StepPrices prices(hardware, model, homes(), plan, layout, size);
  const StepEstimate step = prices.sums();
  const auto ticks = [&](Worker worker) { return step.busy[static_cast<size_t>(worker)] * 1024; };
  EXPECT_DOUBLE_EQ(ticks(Worker::kToDevice), 2 * 24);
  // Each of four micro-batches takes 12 ticks for weights and a quarter for KV; the head has 64
  // rows.
  EXPECT_DOUBLE_EQ(ticks(Worker::kDevice), 2 * 4 * (12 + 0.25) + 1.0 / 16);
  EXPECT_DOUBLE_EQ(step.seconds * 1024, 2 * 4 * (12 + 0.25) + 1.0 / 16) << "which hides the bus";
}

// A row of the residual stream has 4 KiB.
TEST_F(StepPricesTest, PartsOfAModelHandHiddenStatesOver) {
  const Model whole = model;
  EXPECT_FALSE(has("take over hidden states"));
  EXPECT_FALSE(has("hand over hidden states"));
  model = part_of(whole, 0, 1);
  EXPECT_FALSE(has("take over hidden states"));
  EXPECT_FALSE(has("gather"));
  EXPECT_DOUBLE_EQ(price("hand over hidden states")[Worker::kToHost], 1.0 / 32);
  model = part_of(whole, 1, 2);
  EXPECT_DOUBLE_EQ(price("take over hidden states")[Worker::kToDevice], 1.0 / 64);
  EXPECT_FALSE(has("hand over hidden states"));
  EXPECT_TRUE(has("gather"));
}

// Covers steps of every kind: prompts and decoding, with any homes, of whole models and of parts of
// one.
TEST_F(StepPricesTest, SumsAreThoseOfTheSchedulesEvents) {
  std::mt19937 random(5);
  const auto below = [&](unsigned bound) { return static_cast<int>(random() % bound); };
  hardware.transfer_s = two_to(-12);
  for (int trial = 0; trial < 200; ++trial) {
    const double device = below(3) / 4.0, host = below(3) / 4.0;
    plan.weights = {device, std::min(host, 1 - device), std::max(0.0, 1 - device - host)};
    plan.embeddings = below(2) == 0 ? Tier::kHost : Tier::kDevice;
    plan.attention = static_cast<AttentionPlace>(below(3));
    plan.overlap = below(4) > 0;
    plan.micro_batch = below(3);
    place_kv(1 + below(2), below(3), below(2));
    layout.staging_blocks = 8 << below(4);
    layout.partitioned = below(4) == 0;
    layout.swap_sizes = {.layers = 2, .blocks = layout.device_blocks, .most = 2, .spare = 1};
    const bool swaps = below(3) == 0;
    const double states = below(3) / 2.0;
    layout.activations = {states, 1 - states, 0};
    size.sequences = 1 + below(6);
    size.generates = below(2) == 0;
    size.tokens_each = size.generates ? 1 + 4 * (trial % 2) : 64;
    size.logits = below(3) > 0;
    layout.micro_tokens = below(2) == 0 ? 64 : 1 << 20;
    layout.max_tokens = std::max(layout.micro_tokens, 256);
    const int part = below(3);
    model = part == 2 ? round_model() : part_of(round_model(), part, part + 1);
    layout.swapped_layers = swaps && part == 2 ? 2 : 0;  // a part of the model has one layer
    const StepPrices prices(hardware, model, homes(), plan, layout, size);
    // Loads of hidden states count for the layer that computes meanwhile.
    std::vector<EventPrice> sums(3);
    size_t at = 2;
    for (const StepEvent& event : schedule_step(prices.shape())) {
      const bool in_layer = event.layer >= 0 && event.layer < model.spec.layer_count() &&
                            event.subject != EventSubject::kHandOver;
      if (name_of(event) != "load hidden states")
        at = in_layer ? static_cast<size_t>(event.layer) : 2;
      for (size_t i = 0; i < sums[at].seconds.size(); ++i)
        sums[at].seconds[i] += prices.of(event).seconds[i];
    }
    const StepEstimate step = prices.sums();
    double seconds = 0, busiest = 0;
    for (size_t i = 0; i < step.busy.size(); ++i) {
      const double busy = sums[0].seconds[i] + sums[1].seconds[i] + sums[2].seconds[i];
      EXPECT_NEAR(step.busy[i], busy, 1e-9 * busy) << trial;
      busiest = std::max(busiest, busy);
    }
    for (const EventPrice& sum : sums)
      seconds += *std::max_element(sum.seconds.begin(), sum.seconds.end());
    EXPECT_NEAR(step.seconds, seconds, 1e-9 * seconds) << trial;
    EXPECT_GE(simulate_step(prices).seconds, busiest * (1 - 1e-9)) << trial;
  }
}

TEST_F(StepPricesTest, PromptsThatAreLeftOverTakeAStepOfTheirOwnSize) {
  Footprint needs;
  needs.layout = layout;
  needs.layout.max_tokens = 2048;
  hardware.gpu->prompt_attention_flop_per_s = two_to(36);
  const Workload workload{{{.count = 3, .prompt = 1024, .generate = 1}}};
  const Prediction all = predict(hardware, model, plan, needs, {.tokens = 1025, .sequences = 3},
                                 workload, PriceBy::kSums);
  EXPECT_NEAR(all.prefill_s, 1.5 * all.prefill_step.seconds, all.prefill_s * 1e-3);
  EXPECT_DOUBLE_EQ(all.first_token_s, all.prefill_s);
}

}  // namespace
}  // namespace spillway
