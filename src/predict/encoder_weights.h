// SPDX-License-Identifier: Apache-2.0
// The weights of an encoder, in a device's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"
#include "predict/encoder_spec.h"
#include "storage/tensor_index.h"
#include "tensor/tensor_view.h"

namespace spillway {

struct EncoderLinear {
  WeightView weight;  // [out, in]
  WeightView bias;    // [1, out]
};

struct EncoderLayer {
  EncoderLinear query, key, value, attention_out, up, down;
  EncoderLinear attention_norm, out_norm;  // both [1, width]
};

enum class EncoderPrecision : uint8_t {
  kFast,   // matrices and tables in 8 bits (Q8_0) where rows are whole blocks of it
  kExact,  // F32, which keeps every stored value
};

// Holds the weights and owns their memory; the device must outlive it. Immutable and thread-safe.
class EncoderWeights {
 public:
  // Throws kInvalidArgument for tensors that are missing, of the wrong shape or with values that
  // are not finite numbers; messages name folder and tensor.
  EncoderWeights(Device& device, const ModelFiles& files, const EncoderSpec& spec,
                 EncoderPrecision precision);

  WeightView tokens;     // [vocabulary, width]
  WeightView positions;  // [positions, width]
  WeightView types;      // [token types, width], or empty
  EncoderLinear norm;
  std::vector<EncoderLayer> layers;
  std::string digest;  // digest of all bytes that were read

 private:
  std::vector<Buffer> memory_;
};

}  // namespace spillway
