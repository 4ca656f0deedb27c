// SPDX-License-Identifier: Apache-2.0
// The paper's own policy (Pie, 3.3), to hold ours against: layers go out and come in whenever the
// link is free, as a queue, through one buffer for each direction.
#pragma once

#include <algorithm>
#include <vector>

namespace spillway {

// In simulated time, whose unit is a layer's computation. Layers are counted from 1, as in figure
// 4; a step begins with layer 1.
class PieQueue {
 public:
  PieQueue(int layers, int in_host, int swap_time) : layers_(layers), swap_time_(swap_time) {
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
    // It has to be there.
    while (std::ranges::find(host_, layer) != host_.end() || in_ == layer) {
      ++now_;
      ++decision.waits;
      settle();
      if (in_ == 0) bring(layer, decision);
    }
    settle();
    const int last = layer == 1 ? layers_ : layer - 1;  // the coldest: computed just now
    const bool others_are_colder = std::ranges::all_of(
        host_, [&](int of) { return turns_until(of, layer) > turns_until(last, layer); });
    const bool is_here =
        std::ranges::find(host_, last) == host_.end() && in_ != last && out_ != last;
    if (out_ == 0 && is_here && has_computed_ && !others_are_colder) {
      out_ = decision.out = last;
      out_done_ = now_ + swap_time_;
    }
    if (in_ == 0 && free_ > 0) bring(layer, decision);
    has_computed_ = true;
    ++now_;
    settle();
    return decision;
  }
  const std::vector<int>& in_host() const { return host_; }
  int swaps() const { return swaps_; }

 private:
  // Layers from `layer` on until `of` is computed.
  int turns_until(int of, int layer) const { return (of - layer + layers_) % layers_; }
  void bring(int layer, Decision& decision) {
    if (host_.empty() || free_ == 0) return;
    const auto hottest =
        std::ranges::min_element(host_, {}, [&](int of) { return turns_until(of, layer); });
    in_ = decision.in = *hottest;
    host_.erase(hottest);
    in_done_ = now_ + swap_time_;
    --free_;
    ++swaps_;
  }
  void settle() {
    if (out_ != 0 && now_ >= out_done_) {
      host_.push_back(out_);
      out_ = 0;
      ++free_;
    }
    if (in_ != 0 && now_ >= in_done_) in_ = 0;
  }

  int layers_, swap_time_;
  int at_ = 0, now_ = 0;
  std::vector<int> host_;
  int out_ = 0, in_ = 0;  // on their way
  int out_done_ = 0, in_done_ = 0;
  int free_ = 0;  // buffers that a layer has left
  int swaps_ = 0;
  bool has_computed_ = false;
};

}  // namespace spillway
