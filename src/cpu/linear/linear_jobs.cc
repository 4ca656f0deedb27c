// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear/linear_jobs.h"

#include <algorithm>
#include <cstring>

#include "cpu/dequantize/decode_row.h"
#include "cpu/linear/linear_f32.h"
#include "cpu/parallel.h"

namespace spillway::cpu {
namespace {

static_assert(kPanelRows == kGroupRows);  // both are the size of a unit

int64_t padded_columns(int64_t cols) { return (cols + 15) / 16 * 16; }

// Copies x with rows padded by zeros to a multiple of 16 columns, which kernels may read.
void pad_columns(const Activations& x, float* out) {
  const int64_t stride = padded_columns(x.cols);
  for (int64_t t = 0; t < x.rows; ++t) {
    std::memcpy(out + t * stride, x.f32(t), static_cast<size_t>(x.cols) * sizeof(float));
    std::memset(out + t * stride + x.cols, 0, static_cast<size_t>(stride - x.cols) * sizeof(float));
  }
}

// A file's F32 bias may lie at any byte, so an unaligned one is converted (copied) too.
bool can_be_read(const WeightView& bias) {
  return bias.dtype == DType::kF32 && reinterpret_cast<uintptr_t>(bias.data) % 4 == 0;
}

}  // namespace

int64_t LinearJobs::Job::units() const { return (rows + kPanelRows - 1) / kPanelRows; }

// Returns how many multiplications in F32 would take as long.
int64_t LinearJobs::Job::work() const {
  switch (path) {
    case LinearPath::kHalfRows:
      return half.product.tokens * rows * a.k / 4;
    case LinearPath::kInt8Groups:
      return a.tokens * rows * a.k / 8;
    case LinearPath::kFloatRows:
      break;
  }
  return a.tokens * rows * a.k;
}

size_t LinearJobs::Job::input_floats() const {
  switch (path) {
    case LinearPath::kHalfRows:
      return half_shared_floats(half);
    case LinearPath::kInt8Groups:
      return int8_shared_floats(a.tokens, a.k);
    case LinearPath::kFloatRows:
      break;
  }
  return a.k % 16 == 0 ? 0 : static_cast<size_t>(a.tokens * padded_columns(a.k));
}

bool LinearJobs::Job::has_input_of(const Job& other) const {
  if (path != other.path) return false;
  switch (path) {
    case LinearPath::kHalfRows:
      return half.kernel == other.half.kernel && half.first == other.half.first;
    case LinearPath::kInt8Groups:
      return int8.form == other.int8.form;
    case LinearPath::kFloatRows:
      break;
  }
  return true;
}

void LinearJobs::Job::run(int64_t first_unit, int64_t last_unit, float* scratch) const {
  const int64_t begin = first_unit * kPanelRows, end = std::min(last_unit * kPanelRows, rows);
  switch (path) {
    case LinearPath::kHalfRows:
      return half.kernel->multiply(half.product, begin, end);
    case LinearPath::kInt8Groups:
      return int8.kernel(int8.args, first_unit, last_unit, reinterpret_cast<uint8_t*>(scratch));
    case LinearPath::kFloatRows:
      return linear_f32(type, a, begin, end, scratch);
  }
}

// Reserves whole cache lines.
size_t LinearJobs::take(size_t floats) {
  const size_t at = floats_;
  floats_ += (floats + 15) / 16 * 16;
  return at;
}

void LinearJobs::push(Job job) {
  const auto same = [&](const Job& other) { return job.has_input_of(other); };
  const auto found = std::find_if(jobs_.begin(), jobs_.end(), same);
  job.input_at = found != jobs_.end() ? found->input_at : take(job.input_floats());
  jobs_.push_back(job);
}

void LinearJobs::add(const Projection& part, LinearPath path, LinearMode mode, int64_t first) {
  const WeightView& w = part.w;
  LinearArgs a{.w = reinterpret_cast<const uint8_t*>(w.data),
               .row_bytes = w.row_bytes(),
               .k = w.cols,
               .x = x_.f32(),
               .x_stride = x_.stride,
               .tokens = x_.rows,
               .out = part.out.f32(),
               .out_stride = part.out.stride,
               .accumulate = mode == LinearMode::kAccumulate};
  std::optional<size_t> bias_at;
  if (!part.bias.empty() && !can_be_read(part.bias)) {
    bias_at = take(static_cast<size_t>(part.bias.cols));
    copies_.push_back({part.bias, *bias_at});
  } else if (!part.bias.empty()) {
    a.bias = reinterpret_cast<const float*>(part.bias.data);
  }
  Job job{.path = path, .type = w.dtype, .rows = w.rows, .a = a, .bias_at = bias_at};
  if (path == LinearPath::kHalfRows) {
    for (int64_t token = 0; token < a.tokens; token += job.half.product.tokens) {
      job.half = half_group(w, a, token);
      push(job);
    }
    return;
  }
  if (path == LinearPath::kInt8Groups) {
    job.rows = first = w.grouped_rows();
    job.int8 = int8_product(w, a);
    push(job);
  }
  if (first == w.rows) return;
  job.path = LinearPath::kFloatRows;
  job.rows = w.rows - first;
  job.a.w += first * a.row_bytes;
  job.a.out += first;
  if (a.bias != nullptr) job.a.bias += first;
  if (bias_at) job.bias_at = *bias_at + static_cast<size_t>(first);
  push(job);
}

void LinearJobs::give_input(ThreadPool& pool, Job& job, bool is_there, float* scratch) const {
  float* input = scratch + job.input_at;
  if (job.bias_at) {
    job.a.bias = job.int8.args.bias = job.half.product.bias = scratch + *job.bias_at;
  }
  switch (job.path) {
    case LinearPath::kHalfRows:
      if (!is_there) pack_half(pool, job.half, x_, input);
      return set_half_input(job.half.product, input);
    case LinearPath::kInt8Groups:
      if (!is_there) quantize_int8(pool, x_, job.int8.form, input);
      return set_int8_input(job.int8.args, input);
    case LinearPath::kFloatRows:
      if (job.input_floats() == 0) return;
      if (!is_there) pad_columns(x_, input);
      job.a.x = input;
      job.a.x_stride = padded_columns(x_.cols);
  }
}

void LinearJobs::run(ThreadPool& pool, Workspace& workspace) {
  if (jobs_.empty()) return;
  float* scratch = floats_ > 0 ? workspace.shared(floats_) : nullptr;
  workspace.reserve_workers(std::max(static_cast<size_t>(kPanelFloats), kInt8WorkerFloats));
  for (const BiasCopy& copy : copies_) {
    decode_row(copy.bias.dtype, copy.bias.data, scratch + copy.at, copy.bias.cols);
  }
  int64_t work = 0, units = 0;
  for (auto job = jobs_.begin(); job != jobs_.end(); ++job) {
    const auto same = [&](const Job& other) { return job->has_input_of(other); };
    give_input(pool, *job, std::any_of(jobs_.begin(), job, same), scratch);
    work += job->work();
    units += job->units();
  }
  parallel_if_large(pool, work, units, 1, [&](int64_t begin, int64_t end, int worker) {
    for (const Job& job : jobs_) {
      const int64_t all = job.units();
      if (begin < all && end > 0) {
        job.run(std::max<int64_t>(begin, 0), std::min(end, all), workspace.worker(worker));
      }
      begin -= all;
      end -= all;
    }
  });
}

}  // namespace spillway::cpu
