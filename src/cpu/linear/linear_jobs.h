// SPDX-License-Identifier: Apache-2.0
// Products of several matrices with the same activations as one parallel job.
#pragma once

#include <optional>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/linear/linear_half.h"
#include "cpu/linear/linear_int8.h"
#include "cpu/workspace.h"
#include "device/ops.h"

namespace spillway::cpu {

// Says how the rows of a matrix are multiplied, except with many tokens (linear_bf16.h).
enum class LinearPath {
  kFloatRows,   // linear_f32.h: any type, any processor, the one order of `deterministic`
  kHalfRows,    // linear_half.h
  kInt8Groups,  // linear_int8.h: packed rows; those after the last whole group as kFloatRows
};

// Collects products, then computes all of them: activations are converted once to each form that is
// needed, and workers go from the rows of one matrix to those of the next without waiting for each
// other. Used by one thread, for one call of an op. Throws what int8_product() throws.
class LinearJobs {
 public:
  // All arguments must outlive run().
  explicit LinearJobs(const Activations& x) : x_(x) {}

  // Adds part.out (+)= x * part.w^T + part.bias, for rows [first, all) of the matrix; for packed
  // ones `first` is 0 or the first row after the groups.
  void add(const Projection& part, LinearPath path, LinearMode mode, int64_t first = 0);
  void run(ThreadPool& pool, Workspace& workspace);

 private:
  // Rows in units of 16, which any worker may compute, times some tokens.
  struct Job {
    LinearPath path = LinearPath::kFloatRows;
    DType type = DType::kF32;
    int64_t rows = 0;
    LinearArgs a = {};      // of its rows
    Int8Product int8 = {};  // kInt8Groups
    HalfGroup half = {};    // kHalfRows
    // The places in scratch memory of its activations, and of its bias if that is a copy.
    size_t input_at = 0;
    std::optional<size_t> bias_at = {};

    int64_t units() const;
    int64_t work() const;
    size_t input_floats() const;
    bool has_input_of(const Job& other) const;
    void run(int64_t first_unit, int64_t last_unit, float* scratch) const;
  };
  struct BiasCopy {
    WeightView bias;
    size_t at;
  };
  void push(Job job);
  size_t take(size_t floats);
  void give_input(ThreadPool& pool, Job& job, bool is_there, float* scratch) const;

  const Activations& x_;
  std::vector<Job> jobs_;
  std::vector<BiasCopy> copies_;
  size_t floats_ = 0;  // of scratch memory
};

}  // namespace spillway::cpu
