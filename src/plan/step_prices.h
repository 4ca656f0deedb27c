// SPDX-License-Identifier: Apache-2.0
// Computes the seconds that the events of a step take on each worker of a machine. The events are
// the list that the decoder executes (block_schedule.h); prices follow from the machine's rates
// (hardware.h) and the bytes of the footprint. The cost model and the simulator use only these
// prices.
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

// The size of one step.
struct StepSize {
  int64_t sequences = 1;    // sequences that take part
  int64_t tokens_each = 1;  // new tokens of each sequence
  double keys = 1;          // keys to which a token attends on average, itself included
  bool logits = true;
  // True if the sequences generate: each attends from its newest tokens (one, or with drafts
  // several) to the KV of its whole context. False for tokens of prompts.
  bool generates = true;
};

// The time of a step and where it goes. By sums, the busiest worker of each layer decides (FlexGen,
// A.3), as if all other work were hidden behind it.
struct StepEstimate {
  double seconds = 0;
  std::array<double, kWorkerCount> busy = {};
  Worker bottleneck() const;
};

class StepPrices {
 public:
  // `homes` has the memory in which each weight lives, as weight_homes() returns it. `hardware` and
  // `model` must outlive this object.
  StepPrices(const Hardware& hardware, const Model& model, const std::vector<Tier>& homes,
             const Plan& plan, const RunLayout& layout, const StepSize& size);
  // The same with weights that were described before, with their rows split between CPU and GPU as
  // cut_of() returns it.
  StepPrices(const Hardware& hardware, const ModelSpec& spec,
             std::shared_ptr<const StepWeights> weights, const Plan& plan, const RunLayout& layout,
             const StepSize& size);
  // Returns how the weights of a step of `size` are streamed, and their rows split between CPU and
  // GPU.
  static StreamSplit cut_of(const Hardware& hardware, const Plan& plan, const RunLayout& layout,
                            const StepSize& size);

  const StepShape& shape() const { return shape_; }
  const EventPrice& of(const StepEvent& event) const;
  // Returns the estimate by sums over each layer's events of schedule_step(), without making that
  // list.
  StepEstimate sums() const;
  // Returns the CPU's share of the sequences in host memory, to which it attends.
  double cpu_attention() const { return cpu_attention_; }

 private:
  // A micro-batch: its tokens, and its sequences by where their KV is and who attends to it.
  struct Batch {
    double tokens = 0, resident = 0, on_cpu = 0, swapped = 0, swapped_from_disk = 0;
    Tier rows = Tier::kDevice;
    double groups = 0;  // groups in which swapped KV is loaded
    bool operator==(const Batch&) const = default;
  };

  void describe_batches(const Plan& plan, const RunLayout& layout);
  // Returns the CPU's share of attention to the sequences in host memory if the plan does not set
  // it: the share with which the CPU and the link finish together.
  double balanced_cpu_share(double kv_bytes, double weight_bytes) const;
  void price_all();
  // The kinds of a batch's events that take time, besides linear ops and weights.
  enum class Priced : uint8_t {
    kNothing,
    kEmbed,
    kGather,
    kLoadHiddenStates,
    kStoreHiddenStates,
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
  // Bytes of the KV of a swapped layer, which is loaded from host memory in each step, and of the
  // part that a step writes. Swapped layers are copied by whole blocks, those of all sequences on
  // the device.
  double bytes_of_layer() const;
  double new_bytes_of_layer() const;
  double activate(double elements) const;
  double attend(const Processor& on, double sequences) const;
  double attend_bytes(const Processor& on, double bytes) const {
    return attention_seconds(on, kv_type_, query_group(spec_), bytes);
  }
  // Returns the price of attention for rows whose pages were copied to the device, including V that
  // they read over the bus.
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
  // `kind` is the batch's; the number after the last kind stands for the head's rows.
  const EventPrice& multiply_price(int segment, size_t kind) const {
    return multiply_prices_[static_cast<size_t>(segment) * (batch_kinds_.size() + 1) + kind];
  }

  const Hardware& hardware_;
  const LinkPrices links_;
  const ModelSpec& spec_;
  const StepSize size_;
  std::shared_ptr<const StepWeights> weights_;
  KvType kv_type_;
  KvTraffic traffic_ = {};  // in decoding; prompts attend to everything
  // Bytes in an average layer for each token that is read and for each that is appended, and in a
  // layer whose KV may be swapped.
  double kv_token_bytes_ = 0, new_token_bytes_ = 0, swapped_token_bytes_ = 0;
  double keys_read_ = 0;  // of a sequence, once per step
  // Keys to which a token attends, on average over the layers: a layer with a window has no more
  // than those.
  double keys_seen_ = 0;
  // The number of rows of a sequence that read its KV separately: all if each selects positions of
  // its own, else one.
  double own_reads_ = 1;
  // For prompts in partitions: the number of micro-batches with rows of one prompt, each of which
  // reads all partitions.
  double readers_ = 1;
  std::vector<Batch> batch_kinds_;
  std::vector<size_t> batches_;  // by batch: its index in batch_kinds_
  double resident_ = 0;          // sequences of all batches whose KV is on the device
  double row_bytes_ = 0;         // of the residual stream
  double inner_bytes_ = 2;       // of an activation's element between matrices
  double cpu_attention_ = 1;
  // The part of its rate that each keeps while the other is busy.
  double link_share_ = 1, cpu_share_ = 1;
  StepShape shape_;
  // [what, kind of batch], [kind of linear, kind of batch] on the device and on the CPU, [kind of
  // segment], [kind of segment, kind of batch or head]
  std::vector<EventPrice> batch_prices_, linear_prices_, cpu_prices_, load_prices_,
      multiply_prices_;
};

// Estimates a step among several by simulating its events with every wait (simulate.h).
StepEstimate simulate_step(const StepPrices& prices);

}  // namespace spillway
