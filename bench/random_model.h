// SPDX-License-Identifier: Apache-2.0
// GGUF files of any shape and type with weights nobody trained, for measuring this engine and
// others on the same bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "model/transformer_shape.h"
#include "model/weight_slots.h"
#include "storage/gguf_writer.h"
#include "tensor/dtype.h"

namespace spillway {

// Which type each matrix is stored in. "q4_0" is all Q4_0; "q4_k_m" and "q5_k_m" give some matrices
// more bits, the way files of that name are made by llama.cpp.
struct RandomMix {
  DType main = DType::kF16;
  bool more_bits_for_some = false;

  // The type of one matrix. Where its rows are no whole number of main blocks, a type of blocks of
  // 32 with about as many bits; where that does not fit either, F16.
  DType of(const WeightSlot& slot, const TransformerShape& shape) const;
};
// Any DType, q4_k_m or q5_k_m; case does not matter.
[[nodiscard]] std::optional<RandomMix> try_random_mix(std::string_view name);

// What to write: weights whose spread keeps activations at the same scale from layer to layer,
// norms of ones, and a made-up SentencePiece vocabulary of the spec's size. The same arguments give
// the same bytes. Weights come into being while writing, a few MiB at a time; `progress` is told
// the bytes done and the total. Throws kUnsupported for families other than llama.
GgufWriter random_model(const TransformerShape& shape, const RandomMix& mix,
                        std::function<void(uint64_t done, uint64_t total)> progress = {});

}  // namespace spillway
