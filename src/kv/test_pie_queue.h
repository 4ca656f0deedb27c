// SPDX-License-Identifier: Apache-2.0
// The paper's own policy (Pie, 3.3), to hold ours against: layers go out and come in whenever the
// link is free, as a queue, through one buffer for each direction.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

namespace spillway {

// In simulated time, whose unit is a layer's computation. Layers are counted from 1, as in figure
// 4; a step begins with layer 1.
//
// A layer that comes although the current step is done with it comes for the next one: the rule is
// violated, which only the first layers of a step may (3.4.2).
class PieQueue {
 public:
  static constexpr int kAllLayers = std::numeric_limits<int>::max();
  // `early_layers`: the first so many of a step may come while the one before is under way.
  PieQueue(int layers, int in_host, int swap_time, int early_layers = kAllLayers)
      : layers_(layers), swap_time_(swap_time), early_layers_(early_layers) {
    for (int layer = layers - in_host + 1; layer <= layers; ++layer) host_.push_back(layer);
  }

  struct Decision {
    int out = 0, in = 0;  // layers that begin to move; 0: none
    int waits = 0;        // that the layer has to wait before it begins
  };
  // The next layer begins to compute.
  Decision begin_layer() {
    const int layer = at_ % layers_ + 1;
    ++at_;
    Decision decision;
    const int last = layer == 1 ? layers_ : layer - 1;  // the coldest: computed just now
    // It has to be there.
    while (std::ranges::find(host_, layer) != host_.end() || in_ == layer) {
      ++now_;
      ++decision.waits;
      settle();
      if (in_ == 0 && free_ == 0) send(last, decision);
      if (in_ == 0) bring(layer, decision);
    }
    settle();
    if (has_computed_ && hottest(layer) != host_.end()) send(last, decision);
    if (in_ == 0 && free_ > 0) bring(layer, decision);
    has_computed_ = true;
    ++now_;
    settle();
    return decision;
  }
  const std::vector<int>& in_host() const { return host_; }
  int swaps() const { return swaps_; }
  int violations() const { return violations_; }

 private:
  // Layers from `layer` on until `of` is computed.
  int turns_until(int of, int layer) const { return (of - layer + layers_) % layers_; }
  void send(int last, Decision& decision) {
    const bool is_here = std::ranges::find(host_, last) == host_.end() && in_ != last;
    if (out_ != 0 || !is_here) return;
    out_ = decision.out = last;
    out_done_ = now_ + swap_time_;
  }
  // Of those in host memory that may come; end: none.
  std::vector<int>::iterator hottest(int layer) {
    const auto found =
        std::ranges::min_element(host_, {}, [&](int of) { return turns_until(of, layer); });
    return found != host_.end() && *found<layer&& * found> early_layers_ ? host_.end() : found;
  }
  void bring(int layer, Decision& decision) {
    const auto found = hottest(layer);
    if (found == host_.end() || free_ == 0) return;
    in_ = decision.in = *found;
    host_.erase(found);
    in_done_ = now_ + swap_time_;
    --free_;
    ++swaps_;
    if (in_ < layer) ++violations_;
  }
  void settle() {
    if (out_ != 0 && now_ >= out_done_) {
      host_.push_back(out_);
      out_ = 0;
      ++free_;
    }
    if (in_ != 0 && now_ >= in_done_) in_ = 0;
  }

  int layers_, swap_time_, early_layers_;
  int at_ = 0, now_ = 0;
  std::vector<int> host_;
  int out_ = 0, in_ = 0;  // on their way
  int out_done_ = 0, in_done_ = 0;
  int free_ = 0;  // buffers that a layer has left
  int swaps_ = 0, violations_ = 0;
  bool has_computed_ = false;
};

}  // namespace spillway
