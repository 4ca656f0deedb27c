// SPDX-License-Identifier: Apache-2.0
#include "runtime/kv_swap.h"

#include <algorithm>
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

KvSwap::KvSwap(TransferScheduler& transfers, Device& host, const KvShapes& shapes, int32_t blocks,
               bool overlap)
    : device_(transfers.device()),
      host_(host),
      shapes_(shapes),
      blocks_(blocks),
      overlap_(overlap) {
  SPW_ASSERT(blocks > 0);
  const auto bytes = static_cast<size_t>(shapes.most_layer_block_bytes() * blocks);
  for (Staging& staging : staging_) {
    staging.memory = device_.allocate(bytes, MemoryTag::kStaging);
    staging.loaded = device_.make_event();
    staging.attended = device_.make_event();
    staging.stored = device_.make_event();
  }
  in_ = transfers.open_awaited(TransferUse::kSwappedKv, LinkDirection::kToDevice);
  out_ = transfers.open_awaited(TransferUse::kSwappedKv, LinkDirection::kToHost);
}

KvLayerView KvSwap::view(const Staging& staging, int layer) const {
  const KvGroupShape& shape = shapes_.of_layer(layer);
  KvLayerView view{shape.type, blocks_, shape.kv_heads, shape.head_dim, staging.memory.data(),
                   nullptr};
  if (shape.has_values()) view.v = view.k + shape.plane_block_bytes() * blocks_;
  return view;
}

KvSwap::Planes KvSwap::planes_of(const KvLayerView& view, int layer) const {
  const KvGroupShape& shape = shapes_.of_layer(layer);
  Planes planes{.count = shape.has_values() ? size_t{2} : 1};
  planes.all = {Plane{view.k, shape.plane_block_bytes(KvPart::kKeys)},
                Plane{view.v, shape.plane_block_bytes(KvPart::kValues)}};
  return planes;
}

std::vector<BlockMove> KvSwap::loads_of(int layer, const SwapGroup& group) const {
  std::vector<BlockMove> loads = group.loads;
  if (shapes_.place(layer).owns) return loads;
  const auto has = [](std::span<const BlockMove> moves, const BlockMove& of) {
    return std::ranges::find(moves, of.staging, &BlockMove::staging) != moves.end();
  };
  for (const BlockMove& store : group.stores)
    if (!has(group.loads, store)) loads.push_back(store);
  return loads;
}

std::span<const BlockMove> KvSwap::stores_of(int layer, const SwapGroup& group) const {
  return shapes_.place(layer).owns ? std::span<const BlockMove>(group.stores)
                                   : std::span<const BlockMove>();
}

void KvSwap::add_pieces(const Planes& host, const Planes& device, std::span<const BlockMove> moves,
                        bool to_device, bool keys_only) {
  for (size_t i = 0; i < moves.size();) {
    const HostBlock first = moves[i].home.in<Tier::kHost>();
    size_t end = i + 1;
    while (end < moves.size() &&
           moves[end].home ==
               HostBlock(first.number + static_cast<int32_t>(end - i), first.group) &&
           moves[end].staging == moves[end - 1].staging + 1) {
      ++end;
    }
    for (size_t plane = 0; plane < (keys_only ? 1 : device.count); ++plane) {
      const int64_t block = device.all[plane].block;
      const auto run = static_cast<size_t>(block) * (end - i);
      std::byte* const outside = host.all[plane].bytes + first.number * block;
      std::byte* const inside = device.all[plane].bytes + moves[i].staging * block;
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

std::span<const CopyPiece> KvSwap::bounce_pieces(std::byte* bounce, const Planes& device,
                                                 std::span<const BlockMove> moves, bool to_device) {
  pieces_.clear();
  size_t bytes = 0;
  for (const Plane& plane : device.all) bytes += static_cast<size_t>(plane.block);
  const size_t stride = SpillFile::buffer_bytes(bytes);
  for (size_t i = 0; i < moves.size(); ++i) {
    std::byte* there = bounce + i * stride;
    for (size_t plane = 0; plane < device.count; ++plane) {
      const auto& [memory, block] = device.all[plane];
      std::byte* const here = memory + block * moves[i].staging;
      const auto size = static_cast<size_t>(block);
      pieces_.push_back(to_device ? CopyPiece{here, there, size} : CopyPiece{there, here, size});
      there += size;
    }
  }
  return pieces_;
}

void KvSwap::load(const KvCache& kv, int layer, const SwapGroup& group) {
  SPW_ASSERT(loaded() < kKvStagingBuffers);
  Staging& to = staging(loaded_);
  // Wait for the stores of the item that used this buffer, and of the item before this one (in the
  // other of the two buffers), which may have written what is read now.
  in_->wait(*to.stored);
  in_->wait(*staging(loaded_ + 1).stored);
  const std::vector<BlockMove> loads = loads_of(layer, group);
  if (!overlap_) device_.synchronize();
  const size_t drawn = timeline_ == nullptr ? 0 : timeline_->mark(*in_);
  const double seconds = seconds_of([&] {
    std::span<const CopyPiece> copies;
    const Planes here = planes_of(view(to, layer), layer);
    if (group.tier == Tier::kDisk) {
      std::byte* const buffer = bounce(bounce_in_);
      if (!loads.empty()) {
        // The read runs in this queue, after the earlier copies from the buffer, so it finds the
        // buffer free.
        in_->run_on_host([disk = kv.disk(layer), buffer, ids = disk_ids(kv, layer, loads)] {
          disk->read(ids, buffer);
        });
        disk_pending_ = true;
        stats_.disk_read_bytes += loads.size() * kv.disk(layer)->stride();
      }
      copies = bounce_pieces(buffer, here, loads, true);
    } else {
      pieces_.clear();
      const Planes there = planes_of(kv.host_layer(layer), layer);
      add_pieces(there, here, loads, true);
      add_pieces(there, here, group.key_loads, true, /*keys_only=*/true);
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
  // V in host memory is not written meanwhile: what this step's rows append is in other blocks.
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
  const std::span<const BlockMove> stores = stores_of(layer, group);
  const auto store = [&] {
    std::span<const CopyPiece> copies;
    const Planes here = planes_of(view(item, layer), layer);
    std::byte* buffer = nullptr;
    if (group.tier == Tier::kDisk) {
      buffer = bounce(bounce_out_);
      copies = bounce_pieces(buffer, here, stores, false);
    } else {
      pieces_.clear();
      add_pieces(planes_of(kv.host_layer(layer), layer), here, stores, false);
      copies = pieces_;
    }
    for (const CopyPiece& piece : copies) stats_.to_host_bytes += piece.bytes;
    out_->copy_to_host(copies);
    if (buffer != nullptr && !stores.empty()) {
      out_->run_on_host([disk = kv.disk(layer), buffer, ids = disk_ids(kv, layer, stores)] {
        disk->write(ids, buffer);
      });
      disk_pending_ = true;
      stats_.disk_written_bytes += stores.size() * kv.disk(layer)->stride();
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
      // The step that this failure belongs to has already ended with an error.
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
