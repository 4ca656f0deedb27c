// SPDX-License-Identifier: Apache-2.0
// What the events of a step take on a machine, in seconds of each worker: of the list that the
// decoder executes (block_schedule.h), from the machine's rates (hardware.h) and the bytes that the
// footprint says. Both the cost model and the simulator use these prices, and no others.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model.h"
#include "plan/block_schedule.h"
#include "plan/footprint.h"
#include "plan/hardware.h"
#include "plan/kv_traffic.h"
#include "plan/plan.h"
#include "plan/simulate.h"

namespace spillway {

// Of one step.
struct StepSize {
  int64_t sequences = 1;    // that take part
  int64_t tokens_each = 1;  // new ones of each: 1 in decoding, more of prompts
  double keys = 1;          // that a token sees on average, itself included
  bool logits = true;
};

class StepPrices {
 public:
  // `homes`: of each weight, as weight_homes() says. All of it must outlive this.
  StepPrices(const Hardware& hardware, const Model& model, const std::vector<Tier>& homes,
             const Plan& plan, const RunLayout& layout, const StepSize& size);

  const StepShape& shape() const { return shape_; }
  EventPrice of(const StepEvent& event) const;
  // Of the sequences in host memory, the share that the CPU attends to.
  double cpu_attention() const { return cpu_attention_; }

 private:
  struct Product {
    DType type;
    double elements, bytes;
    bool operator==(const Product&) const = default;
  };
  // Of a linear op: what of it is on the device, and what the CPU multiplies.
  struct Linear {
    std::vector<Product> resident, on_cpu;
    double cpu_rows = 0, columns = 0;
    double cpu_from_disk = 0;  // bytes, where nothing else of it streams
  };
  // That comes to the device.
  struct Piece {
    std::vector<Product> products;
    double from_host = 0, from_disk = 0;  // bytes
    double cpu_from_disk = 0;             // that come at the same time, and stay in host memory
    Hardware::Source source = Hardware::Source::kPinned;
    bool operator==(const Piece&) const = default;
  };
  EventPrice multiply(int piece, double tokens) const;
  // The head is behind the layers.
  Linear& linear(int layer, LinearGroup group) {
    return linears_[static_cast<size_t>(layer) * kGroups + static_cast<size_t>(group)];
  }
  const Linear& linear(int layer, LinearGroup group) const {
    return linears_[static_cast<size_t>(layer) * kGroups + static_cast<size_t>(group)];
  }
  // A micro-batch: tokens, and of its sequences those whose KV is there.
  struct Batch {
    double tokens = 0, resident = 0, on_cpu = 0, swapped = 0, swapped_from_disk = 0;
    Tier rows = Tier::kDevice;
  };

  void describe_weights(const Model& model, const std::vector<Tier>& homes, const StreamCut& cut);
  double sequences_of_a_batch(const Plan& plan, const RunLayout& layout) const;
  void describe_batches(const Plan& plan, const RunLayout& layout);
  // Of the sequences in host memory whose attention the CPU computes, where the plan leaves it
  // open: so that the CPU and the link end together.
  double balanced_cpu_share(double kv_bytes, double weight_bytes) const;
  double products(const Processor& on, const std::vector<Product>& of, double tokens) const;
  EventPrice begin_linear(int layer, LinearGroup group, double ops, double tokens) const;
  double kv_bytes(double sequences) const { return sequences * keys_read_ * kv_token_bytes_; }
  double new_kv_bytes(double sequences) const {
    return sequences * static_cast<double>(size_.tokens_each) * kv_token_bytes_;
  }
  double activate(double tokens) const;
  double attend(const Processor& on, double sequences) const;
  double attend_bytes(const Processor& on, double bytes) const {
    return attention_seconds(on, kv_type_, query_group(spec_), bytes);
  }
  // Of rows whose pages have come, and V that they read over the bus.
  EventPrice attend_swapped(const Batch& batch, double groups) const;
  double up(double bytes, Hardware::Source source = Hardware::Source::kPinned) const;
  double down(double bytes) const;

  const Hardware& hardware_;
  const ModelSpec& spec_;
  const StepSize size_;
  KvType kv_type_;
  KvTraffic traffic_ = {};     // of decoding; prompts attend to everything
  double kv_token_bytes_ = 0;  // of a layer
  double keys_read_ = 0;       // of a sequence, once in a step
  // Of prompts that come in parts: so many micro-batches have rows of one, and each reads them all.
  double readers_ = 1;
  static constexpr size_t kGroups = static_cast<size_t>(LinearGroup::kHead) + 1;
  std::vector<Linear> linears_;  // of all layers
  std::vector<Piece> pieces_;    // in the order of their use
  // Most are like the one before: the last that was priced.
  struct {
    int piece = -1;
    double tokens = 0;
    EventPrice price;
  } mutable last_;
  std::vector<Batch> batches_;
  double row_bytes_ = 0;        // of the residual stream
  double looked_up_bytes_ = 0;  // of a token's rows of embeddings, in host memory
  double inner_bytes_ = 2;      // of an element between matrices
  double cpu_attention_ = 1;
  bool cpu_busy_ = false;
  double link_share_ = 1, cpu_share_ = 1;  // what each leaves the other of its rate
  StepShape shape_;
};

// Where a step's time goes. Layer by layer the busiest worker decides (FlexGen, A.3): as if
// everything else were hidden behind it.
struct StepEstimate {
  double seconds = 0;
  std::array<double, kWorkerCount> busy = {};
  Worker bottleneck() const;
};
StepEstimate estimate_step(const StepPrices& prices);
// The same by the events one after the other, with every wait (simulate.h): a step among others.
StepEstimate simulate_step(const StepPrices& prices);

}  // namespace spillway
