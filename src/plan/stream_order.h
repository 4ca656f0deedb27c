// SPDX-License-Identifier: Apache-2.0
// How the weights of a step that do not live on the device take part in it: what comes there, in
// which pieces and order, and which rows the CPU multiplies where they lie (HeteGen, 4.2).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/small_vector.h"
#include "base/tier.h"
#include "model/model.h"
#include "plan/device_traits.h"
#include "plan/plan.h"

namespace spillway {

struct MatrixRows {
  int matrix = 0;  // of the op's
  int64_t first = 0, count = 0;
  size_t weight = 0;  // its number in Model::weights
};

// Rows of the matrices of an op. Plans are searched by the thousand, and have thousands of these:
// for as many matrices as most ops have, nothing is allocated.
using OpRows = SmallVector<MatrixRows, 3>;

// A linear op some of whose matrices are not on the device. Each of their rows is either the CPU's
// or comes.
struct StreamedLinear {
  int layer = 0;    // as many as there are: the head
  int op = 0;       // in its list as devices run it (LoweredLayer::ops)
  int spec_op = 0;  // in its list as the model has it: that weights are found by
  std::string_view name = {};
  OpRows on_cpu = {};  // the first ones of the op
  std::vector<OpRows> pieces = {};
};

struct StreamOrder {
  std::vector<StreamedLinear> linears = {};  // in the order of their use
  int layers = 0;                            // of the model
  bool by_layers = false;                    // as below

  // Of each piece: the number of the slotful that it comes with. One slotful is left for the next
  // but one.
  std::vector<int> slotfuls() const;
  bool uses_cpu() const;
};

// Where one micro-batch goes through a layer, a slot takes a piece of kStreamPieceBytes at most:
// what has come is computed while the next one does, and little memory is needed. Where several
// take their turn, a layer has to stay until the last one is through: a slot takes all of it, its
// pieces are whole ops; the head is cut so that it never needs larger slots than layers do.
inline constexpr uint64_t kStreamPieceBytes = uint64_t{32} << 20;
enum class SlotContent : uint8_t { kPieces, kLayers };
// Slots in the device's memory: of one all is there and computes, the others fill.
inline constexpr int kPieceSlots = 6, kLayerSlots = 2;

struct StreamCut {
  SlotContent slots = SlotContent::kLayers;
  CpuLinearShare cpu = {};
  uint64_t piece_bytes = kStreamPieceBytes;
};
// `homes`: of each of model.weights. The CPU multiplies its share of the bytes of each group, cut
// at a multiple of 16 rows: q, k and v are cut as one matrix, gate and up at the same rows. It has
// no part in a group whose matrices are not all in host memory, or all on disk.
StreamOrder stream_order(const Model& model, std::span<const Tier> homes, const StreamCut& cut);
// By the shares of a plan: one for each, and the last without the CPU.
std::vector<StreamOrder> stream_orders(const Model& model, std::span<const Tier> homes,
                                       const std::vector<CpuLinearShare>& shares, SlotContent slots,
                                       uint64_t piece_bytes = kStreamPieceBytes);
// The number of that for a step whose largest micro-batch has so many tokens.
size_t order_for(const std::vector<CpuLinearShare>& shares, int64_t tokens);
// What a slot takes of the device's memory.
uint64_t slot_bytes(const DeviceTraits& traits, const Model& model, std::span<const Tier> homes,
                    std::span<const StreamOrder> orders);
// What a buffer takes into which the CPU's rows of an op come from disk (runtime/disk_rows.h); 0
// where there are none.
uint64_t disk_rows_bytes(const DeviceTraits& traits, const Model& model,
                         std::span<const Tier> homes, std::span<const StreamOrder> orders);
inline constexpr int kDiskRowsBuffers = 2;
// Staging buffers through which weights come from disk to a device with memory of its own: where
// others come from host memory in between, as many as hold the largest op that is on disk, so that
// it is read meanwhile; within kMostReadAheadBytes.
inline constexpr uint64_t kMostReadAheadBytes = uint64_t{512} << 20;
int stream_stages(const Model& model, std::span<const Tier> homes,
                  std::span<const StreamOrder> orders);
// How many slots a run has that streams by these orders.
int slot_count(SlotContent content, std::span<const StreamOrder> orders);

// Of steps by an order, which have up to so many tokens: most rows that the CPU has of a linear op;
// of an MLP with a gate twice as many.
struct CpuRows {
  int64_t tokens = 0, rows = 0;
};
// Of orders made by stream_orders(), those in which it has some.
std::vector<CpuRows> cpu_rows(std::span<const StreamOrder* const> orders,
                              const std::vector<CpuLinearShare>& shares, int64_t most_tokens);

}  // namespace spillway
