// SPDX-License-Identifier: Apache-2.0
#include "runtime/kv_swap.h"

#include <chrono>

#include "base/error.h"

namespace spillway {
namespace {

template <class Fn>
double seconds_of(Fn&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

uint64_t KvSwap::device_bytes(const KvShape& shape, int32_t blocks) {
  return static_cast<uint64_t>(shape.block_bytes() / shape.layers) * static_cast<uint64_t>(blocks);
}

KvSwap::KvSwap(Device& device, const KvShape& shape, int32_t blocks, bool overlap)
    : device_(device), shape_(shape), blocks_(blocks), overlap_(overlap) {
  SPW_ASSERT(blocks > 0);
  for (Staging& staging : staging_) {
    staging.memory = device.allocate(device_bytes(shape, blocks), MemoryTag::kStaging);
    staging.loaded = device.make_event();
    staging.attended = device.make_event();
    staging.stored = device.make_event();
  }
  in_ = device.make_stream();
  out_ = device.make_stream();
}

KvLayerView KvSwap::view(const Staging& staging) const {
  KvLayerView view{shape_.type,           blocks_, shape_.kv_heads, shape_.head_dim,
                   staging.memory.data(), nullptr};
  view.v = view.k + view.block_bytes() * blocks_;
  return view;
}

std::span<const CopyPiece> KvSwap::pieces(const KvLayerView& host, const KvLayerView& device,
                                          std::span<const BlockMove> moves, bool to_device) {
  pieces_.clear();
  const int64_t bytes = host.block_bytes();
  for (size_t i = 0; i < moves.size();) {
    size_t end = i + 1;
    while (end < moves.size() && moves[end].host == moves[end - 1].host + 1 &&
           moves[end].staging == moves[end - 1].staging + 1) {
      ++end;
    }
    const auto run = static_cast<size_t>(bytes) * (end - i);
    for (const auto& [there, here] : {std::pair(host.k, device.k), std::pair(host.v, device.v)}) {
      std::byte* const outside = there + moves[i].host * bytes;
      std::byte* const inside = here + moves[i].staging * bytes;
      pieces_.push_back(to_device ? CopyPiece{inside, outside, run}
                                  : CopyPiece{outside, inside, run});
    }
    i = end;
  }
  return pieces_;
}

void KvSwap::load(const KvLayerView& host, std::span<const BlockMove> moves) {
  SPW_ASSERT(loaded() < kBuffers);
  Staging& to = staging(loaded_);
  const auto copies = pieces(host, view(to), moves, true);
  for (const CopyPiece& piece : copies) stats_.to_device_bytes += piece.bytes;
  // The item before last has been here; and what this one reads may just be on its way out.
  in_->wait(*to.stored);
  in_->wait(*staging(loaded_ + 1).stored);
  if (overlap_) {
    in_->copy_to_device(copies);
  } else {
    device_.synchronize();
    stats_.load_s += seconds_of([&] {
      in_->copy_to_device(copies);
      in_->synchronize();
    });
  }
  in_->record(*to.loaded);
  ++loaded_;
}

KvLayerView KvSwap::begin(StallClock& stalls) {
  SPW_ASSERT(loaded() > 0);
  const Staging& item = staging(ended_);
  stalls.time(StallCause::kKvLoad, [&] { device_.compute().wait(*item.loaded); });
  return view(item);
}

void KvSwap::end(const KvLayerView& host, std::span<const BlockMove> moves, StallClock& stalls) {
  Staging& item = staging(ended_);
  device_.compute().record(*item.attended);
  out_->wait(*item.attended);
  const auto copies = pieces(host, view(item), moves, false);
  for (const CopyPiece& piece : copies) stats_.to_host_bytes += piece.bytes;
  if (overlap_) {
    out_->copy_to_host(copies);
  } else {
    device_.synchronize();
    stalls.time(StallCause::kKvStore, [&] {
      stats_.store_s += seconds_of([&] {
        out_->copy_to_host(copies);
        out_->synchronize();
      });
    });
  }
  out_->record(*item.stored);
  ++ended_;
}

void KvSwap::wait_for_stores(DeviceStream& stream) {
  for (const Staging& staging : staging_) stream.wait(*staging.stored);
}

void KvSwap::reset() {
  device_.synchronize();
  in_->synchronize();
  out_->synchronize();
  loaded_ = ended_;
}

}  // namespace spillway
