// SPDX-License-Identifier: Apache-2.0
// Describes a network: its sizes, and a list of ops for each layer, from which the one decoder and
// the planner work.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/layer_spec.h"
#include "model/lowered_layer.h"
#include "model/rope_spec.h"
#include "model/state_group.h"

namespace spillway {

struct ModelSpec {
  std::string family;  // "llama", "opt"
  std::string name;    // a name for people

  int64_t vocab_size = 0;
  int64_t hidden = 0;         // columns of the residual stream
  int64_t embedding_dim = 0;  // width of the token embedding; differs from hidden in opt-350m
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int64_t ffn = 0;
  int64_t max_context = 0;

  // `embedding` goes from tokens to the residual stream, and `head` from rows of it to logits. A
  // part of a model may lack one of them (model_part.h): that list has no ops.
  std::shared_ptr<const LayerSpec> embedding, head;
  std::vector<std::shared_ptr<const LayerSpec>> layers;  // equal ones are shared
  std::vector<RopeSpec> ropes;  // the distinct ones; each has one buffer of angles

  std::shared_ptr<const LoweredModel> lowered;  // these lists in the form that devices run
  StateGroups states;                           // what these layers keep of a sequence

  // False for shapes that the planner knows but the decoder does not run.
  bool executable = true;

  int layer_count() const { return static_cast<int>(layers.size()); }
  const LayerSpec& layer(int number) const { return *layers[static_cast<size_t>(number)]; }
  int64_t q_dim() const { return int64_t{heads} * head_dim; }
  int64_t kv_dim() const { return int64_t{kv_heads} * head_dim; }
  // Columns of the widest input that a matrix of a layer has.
  int64_t widest_input() const;
  // Whether the head is the token embedding.
  bool has_tied_head() const;
};

// Checks the lists, lowers them and groups the layers' state. Throws kInternal if a list does not
// validate (layer_spec.h, state_group.h).
void finish_lists(ModelSpec& spec);

}  // namespace spillway
