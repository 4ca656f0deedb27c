// SPDX-License-Identifier: Apache-2.0
#include "kv/layer_table.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace spillway {
namespace {

// Fills the buffers [first, first + count) with the layers of `at` (from buffer to layer, -1:
// none), of which there are `count`: layers outside the range move to the holes inside.
std::vector<LayerTable::Copy> close_up(std::vector<int>& at, int first, int count) {
  std::vector<LayerTable::Copy> copies;
  int hole = first;
  for (int from = 0; from < static_cast<int>(at.size()); ++from) {
    if (at[static_cast<size_t>(from)] < 0 || (from >= first && from < first + count)) continue;
    while (at[static_cast<size_t>(hole)] >= 0) ++hole;
    SPW_ASSERT(hole < first + count);
    copies.push_back({at[static_cast<size_t>(from)], from, hole});
    std::swap(at[static_cast<size_t>(from)], at[static_cast<size_t>(hole)]);
  }
  return copies;
}

}  // namespace

LayerTable::LayerTable(const LayerSwapSizes& sizes) : sizes_(sizes) {
  SPW_ASSERT(sizes.layers > 0 && sizes.most >= 0 && sizes.most <= sizes.layers && sizes.spare > 0);
  entries_.resize(static_cast<size_t>(sizes.layers));
  for (int layer = 0; layer < sizes.layers; ++layer) of(layer).device = layer;
  free_host_.resize(static_cast<size_t>(sizes.most));
  std::iota(free_host_.rbegin(), free_host_.rend(), 0);  // buffer 0 is taken first
}

int LayerTable::next_to_load() const {
  if (swapped_.empty() || begun_ - left_ >= std::ssize(shared_)) return -1;
  return swapped_layer(begun_);
}

int LayerTable::device_buffer_in_step(int layer) const {
  if (!is_swapped(layer)) return device_buffer(layer);
  SPW_ASSERT(left_ % swapped_count() == 0);
  const int64_t position = std::ranges::find(swapped_, layer) - swapped_.begin();
  return shared_[static_cast<size_t>((left_ + position) % std::ssize(shared_))];
}

void LayerTable::begin_load(int layer) {
  SPW_ASSERT(layer == next_to_load() && state(layer) == LayerState::kSwappedOut);
  Entry& entry = of(layer);
  entry.device = shared_[static_cast<size_t>(begun_++ % std::ssize(shared_))];
  entry.state = LayerState::kLoading;
}

void LayerTable::confirm(int layer) {
  Entry& entry = of(layer);
  SPW_ASSERT(entry.state == LayerState::kLoading);
  if (entry.host < 0) {
    entry.state = LayerState::kNeverSwapped;
    return;
  }
  SPW_ASSERT(layer == swapped_layer(confirmed_));
  ++confirmed_;
  entry.state = LayerState::kResident;
}

void LayerTable::leave(int layer) {
  Entry& entry = of(layer);
  SPW_ASSERT(entry.state == LayerState::kResident && layer == swapped_layer(left_));
  ++left_;
  entry.state = LayerState::kSwappedOut;
  entry.device = -1;
}

void LayerTable::reset() {
  begun_ = confirmed_ = left_ = 0;
  for (Entry& entry : entries_) {
    entry.state = entry.host < 0 ? LayerState::kNeverSwapped : LayerState::kSwappedOut;
    if (entry.host >= 0) entry.device = -1;
  }
}

LayerTable::Recut LayerTable::recut(int swapped) {
  SPW_ASSERT(swapped == 0 || (sizes_.gains_with(swapped) && swapped <= sizes_.most));
  SPW_ASSERT(begun_ == 0);
  Recut cut{.blocks_before = blocks(), .blocks = sizes_.blocks_with(swapped)};
  const std::vector<int> wanted = choose_swapped_layers(sizes_.layers, swapped);
  std::vector<int> joining, going;
  for (int layer = 0; layer < sizes_.layers; ++layer) {
    const bool swaps = std::ranges::find(wanted, layer) != wanted.end();
    SPW_ASSERT(state(layer) ==
               (is_swapped(layer) ? LayerState::kSwappedOut : LayerState::kNeverSwapped));
    if (is_swapped(layer) && !swaps) joining.push_back(layer);
    if (!is_swapped(layer) && swaps) going.push_back(layer);
  }
  // There are as many host buffers as layers that may be swapped: if all are taken, a layer that
  // stops being swapped leaves its own to one that begins.
  int free = shared_.empty() ? -1 : shared_.front();
  while (going.size() > free_host_.size()) {
    const int in = joining.back(), out = going.back();
    joining.pop_back();
    going.pop_back();
    const int host = of(in).host, left = of(out).device;
    cut.exchanges.push_back({{in, host, free}, {out, left, host}});
    of(in) = {LayerState::kNeverSwapped, free, -1};
    of(out) = {LayerState::kSwappedOut, -1, host};
    free = left;
  }
  for (const int layer : going) {
    const int host = free_host_.back();
    free_host_.pop_back();
    cut.outs.push_back({layer, of(layer).device, host});
    of(layer) = {LayerState::kSwappedOut, -1, host};
  }

  std::vector<int> at(static_cast<size_t>(buffers()), -1);
  int stay = 0;
  for (int layer = 0; layer < sizes_.layers; ++layer) {
    if (is_swapped(layer)) continue;
    at[static_cast<size_t>(of(layer).device)] = layer;
    ++stay;
  }
  const auto came = static_cast<int>(joining.size());
  const int before = buffers();
  int next = 0;  // the first of the new buffers whose layer was not on the device before
  if (cut.blocks >= cut.blocks_before) {
    // Moves layers to higher addresses, from the last one on: buffer i ends at or before the new
    // buffer i + 1 begins.
    cut.closing = close_up(at, 0, stay);
    const int shift = sizes_.buffers(swapped) - stay;
    SPW_ASSERT(shift > 0 || cut.blocks == cut.blocks_before);
    for (int i = stay - 1; i >= 0; --i)
      cut.moves.push_back({at[static_cast<size_t>(i)], i, i + shift});
  } else {
    // Moves layers to lower addresses, from the first one on: the new buffer i ends before buffer
    // i + 1 begins.
    const int first = before - stay;
    SPW_ASSERT(first > 0);
    cut.closing = close_up(at, first, stay);
    for (int i = 0; i < stay; ++i)
      cut.moves.push_back({at[static_cast<size_t>(first + i)], first + i, i});
    next = stay;
  }
  for (const Copy& move : cut.moves) of(move.layer).device = move.to;
  for (const int layer : joining) {
    cut.ins.push_back({layer, of(layer).host, next});
    free_host_.push_back(of(layer).host);
    of(layer) = {LayerState::kLoading, next++, -1};
  }
  shared_.clear();
  for (int i = 0; swapped > 0 && i < sizes_.spare_with(swapped); ++i) shared_.push_back(next++);
  swapped_ = wanted;
  SPW_ASSERT(cut.blocks < cut.blocks_before || next == sizes_.buffers(swapped) - stay);
  SPW_ASSERT(cut.blocks >= cut.blocks_before ||
             next == came + stay + static_cast<int>(shared_.size()));
  return cut;
}

}  // namespace spillway
