// SPDX-License-Identifier: Apache-2.0
// Measures what a device computes per second: products by type and tokens, attention, and the fixed
// time of an op of any size.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "measure/measure_pace.h"
#include "plan/hardware.h"

namespace spillway {

struct ProcessorSizes {
  int64_t matrix_side = 0;    // of the square matrix; others are as wide and 2.75 times as long
  uint64_t rotate_bytes = 0;  // of a matrix's copies, used in rotation so that no cache holds them
  uint64_t kv_bytes = 0;      // size of the KV that is attended to, if it were F16
  int64_t prompt_tokens = 0;  // length of one prompt
};
// Returns sizes that suit a device, within a part of its memory.
ProcessorSizes sizes_for(const Device& device);

// Runs decode attention of many sequences over KV of a type, more of it than caches hold. Owns
// memory of the device, which must outlive it.
class AttentionLoad {
 public:
  // `most_queries` is the largest number of query heads per KV head.
  AttentionLoad(Device& device, KvType type, uint64_t f16_bytes, int most_queries = 1);

  // Runs with `queries` query heads per KV head: more of them read the same bytes with more
  // arithmetic.
  void run(int queries = 1);
  double bytes() const { return bytes_; }  // of KV that one run reads

 private:
  Device& device_;
  Buffer planes_, rows_;
  std::vector<int32_t> blocks_;
  std::vector<SequenceSpan> spans_;
  KvLayerView kv_;
  Activations q_, out_;  // [sequences, most_queries * kv_heads * head_dim]
  double bytes_ = 0;
};

// Measures a device within `share` of the pace's time; takes longer if that is too little for the
// necessary minimum.
Processor measure_processor(Device& device, const ProcessorSizes& sizes, MeasurePace& pace,
                            double share);

}  // namespace spillway
