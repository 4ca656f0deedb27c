// SPDX-License-Identifier: Apache-2.0
// What a device computes per second: products by type and tokens, attention, and what an op takes
// however small.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "measure/measure_pace.h"
#include "plan/hardware.h"

namespace spillway {

struct ProcessorSizes {
  int64_t matrix_side = 0;    // of the square matrix; others are as wide and 2.75 times as long
  uint64_t rotate_bytes = 0;  // of copies of a matrix, taken in turn so that no cache holds them
  uint64_t kv_bytes = 0;      // of the F16 KV that is attended to
  int64_t prompt_tokens = 0;  // of one prompt
};
// Which suit a device, within a part of its memory.
ProcessorSizes sizes_for(const Device& device);

// Decode attention of many sequences over KV of a type, of which more is there than caches hold.
// Owns memory of the device, which must outlive it.
class AttentionLoad {
 public:
  // `most_queries`: heads that share a key's, at most.
  AttentionLoad(Device& device, KvType type, uint64_t f16_bytes, int most_queries = 1);

  // With so many heads for each of the keys': the same bytes with more arithmetic.
  void run(int queries = 1);
  double bytes() const { return bytes_; }  // of KV, that one run reads

 private:
  Device& device_;
  Buffer planes_, rows_;
  std::vector<int32_t> blocks_;
  std::vector<SequenceSpan> spans_;
  KvLayerView kv_;
  Activations q_, out_;  // [sequences, most_queries * kv_heads * head_dim]
  double bytes_ = 0;
};

// `share` of the pace's time; more where that is too little for the least that is needed.
Processor measure_processor(Device& device, const ProcessorSizes& sizes, MeasurePace& pace,
                            double share);

}  // namespace spillway
