// SPDX-License-Identifier: Apache-2.0
#include "runtime/kv_swap.h"

#include <chrono>
#include <utility>

#include "base/error.h"
#include "device/sparse_attention.h"

namespace spillway {
namespace {

template <class Fn>
double seconds_of(Fn&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

KvSwap::KvSwap(Device& device, Device& host, const KvShapes& shapes, int32_t blocks, bool overlap)
    : device_(device), host_(host), shapes_(shapes), blocks_(blocks), overlap_(overlap) {
  SPW_ASSERT(blocks > 0);
  const auto bytes = static_cast<size_t>(shapes.most_layer_block_bytes() * blocks);
  for (Staging& staging : staging_) {
    staging.memory = device.allocate(bytes, MemoryTag::kStaging);
    staging.loaded = device.make_event();
    staging.attended = device.make_event();
    staging.stored = device.make_event();
  }
  in_ = device.make_stream();
  out_ = device.make_stream();
}

KvLayerView KvSwap::view(const Staging& staging, int layer) const {
  const KvGroupShape& shape = shapes_.of_layer(layer);
  KvLayerView view{shape.type, blocks_, shape.kv_heads, shape.head_dim, staging.memory.data(),
                   nullptr};
  view.v = view.k + view.block_bytes() * blocks_;
  return view;
}

void KvSwap::add_pieces(const KvLayerView& host, const KvLayerView& device,
                        std::span<const BlockMove> moves, bool to_device, bool keys_only) {
  const int64_t bytes = host.block_bytes();
  for (size_t i = 0; i < moves.size();) {
    const HostBlock first = moves[i].home.in<Tier::kHost>();
    size_t end = i + 1;
    while (end < moves.size() &&
           moves[end].home ==
               HostBlock(first.number + static_cast<int32_t>(end - i), first.group) &&
           moves[end].staging == moves[end - 1].staging + 1) {
      ++end;
    }
    const auto run = static_cast<size_t>(bytes) * (end - i);
    const std::pair<std::byte*, std::byte*> planes[] = {{host.k, device.k}, {host.v, device.v}};
    for (const auto& [there, here] : std::span(planes).first(keys_only ? 1 : 2)) {
      std::byte* const outside = there + first.number * bytes;
      std::byte* const inside = here + moves[i].staging * bytes;
      pieces_.push_back(to_device ? CopyPiece{inside, outside, run}
                                  : CopyPiece{outside, inside, run});
    }
    i = end;
  }
}

std::byte* KvSwap::bounce(PinnedBuffer& memory) {
  if (memory.empty()) {
    const size_t stride =
        SpillFile::buffer_bytes(static_cast<size_t>(shapes_.most_layer_block_bytes()));
    memory = PinnedBuffer(host_, device_, stride * static_cast<size_t>(blocks_) + kDirectAlignment,
                          MemoryTag::kStaging);
  }
  return first_aligned(memory.data());
}

std::vector<uint32_t> KvSwap::disk_ids(const KvCache& kv, int layer,
                                       std::span<const BlockMove> moves) {
  std::vector<uint32_t> ids;
  for (const BlockMove& move : moves) ids.push_back(kv.disk_id(layer, move.home.in<Tier::kDisk>()));
  return ids;
}

std::span<const CopyPiece> KvSwap::bounce_pieces(std::byte* bounce, const KvLayerView& device,
                                                 std::span<const BlockMove> moves, bool to_device) {
  pieces_.clear();
  const auto bytes = static_cast<size_t>(device.block_bytes());
  const size_t stride = SpillFile::buffer_bytes(2 * bytes);
  for (size_t i = 0; i < moves.size(); ++i) {
    std::byte* const outside = bounce + i * stride;
    const auto at = static_cast<int64_t>(bytes) * moves[i].staging;
    for (const auto& [there, here] :
         {std::pair(outside, device.k + at), std::pair(outside + bytes, device.v + at)}) {
      pieces_.push_back(to_device ? CopyPiece{here, there, bytes} : CopyPiece{there, here, bytes});
    }
  }
  return pieces_;
}

void KvSwap::load(const KvCache& kv, int layer, const SwapGroup& group) {
  SPW_ASSERT(loaded() < kKvStagingBuffers);
  Staging& to = staging(loaded_);
  // The item before last has been here; and what this one reads may just be on its way out.
  in_->wait(*to.stored);
  in_->wait(*staging(loaded_ + 1).stored);
  if (!overlap_) device_.synchronize();
  const size_t drawn = timeline_ == nullptr ? 0 : timeline_->mark(*in_);
  const double seconds = seconds_of([&] {
    std::span<const CopyPiece> copies;
    if (group.tier == Tier::kDisk) {
      std::byte* const buffer = bounce(bounce_in_);
      if (!group.loads.empty()) {
        // In the queue: the buffer is free when the copies before have left it.
        in_->run_on_host([disk = kv.disk(layer), buffer, ids = disk_ids(kv, layer, group.loads)] {
          disk->read(ids, buffer);
        });
        disk_pending_ = true;
        stats_.disk_read_bytes += group.loads.size() * kv.disk(layer)->stride();
      }
      copies = bounce_pieces(buffer, view(to, layer), group.loads, true);
    } else {
      pieces_.clear();
      add_pieces(kv.host_layer(layer), view(to, layer), group.loads, true);
      add_pieces(kv.host_layer(layer), view(to, layer), group.key_loads, true, /*keys_only=*/true);
      copies = pieces_;
    }
    for (const CopyPiece& piece : copies) stats_.to_device_bytes += piece.bytes;
    in_->copy_to_device(copies);
    if (!overlap_) in_->synchronize();
  });
  if (!overlap_) stats_.load_s += seconds;
  in_->record(*to.loaded);
  if (timeline_ != nullptr)
    timeline_->add(TimelineLane::kToGpu, "KV", layer, drawn, timeline_->mark(*in_));
  ++loaded_;
}

KvLayerView KvSwap::begin(const KvCache& kv, int layer, const SwapGroup& group,
                          const AttentionParams& params, StallClock& stalls) {
  SPW_ASSERT(loaded() > 0);
  const Staging& item = staging(ended_);
  stalls.time(StallCause::kKvLoad, [&] { device_.compute().wait(*item.loaded); });
  KvLayerView pages = view(item, layer);
  pages.layer = layer;
  if (group.key_loads.empty()) return pages;
  // Nobody writes there meanwhile: what this step's rows append is in other blocks.
  const KvLayerView host = kv.host_layer(layer);
  pages.home_v = host.v;
  pages.home_blocks = host.blocks;
  AttentionTraffic read;
  for (const SequenceSpan& span : group.spans) {
    if (!span.home.empty()) read.add({&span, 1}, pages, params, /*layers=*/1);
  }
  stats_.v_read_bytes += read.v_bytes;
  return pages;
}

void KvSwap::end(const KvCache& kv, int layer, const SwapGroup& group, StallClock& stalls) {
  Staging& item = staging(ended_);
  device_.compute().record(*item.attended);
  out_->wait(*item.attended);
  const size_t drawn = timeline_ == nullptr ? 0 : timeline_->mark(*out_);
  const auto store = [&] {
    std::span<const CopyPiece> copies;
    std::byte* buffer = nullptr;
    if (group.tier == Tier::kDisk) {
      buffer = bounce(bounce_out_);
      copies = bounce_pieces(buffer, view(item, layer), group.stores, false);
    } else {
      pieces_.clear();
      add_pieces(kv.host_layer(layer), view(item, layer), group.stores, false);
      copies = pieces_;
    }
    for (const CopyPiece& piece : copies) stats_.to_host_bytes += piece.bytes;
    out_->copy_to_host(copies);
    if (buffer != nullptr && !group.stores.empty()) {
      out_->run_on_host([disk = kv.disk(layer), buffer, ids = disk_ids(kv, layer, group.stores)] {
        disk->write(ids, buffer);
      });
      disk_pending_ = true;
      stats_.disk_written_bytes += group.stores.size() * kv.disk(layer)->stride();
    }
  };
  if (overlap_) {
    store();
  } else {
    device_.synchronize();
    stalls.time(StallCause::kKvStore, [&] {
      stats_.store_s += seconds_of([&] {
        store();
        out_->synchronize();
      });
    });
  }
  out_->record(*item.stored);
  if (timeline_ != nullptr)
    timeline_->add(TimelineLane::kToHost, "KV", layer, drawn, timeline_->mark(*out_));
  ++ended_;
}

void KvSwap::synchronize() {
  if (!std::exchange(disk_pending_, false)) return;
  in_->synchronize();
  out_->synchronize();
}

void KvSwap::wait_for_stores(DeviceStream& stream) {
  for (const Staging& staging : staging_) stream.wait(*staging.stored);
}

void KvSwap::reset() {
  device_.synchronize();
  for (DeviceStream* stream : {in_.get(), out_.get()}) {
    try {
      stream->synchronize();
    } catch (const Error&) {
      // The step that this is about has ended with an error already.
    }
  }
  disk_pending_ = false;
  loaded_ = ended_;
}

KvSwap::Stats& KvSwap::Stats::operator+=(const Stats& other) {
  to_device_bytes += other.to_device_bytes;
  to_host_bytes += other.to_host_bytes;
  v_read_bytes += other.v_read_bytes;
  disk_read_bytes += other.disk_read_bytes;
  disk_written_bytes += other.disk_written_bytes;
  load_s += other.load_s;
  store_s += other.store_s;
  return *this;
}

}  // namespace spillway
