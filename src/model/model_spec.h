// SPDX-License-Identifier: Apache-2.0
// What a network is: sizes and flags, from which the one decoder and the planner work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/op_kinds.h"

namespace spillway {

enum class PositionKind : uint8_t {
  kRope,     // q and k are rotated
  kLearned,  // a table is added to the token embedding
  kAlibi,    // a bias on the scores (shapes for planning only)
};
enum class NormPlace : uint8_t {
  kPre,   // x + f(norm(x))
  kPost,  // norm(x + f(x))
};

struct RopeSpec {
  RopeStyle style = RopeStyle::kHalves;
  int dims = 0;  // leading elements of a head that are rotated; even
  double theta = 10000;
  // One per rotated pair, scaling (linear, Llama 3) already applied. Filled in by the family.
  std::vector<float> inverse_frequencies;
};

struct ModelSpec {
  std::string family;  // "llama", "opt"
  std::string name;    // what a person calls it

  int64_t vocab_size = 0;
  int64_t hidden = 0;
  int64_t embedding_dim = 0;  // width of the token embedding; differs from hidden in opt-350m
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int64_t ffn = 0;
  int64_t max_context = 0;
  int sliding_window = 0;  // 0 = none

  NormKind norm = NormKind::kRms;
  NormPlace norm_place = NormPlace::kPre;
  float norm_eps = 1e-5F;
  bool norm_affine = true;  // norms have weights
  bool norm_bias = false;
  bool final_norm = true;

  PositionKind position = PositionKind::kRope;
  int position_offset = 0;  // added to a position to index the learned table
  RopeSpec rope;

  ActivationKind activation = ActivationKind::kSilu;
  bool gated_mlp = true;
  bool parallel_residual =
      false;  // attention and MLP read the same norm (shapes for planning only)
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool tied_head = false;

  // False for shapes the planner knows but the decoder does not run.
  bool executable = true;

  int64_t q_dim() const { return int64_t{heads} * head_dim; }
  int64_t kv_dim() const { return int64_t{kv_heads} * head_dim; }
  int64_t learned_positions() const { return max_context + position_offset; }
};

// Throws kInvalidArgument naming the first field that makes no sense (zero, negative, too large,
// not divisible). After it every size fits its arithmetic: no product of two fields overflows.
void validate(const ModelSpec& spec, const std::string& where);

// 1 / theta^(2i / dims) for each rotated pair.
std::vector<double> base_inverse_frequencies(const RopeSpec& rope);

// By what each of the plain frequencies was divided.
std::vector<float> rope_divisors(const RopeSpec& rope);
enum class RopeScalingKind : uint8_t {
  kNone,
  kLinear,  // all divisors are the same
  kUneven,  // Llama 3's
};
RopeScalingKind rope_scaling_kind(const RopeSpec& rope);

// Llama 3's scaling: long wavelengths are stretched by `factor`, short ones kept, those between
// blended.
struct Llama3RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_context = 8192;
};
void apply_llama3_scaling(const Llama3RopeScaling& scaling,
                          std::vector<double>& inverse_frequencies);

}  // namespace spillway
