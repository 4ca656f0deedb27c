// SPDX-License-Identifier: Apache-2.0
// Implements the paper's own policy (Pie, 3.3), as a reference for ours: layers are swapped out and
// in whenever the link is free, as a queue, through one buffer for each direction.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

namespace spillway {

// Simulates time in units of one layer's computation. Layers are numbered from 1, as in figure 4; a
// step begins with layer 1.
//
// A layer that is swapped in after the current step has computed it comes for the next step: this
// is a rule violation, which is allowed only for the first layers of a step (3.4.2).
class PieQueue {
 public:
  static constexpr int kAllLayers = std::numeric_limits<int>::max();
  // `early_layers`: this many of a step's first layers may come during the previous step.
  PieQueue(int layers, int in_host, int swap_time, int early_layers = kAllLayers)
      : layers_(layers), swap_time_(swap_time), early_layers_(early_layers) {
    for (int layer = layers - in_host + 1; layer <= layers; ++layer) host_.push_back(layer);
  }

  struct Decision {
    int out = 0, in = 0;  // layers that begin to move; 0: none
    int waits = 0;        // time units that the layer waits before it begins
  };
  // Begins the computation of the next layer.
  Decision begin_layer() {
    const int layer = at_ % layers_ + 1;
    ++at_;
    Decision decision;
    const int last = layer == 1 ? layers_ : layer - 1;  // the coldest one, just computed
    // The layer has to be on the device.
    while (std::ranges::find(host_, layer) != host_.end() || in_ == layer) {
      ++now_;
      ++decision.waits;
      update();
      if (in_ == 0 && free_ == 0) send(last, decision);
      if (in_ == 0) bring(layer, decision);
    }
    update();
    if (has_computed_ && hottest(layer) != host_.end()) send(last, decision);
    if (in_ == 0 && free_ > 0) bring(layer, decision);
    has_computed_ = true;
    ++now_;
    update();
    return decision;
  }
  const std::vector<int>& in_host() const { return host_; }
  int swaps() const { return swaps_; }
  int violations() const { return violations_; }

 private:
  // The number of layers from `layer` on until `of` is computed.
  int turns_until(int of, int layer) const { return (of - layer + layers_) % layers_; }
  void send(int last, Decision& decision) {
    const bool is_here = std::ranges::find(host_, last) == host_.end() && in_ != last;
    if (out_ != 0 || !is_here) return;
    out_ = decision.out = last;
    out_done_ = now_ + swap_time_;
  }
  // The layer that is needed first among those in host memory that may come; end() if
  // there is none.
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
  void update() {
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
  int out_ = 0, in_ = 0;  // layers in flight
  int out_done_ = 0, in_done_ = 0;
  int free_ = 0;  // buffers that a layer has left
  int swaps_ = 0, violations_ = 0;
  bool has_computed_ = false;
};

}  // namespace spillway
