// SPDX-License-Identifier: Apache-2.0
// Describes the shape of a KV cache: of one group of layers, and of all groups of a model.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tensor/kv_format.h"
#include "tensor/state_rule.h"

namespace spillway {

// One kind of row that a group stores for each token in each layer, for example its keys.
struct KvPlaneShape {
  int heads = 0;
  int width = 0;  // elements of a head
  KvType type = KvType::kF16;
  bool operator==(const KvPlaneShape&) const = default;
};

// A group of layers with state of the same kind and shape (model/state_group.h).
struct KvGroupShape {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  KvType type = KvType::kF16;
  StateRule rule = {};
  // The plane of values, if it differs from that of keys. If it has no heads, there are no values.
  std::optional<KvPlaneShape> values = {};

  constexpr KvPlaneShape plane(KvPart part) const {
    if (part == KvPart::kValues && values) return *values;
    return {kv_heads, head_dim, type};
  }
  constexpr bool has_values() const { return plane(KvPart::kValues).heads > 0; }
  // The bytes of a block of one plane, and of all planes, in one layer. In a recurrent group a
  // block is one F32 state.
  constexpr int64_t plane_block_bytes(KvPart part = KvPart::kKeys) const {
    const KvPlaneShape of = plane(part);
    if (rule.kind == StateKind::kRecurrent)
      return int64_t{of.heads} * of.width * static_cast<int64_t>(sizeof(float));
    return of.heads * kv_page_bytes(of.type, of.width);
  }
  constexpr int64_t layer_block_bytes() const {
    return plane_block_bytes(KvPart::kKeys) + plane_block_bytes(KvPart::kValues);
  }
  // The bytes of a block in all layers.
  constexpr int64_t block_bytes() const { return layers * layer_block_bytes(); }
  bool operator==(const KvGroupShape&) const = default;
};

// The place of the KV of a layer: its index among the layers of a group.
struct KvLayerPlace {
  int group = -1;  // -1: the layer has no KV
  int index = 0;
  bool owns = true;  // if false, it reads the KV of an earlier layer and writes nothing
  bool operator==(const KvLayerPlace&) const = default;
};

// All groups of a model, and the place of each layer's KV. Several layers may have the same place:
// then some read what an earlier one wrote.
class KvShapes {
 public:
  KvShapes() = default;
  // Makes a model in which all layers are one group.
  KvShapes(const KvGroupShape& only)
      : groups_{only} {  // NOLINT: one group is a model's KvShapes, too
    for (int layer = 0; layer < only.layers; ++layer) layers_.push_back({0, layer});
  }
  KvShapes(std::vector<KvGroupShape> groups, std::vector<KvLayerPlace> layers)
      : groups_(std::move(groups)), layers_(std::move(layers)) {}

  int groups() const { return static_cast<int>(groups_.size()); }
  const KvGroupShape& group(int number) const { return groups_.at(static_cast<size_t>(number)); }
  int layers() const { return static_cast<int>(layers_.size()); }
  const KvLayerPlace& place(int layer) const { return layers_.at(static_cast<size_t>(layer)); }
  const KvGroupShape& of_layer(int layer) const { return group(place(layer).group); }
  // The bytes of a block of tokens in all layers, as long as no group has released it.
  int64_t block_bytes() const {
    int64_t bytes = 0;
    for (const KvGroupShape& group : groups_) bytes += group.block_bytes();
    return bytes;
  }
  // The number of layers that read the KV of a group: those that own it, and those that share it.
  int readers(int group) const {
    return static_cast<int>(std::ranges::count(layers_, group, &KvLayerPlace::group));
  }
  // The most bytes that a block of any group takes in one layer.
  int64_t most_layer_block_bytes() const {
    int64_t most = 0;
    for (const KvGroupShape& group : groups_) most = std::max(most, group.layer_block_bytes());
    return most;
  }
  // The bytes that a layer reads for each of the last `keys` tokens, on average over the layers.
  // Layers with a window read nothing before it.
  double mean_token_bytes(double keys) const {
    double bytes = 0;
    for (int i = 0; i < groups(); ++i) {
      const KvGroupShape& group = this->group(i);
      const double seen = keys_seen(i, keys);
      const double share = seen < keys ? seen / keys : 1;
      bytes += static_cast<double>(readers(i) * group.layer_block_bytes()) / kKvBlockTokens * share;
    }
    return bytes / static_cast<double>(std::max(1, layers()));
  }
  // The keys that a token attends to, on average over the layers that keep any. `keys` is their
  // number in a layer that keeps all.
  double mean_keys(double keys) const {
    double missing = 0, all = 0;
    for (int i = 0; i < groups(); ++i) {
      missing += readers(i) * (keys - keys_seen(i, keys));
      all += readers(i);
    }
    return missing > 0 ? keys - missing / all : keys;
  }
  // The bytes that a layer writes for a new token, on average over the layers.
  double mean_new_token_bytes() const {
    return static_cast<double>(block_bytes()) / kKvBlockTokens /
           static_cast<double>(std::max(1, layers()));
  }
  // The group whose layers may be swapped (their KV is then loaded from host memory in each step):
  // the one with the most bytes per token among those that keep all tokens, or the first group if
  // none does.
  int swapped_group() const {
    int found = 0;
    for (int i = 0; i < groups(); ++i) {
      const KvGroupShape &of = group(i), &before = group(found);
      const bool is_full = of.rule.kind == StateKind::kFull;
      const bool was_full = before.rule.kind == StateKind::kFull;
      if (is_full && (!was_full || of.block_bytes() > before.block_bytes())) found = i;
    }
    return found;
  }
  bool operator==(const KvShapes&) const = default;

 private:
  double keys_seen(int number, double keys) const {
    const StateRule& rule = group(number).rule;
    return rule.keeps_all() ? keys : std::min(keys, static_cast<double>(rule.window));
  }

  std::vector<KvGroupShape> groups_;
  std::vector<KvLayerPlace> layers_;  // [layer of the model]
};

}  // namespace spillway
