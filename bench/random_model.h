// SPDX-License-Identifier: Apache-2.0
// Makes GGUF files of any shape and type with random weights, for measuring this engine and others
// on the same bytes.
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

// Chooses the type of each matrix. "q4_0" is all Q4_0; "q4_k_m" and "q5_k_m" give some matrices
// more bits, as in files of that name made by llama.cpp.
struct RandomMix {
  DType main = DType::kF16;
  bool more_bits_for_some = false;

  // Returns the type of one matrix. If its rows are not whole blocks of the main type, it is a type
  // with about as many bits in blocks of 32, or F16 if that does not fit either.
  DType of(const WeightSlot& slot, const TransformerShape& shape) const;
};
// Accepts the name of any DType, q4_k_m or q5_k_m, in any case.
[[nodiscard]] std::optional<RandomMix> try_random_mix(std::string_view name);

// Returns a writer for a model: weights whose deviation keeps activations at the same scale from
// layer to layer, norms of ones, and an invented SentencePiece vocabulary of the spec's size. The
// same arguments give the same bytes. Weights are made while writing, a few MiB at a time;
// `progress` gets the bytes done and the total. Throws kUnsupported for families other than llama.
GgufWriter random_model(const TransformerShape& shape, const RandomMix& mix,
                        std::function<void(uint64_t done, uint64_t total)> progress = {});

}  // namespace spillway
