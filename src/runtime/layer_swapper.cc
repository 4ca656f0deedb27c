// SPDX-License-Identifier: Apache-2.0
#include "runtime/layer_swapper.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace spillway {
namespace {

using Blocks = std::vector<DeviceBlock>;

void sort_and_unite(Blocks& blocks) {
  std::ranges::sort(blocks);
  blocks.erase(std::ranges::unique(blocks).begin(), blocks.end());
}

Blocks without(std::span<const DeviceBlock> blocks, std::span<const DeviceBlock> these) {
  Blocks rest;
  std::ranges::set_difference(blocks, these, std::back_inserter(rest));
  return rest;
}

Blocks both(std::span<const DeviceBlock> a, std::span<const DeviceBlock> b) {
  Blocks common;
  std::ranges::set_intersection(a, b, std::back_inserter(common));
  return common;
}

Blocks together(std::span<const DeviceBlock> a, std::span<const DeviceBlock> b) {
  Blocks all;
  std::ranges::set_union(a, b, std::back_inserter(all));
  return all;
}

}  // namespace

LayerSwapper::LayerSwapper(TransferScheduler& transfers, bool overlap)
    : device_(transfers.device()),
      overlap_(overlap),
      in_(transfers.open_awaited(TransferUse::kLayerKv, LinkDirection::kToDevice)),
      out_(transfers.open_awaited(TransferUse::kLayerKv, LinkDirection::kToHost)),
      cut_(device_.make_event()),
      begun_(device_.make_event()),
      ended_{device_.make_event(/*timed=*/true), device_.make_event(/*timed=*/true)} {}

LayerSwapper::LayerCopies& LayerSwapper::copies_of(int layer) {
  LayerCopies& of = layers_.at(static_cast<size_t>(layer));
  if (of.attended != nullptr) return of;
  of.attended = device_.make_event();
  of.stored = device_.make_event();
  for (LayerCopies::Timed& timed : of.timed) {
    for (auto* event : {&timed.begun, &timed.loaded, &timed.waits, &timed.waited})
      *event = device_.make_event(/*timed=*/true);
  }
  return of;
}

void LayerSwapper::add_pieces(const KvGroupCache& kv, const KvLayerView& from,
                              const KvLayerView& to, std::span<const DeviceBlock> blocks,
                              std::span<const KvGroupCache::BlockCopy> copies) {
  const auto there = kv.planes_of(from), here = kv.planes_of(to);
  const auto source_of = [&](DeviceBlock block) {
    const auto found = std::ranges::find(copies, block, &KvGroupCache::BlockCopy::to);
    return found == copies.end() ? block.number : found->from.number;
  };
  for (size_t i = 0; i < blocks.size();) {
    const int32_t first = blocks[i].number, source = source_of(blocks[i]);
    int32_t run = 1;
    while (++i < blocks.size() && blocks[i].number == first + run &&
           source_of(blocks[i]) == source + run)
      ++run;
    for (size_t plane = 0; plane < here.size(); ++plane) {
      const size_t page = here[plane].page;
      pieces_.push_back({here[plane].bytes + static_cast<size_t>(first) * page,
                         there[plane].bytes + static_cast<size_t>(source) * page,
                         static_cast<size_t>(run) * page});
    }
  }
}

uint64_t LayerSwapper::send(DeviceStream& stream, bool to_device, int layer) {
  uint64_t bytes = 0;
  for (const CopyPiece& piece : pieces_) bytes += piece.bytes;
  if (bytes > 0) {
    const auto lane = to_device ? TimelineLane::kToGpu : TimelineLane::kToHost;
    drawn(timeline_, stream, lane, "KV of the layer", layer,
          [&] { to_device ? stream.copy_to_device(pieces_) : stream.copy_to_host(pieces_); });
  }
  pieces_.clear();
  return bytes;
}

void LayerSwapper::begin_step(KvGroupCache& kv, int group,
                              std::span<const StepSequence> sequences) {
  collect_times();
  read_.clear();
  written_.clear();
  copies_ = kv.take_copies();
  for (const StepSequence& sequence : sequences) {
    const int64_t end = sequence.start + static_cast<int64_t>(sequence.tokens.size());
    for (int64_t i = 0; i < blocks_for_tokens(end); ++i) {
      const BlockId id = sequence.table(group)[static_cast<size_t>(i)];
      if (id.tier != Tier::kDevice || id.is_released()) continue;
      const DeviceBlock block = id.in<Tier::kDevice>();
      if (i * kKvBlockTokens < sequence.start) read_.push_back(block);
      if ((i + 1) * kKvBlockTokens > sequence.start) written_.push_back(block);
    }
  }
  // A block that a step begins with as a copy must be stored to host memory in that step, even if
  // it is a whole block, to which nothing is appended.
  for (const KvGroupCache::BlockCopy& copy : copies_)
    if (copy.from != copy.to) written_.push_back(copy.to);
  sort_and_unite(read_);
  sort_and_unite(written_);
  for (const auto* blocks : {&read_, &written_})
    if (!blocks->empty()) used_ = std::max(used_, blocks->back().number + 1);
  const LayerTable& layers = kv.layers();
  if (layers.swapped_count() == 0 || (read_.empty() && written_.empty())) return;
  layers_.resize(static_cast<size_t>(kv.shape().layers));
  // Loads wait for work that is already in the compute queue, since it may have filled blocks.
  device_.compute().record(*begun_);
  in_->wait(*begun_);
  // Layers loaded ahead of the step have the blocks that the previous step used.
  missing_ = without(read_, ahead_);
  for (const KvGroupCache::BlockCopy& copy : copies_) missing_.push_back(copy.to);
  sort_and_unite(missing_);
}

void LayerSwapper::load(KvGroupCache& kv, int layer) {
  if (kv.layers().state(layer) == LayerState::kLoading) return complete_load(kv, layer);
  if (overlap_) return begin_load(kv, layer, left_);
  device_.compute().record(*begun_);
  in_->wait(*begun_);
  if (left_ >= 0) in_->wait(*copies_of(left_).stored);
  begin_load(kv, layer, /*left=*/-1);
}

void LayerSwapper::complete_load(const KvGroupCache& kv, int layer) {
  if (missing_.empty()) return;
  LayerCopies& of = copies_of(layer);
  const LayerTable& layers = kv.layers();
  add_pieces(kv, kv.host_buffer(layers.host_buffer(layer)), kv.layer(layer), missing_, copies_);
  stats_.to_device_bytes += send(*in_, /*to_device=*/true, layer);
  in_->record(*of.timed[of.current].loaded);
  of.timed[of.current].bytes = 0;  // its events now span more than one copy
}

// Loads the layer to the buffer that layer `left` had in this step; -1: no layer had it.
void LayerSwapper::begin_load(KvGroupCache& kv, int layer, int left) {
  LayerTable& layers = kv.layers();
  const bool is_ahead = layer <= left;
  layers.begin_load(layer);
  LayerCopies& of = copies_of(layer);
  of.current = 1 - of.current;
  LayerCopies::Timed& timed = of.timed[of.current];
  in_->wait(*of.stored);
  if (left >= 0) in_->wait(*copies_of(left).attended);
  in_->record(*timed.begun);
  timed.ahead_of = is_ahead ? ending_ : -1;
  const KvLayerView from = kv.host_buffer(layers.host_buffer(layer)), to = kv.layer(layer);
  // A block of these may be given to another sequence before this load has read it, and be filled
  // from the store in host memory meanwhile. Such a block is loaded again when the step begins
  // (reload()).
  if (is_ahead) ahead_ = together(read_, written_);
  const std::span<const DeviceBlock> wanted = is_ahead ? ahead_ : read_;
  const std::span<const KvGroupCache::BlockCopy> copies =
      is_ahead ? std::span<const KvGroupCache::BlockCopy>() : copies_;
  // Blocks that layer `left` has yet to store come last.
  if (left < 0) {
    add_pieces(kv, from, to, wanted, copies);
    timed.bytes = send(*in_, /*to_device=*/true, layer);
  } else {
    add_pieces(kv, from, to, without(wanted, written_), copies);
    timed.bytes = send(*in_, /*to_device=*/true, layer);
    in_->wait(*copies_of(left).stored);
    add_pieces(kv, from, to, both(wanted, written_), copies);
    timed.bytes += send(*in_, /*to_device=*/true, layer);
  }
  stats_.to_device_bytes += timed.bytes;
  in_->record(*timed.loaded);
  ++stats_.loads;
}

void LayerSwapper::wait_for(KvGroupCache& kv, int layer) {
  DeviceStream& compute = device_.compute();
  const LayerCopies& of = copies_of(layer);
  const LayerCopies::Timed& timed = of.timed[of.current];
  compute.record(*timed.waits);
  drawn(timeline_, compute, TimelineLane::kGpuWaits, "KV of the layer", layer,
        [&] { compute.wait(*timed.loaded); });
  compute.record(*timed.waited);
  kv.layers().confirm(layer);
  timed_.emplace_back(layer, of.current);
}

void LayerSwapper::store(const KvGroupCache& kv, int layer) {
  const LayerCopies& of = copies_of(layer);
  device_.compute().record(*of.attended);
  out_->wait(*of.attended);
  add_pieces(kv, kv.layer(layer), kv.host_buffer(kv.layers().host_buffer(layer)), written_);
  stats_.to_host_bytes += send(*out_, /*to_device=*/false, layer);
  out_->record(*of.stored);
}

void LayerSwapper::release(KvGroupCache& kv, int layer) {
  kv.layers().leave(layer);
  left_ = layer;
}

void LayerSwapper::end_step() {
  if (left_ < 0) return;
  device_.compute().record(*ended_[std::exchange(ending_, 1 - ending_)]);
  device_.compute().wait(*copies_of(std::exchange(left_, -1)).stored);
}

void LayerSwapper::collect_times() {
  if (timed_.empty()) return;
  device_.synchronize();
  for (const auto& [layer, which] : timed_) {
    const LayerCopies::Timed& timed = copies_of(layer).timed[which];
    if (timed.loaded->seconds_after(*timed.waits) > 0) ++stats_.waits;
    stats_.waited_s += timed.waited->seconds_after(*timed.waits);
    if (timed.bytes == 0) continue;
    stats_.copied_s += timed.loaded->seconds_after(*timed.begun);
    stats_.copied_bytes += timed.bytes;
    if (timed.ahead_of < 0) continue;
    ++stats_.ahead;
    if (ended_[timed.ahead_of]->seconds_after(*timed.loaded) > 0) ++stats_.early;
  }
  timed_.clear();
}

void LayerSwapper::reset(KvGroupCache& kv) {
  device_.synchronize();
  for (DeviceStream* stream : {in_.get(), out_.get()}) {
    try {
      stream->synchronize();
    } catch (const Error&) {
      // The step that this failure belongs to has already ended with an error.
    }
  }
  left_ = -1;
  pieces_.clear();
  timed_.clear();
  ahead_.clear();
  kv.take_copies();
  kv.layers().reset();
}

void LayerSwapper::copy_buffer(const KvGroupCache& kv, const KvLayerView& from,
                               const KvLayerView& to, bool to_device) {
  const auto there = kv.planes_of(from), here = kv.planes_of(to);
  for (size_t plane = 0; plane < here.size(); ++plane)
    pieces_.push_back(
        {here[plane].bytes, there[plane].bytes, here[plane].page * static_cast<size_t>(used_)});
  stats_.moved_bytes += send(to_device ? *in_ : *out_, to_device, /*layer=*/-1);
}

void LayerSwapper::change(KvGroupCache& kv, int swapped,
                          std::span<const KvGroupCache::BlockCopy> moves) {
  if (swapped == kv.layers().swapped_count()) return;
  collect_times();
  reset(kv);
  try {
    kv.move_blocks(device_, moves);
    if (!moves.empty()) device_.synchronize();  // the copies below run in other queues
    const LayerTable::Recut cut = kv.recut(swapped);
    used_ = std::min({used_, cut.blocks_before, cut.blocks});
    if (used_ > 0) carry_over(kv, cut);
    for (const LayerTable::Copy& in : cut.ins) kv.layers().confirm(in.layer);
  } catch (...) {
    reset(kv);
    throw;
  }
}

void LayerSwapper::carry_over(const KvGroupCache& kv, const LayerTable::Recut& cut) {
  const auto before = [&](int buffer) { return kv.device_buffer(buffer, cut.blocks_before); };
  const auto now = [&](int buffer) { return kv.device_buffer(buffer, cut.blocks); };
  for (const auto& [in, out] : cut.exchanges) {
    copy_buffer(kv, kv.host_buffer(in.from), before(in.to), /*to_device=*/true);
    in_->synchronize();
    copy_buffer(kv, before(out.from), kv.host_buffer(out.to), /*to_device=*/false);
    out_->synchronize();
  }
  for (const LayerTable::Copy& out : cut.outs)
    copy_buffer(kv, before(out.from), kv.host_buffer(out.to), /*to_device=*/false);
  out_->synchronize();
  const auto move = [&](const KvLayerView& from, const KvLayerView& to) {
    const auto there = kv.planes_of(from), here = kv.planes_of(to);
    for (size_t plane = 0; plane < here.size(); ++plane) {
      const auto words = static_cast<int64_t>(here[plane].page / sizeof(float));
      device_.ops().copy({DType::kF32, used_, words, words, there[plane].bytes},
                         {DType::kF32, used_, words, words, here[plane].bytes});
    }
  };
  for (const LayerTable::Copy& copy : cut.closing) move(before(copy.from), before(copy.to));
  for (const LayerTable::Copy& copy : cut.moves) move(before(copy.from), now(copy.to));
  // Ops queued from now on find the layers that come to the device.
  device_.compute().record(*cut_);
  in_->wait(*cut_);
  for (const LayerTable::Copy& in : cut.ins)
    copy_buffer(kv, kv.host_buffer(in.from), now(in.to), /*to_device=*/true);
  in_->record(*cut_);
  device_.compute().wait(*cut_);
}

LayerSwapper::Stats LayerSwapper::take_stats() {
  collect_times();
  return std::exchange(stats_, {});
}

LayerSwapper::Stats& LayerSwapper::Stats::operator+=(const Stats& other) {
  to_device_bytes += other.to_device_bytes;
  to_host_bytes += other.to_host_bytes;
  moved_bytes += other.moved_bytes;
  loads += other.loads;
  ahead += other.ahead;
  early += other.early;
  waits += other.waits;
  waited_s += other.waited_s;
  copied_s += other.copied_s;
  copied_bytes += other.copied_bytes;
  return *this;
}

}  // namespace spillway
