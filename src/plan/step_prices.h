// SPDX-License-Identifier: Apache-2.0
// What the events of a step take on a machine, in seconds of each worker: of the list that the
// decoder executes (block_schedule.h), from the machine's rates (hardware.h) and the bytes that the
// footprint says. Both the cost model and the simulator use these prices, and no others.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/model.h"
#include "plan/block_schedule.h"
#include "plan/footprint.h"
#include "plan/hardware.h"
#include "plan/kv_traffic.h"
#include "plan/link_prices.h"
#include "plan/plan.h"
#include "plan/simulate.h"
#include "plan/step_weights.h"

namespace spillway {

// Of one step.
struct StepSize {
  int64_t sequences = 1;    // that take part
  int64_t tokens_each = 1;  // new ones of each
  double keys = 1;          // that a token sees on average, itself included
  bool logits = true;
  // The sequences generate: each attends from its newest tokens (one, or with drafts several) to
  // the KV of its whole context. Else these are tokens of prompts.
  bool generates = true;
};

// Where a step's time goes. Layer by layer the busiest worker decides (FlexGen, A.3): as if
// everything else were hidden behind it.
struct StepEstimate {
  double seconds = 0;
  std::array<double, kWorkerCount> busy = {};
  Worker bottleneck() const;
};

class StepPrices {
 public:
  // `homes`: of each weight, as weight_homes() says. `hardware` and `model` must outlive this.
  StepPrices(const Hardware& hardware, const Model& model, const std::vector<Tier>& homes,
             const Plan& plan, const RunLayout& layout, const StepSize& size);
  // The same with weights that were described before, by cut_of().
  StepPrices(const Hardware& hardware, const ModelSpec& spec,
             std::shared_ptr<const StepWeights> weights, const Plan& plan, const RunLayout& layout,
             const StepSize& size);
  // How the weights of such a step are split and streamed.
  static StreamCut cut_of(const Hardware& hardware, const Plan& plan, const RunLayout& layout,
                          const StepSize& size);

  const StepShape& shape() const { return shape_; }
  const EventPrice& of(const StepEvent& event) const;
  // By layers' sums over the events of schedule_step(), which need not be made for it.
  StepEstimate sums() const;
  // Of the sequences in host memory, the share that the CPU attends to.
  double cpu_attention() const { return cpu_attention_; }

 private:
  // A micro-batch: tokens, and of its sequences those whose KV is there.
  struct Batch {
    double tokens = 0, resident = 0, on_cpu = 0, swapped = 0, swapped_from_disk = 0;
    Tier rows = Tier::kDevice;
    double groups = 0;  // in which swapped KV comes
    bool operator==(const Batch&) const = default;
  };

  void describe_batches(const Plan& plan, const RunLayout& layout);
  // Of the sequences in host memory whose attention the CPU computes, where the plan leaves it
  // open: so that the CPU and the link end together.
  double balanced_cpu_share(double kv_bytes, double weight_bytes) const;
  // Fills the tables of prices.
  void price_all();
  // What of a batch's events takes time beside linear ops and weights.
  enum class Priced : uint8_t {
    kNothing,
    kEmbed,
    kGather,
    kLoadRows,
    kStoreRows,
    kAttendOnCpu,
    kStartPartitions,
    kJoinPartitions,
    kAttend,
    kLoadKv,
    kAttendSwapped,
    kStoreKv,
    kTakeOver,
    kHandOver,
    kLoadLayer,
    kStoreLayer,
  };
  static constexpr auto kPriced = static_cast<size_t>(Priced::kStoreLayer) + 1;
  EventPrice price_of_batch(Priced what, const Batch& batch) const;
  EventPrice price_of_linear(const StepWeights::Linear& of, double tokens) const;
  EventPrice price_on_cpu(const StepWeights::Linear& of, double tokens) const;
  double tokens_of(const StepWeights::Linear& of, double batch_tokens) const;
  Priced find_priced(const StepEvent& event) const;
  EventPrice price_of_load(const StepWeights::Segment& segment) const;
  double products(const Processor& on, const OpProducts& of, double tokens) const;
  double kv_bytes(double sequences) const { return sequences * keys_read_ * kv_token_bytes_; }
  double new_kv_bytes(double sequences) const {
    return sequences * static_cast<double>(size_.tokens_each) * new_token_bytes_;
  }
  // Swapped layers are copied by whole blocks, those of all sequences that are on the device.
  double bytes_of_layer() const;
  double new_bytes_of_layer() const;
  double activate(double elements) const;
  double attend(const Processor& on, double sequences) const;
  double attend_bytes(const Processor& on, double bytes) const {
    return attention_seconds(on, kv_type_, query_group(spec_), bytes);
  }
  // Of rows whose pages have come, and V that they read over the bus.
  EventPrice attend_swapped(const Batch& batch) const;
  double up(double bytes, Hardware::Source source = Hardware::Source::kPinned) const {
    return links_.up(bytes, source, link_share_);
  }
  double down(double bytes) const { return links_.down(bytes, link_share_); }

  const EventPrice& batch_price(Priced what, size_t kind) const {
    return batch_prices_[static_cast<size_t>(what) * batch_kinds_.size() + kind];
  }
  const EventPrice& linear_price(int linear, size_t kind) const {
    return linear_prices_[static_cast<size_t>(linear) * batch_kinds_.size() + kind];
  }
  const EventPrice& cpu_price(int linear, size_t kind) const {
    return cpu_prices_[static_cast<size_t>(linear) * batch_kinds_.size() + kind];
  }
  // kind: of the batch; behind the last: the head's rows.
  const EventPrice& multiply_price(int segment, size_t kind) const {
    return multiply_prices_[static_cast<size_t>(segment) * (batch_kinds_.size() + 1) + kind];
  }

  const Hardware& hardware_;
  const LinkPrices links_;
  const ModelSpec& spec_;
  const StepSize size_;
  std::shared_ptr<const StepWeights> weights_;
  KvType kv_type_;
  KvTraffic traffic_ = {};  // of decoding; prompts attend to everything
  // In a layer, on average: for each token that is read, and for each that is appended; and in a
  // layer whose KV may be swapped.
  double kv_token_bytes_ = 0, new_token_bytes_ = 0, swapped_token_bytes_ = 0;
  double keys_read_ = 0;  // of a sequence, once in a step
  // Keys that a token sees, on average over the layers: behind a window there are none.
  double keys_seen_ = 0;
  // Rows that read a sequence's KV each for itself: those that choose some of its positions.
  double own_reads_ = 1;
  // Of prompts that come in parts: so many micro-batches have rows of one, and each reads them all.
  double readers_ = 1;
  std::vector<Batch> batch_kinds_;
  std::vector<size_t> batches_;  // the kind of each
  double resident_ = 0;          // sequences of all batches whose KV is on the device
  double row_bytes_ = 0;         // of the residual stream
  double inner_bytes_ = 2;       // of an element between matrices
  double cpu_attention_ = 1;
  double link_share_ = 1, cpu_share_ = 1;  // what each leaves the other of its rate
  StepShape shape_;
  // [what, kind of batch], [kind of linear, kind of batch] on the device and on the CPU, [kind of
  // segment], [kind of segment, kind of batch or head]
  std::vector<EventPrice> batch_prices_, linear_prices_, cpu_prices_, load_prices_,
      multiply_prices_;
};

// A step by the events one after the other, with every wait (simulate.h): a step among others.
StepEstimate simulate_step(const StepPrices& prices);

}  // namespace spillway
