// SPDX-License-Identifier: Apache-2.0
#include "cuda/step_tables.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace spillway::cuda {
namespace {

// Arrays start at multiples of this many elements, so that kernels can load four at a time.
constexpr size_t kAlignment = 4;
size_t aligned(size_t elements) { return (elements + kAlignment - 1) / kAlignment * kAlignment; }

int32_t covered_by(const SequenceSpan& span) {
  return static_cast<int32_t>(span.block_table.size()) * kKvBlockTokens;
}

}  // namespace

void StepTables::reserve(size_t elements) {
  if (elements <= capacity_) return;
  const size_t capacity = std::max<size_t>(2 * elements, 4096);
  // Kernels in the stream may still read the old memory.
  SPW_CUDA_CHECK(cudaStreamSynchronize(stream_));
  // Changed before the allocation: if that fails, everything recorded with the old memory is
  // invalid all the same.
  ++generation_;
  capacity_ = 0;
  memory_ = Buffer();
  memory_ = device_.allocate(capacity * sizeof(int32_t), MemoryTag::kWorkspace);
  pinned_ = make_pinned(capacity * sizeof(int32_t));
  if (!sent_) sent_ = make_event();
  capacity_ = capacity;
}

void StepTables::remember(const void* host, size_t count, size_t offset) {
  SPW_ASSERT(count_ < 4);
  known_[count_++] = {host, count, offset};
}

std::optional<size_t> StepTables::try_find(const void* host, size_t count) const {
  for (int i = 0; i < count_; ++i) {
    if (known_[i].host == host && known_[i].count == count) return known_[i].offset;
  }
  return std::nullopt;
}

size_t StepTables::append(std::span<const int32_t> values, size_t at) {
  std::copy(values.begin(), values.end(), static_cast<int32_t*>(pinned_.get()) + at);
  return at + aligned(values.size());
}

size_t StepTables::append_batch(std::span<const SequenceSpan> spans, StepShape& shape, size_t at,
                                PlacedBatch& placed) {
  const size_t count = spans.size(),
               stride = static_cast<size_t>(shape.max_partitions) * (kPartTokens / kKvBlockTokens);
  auto* const host = static_cast<int32_t*>(pinned_.get());
  size_t offsets[4];
  for (size_t& offset : offsets) {
    offset = at;
    at += aligned(count);
  }

  const size_t tables = at, homes = tables + aligned(count * stride);
  size_t generating = 0, decoding = static_cast<size_t>(shape.generating),
         others = static_cast<size_t>(shape.decoding);
  for (const SequenceSpan& span : spans) {
    const size_t i = span.rows > 1 ? others++ : span.generates ? generating++ : decoding++;
    host[offsets[0] + i] = span.first_row;
    host[offsets[1] + i] = span.rows;
    host[offsets[2] + i] = span.start;
    host[offsets[3] + i] = covered_by(span);
    int32_t* const table = host + tables + i * stride;
    const size_t blocks = std::min(stride, span.block_table.size());
    std::copy_n(span.block_table.begin(), blocks, table);
    std::fill(table + blocks, table + stride, 0);
    if (!shape.values_at_home) continue;
    int32_t* const home = table + homes - tables;
    std::fill(std::copy(span.home.begin(), span.home.end(), home), home + stride, -1);
  }
  placed.view = {static_cast<int>(count),
                 this->at(offsets[0]),
                 this->at(offsets[1]),
                 this->at(offsets[2]),
                 this->at(tables),
                 static_cast<int>(stride),
                 nullptr};
  placed.covered = this->at(offsets[3]);
  if (!shape.values_at_home) return homes;
  placed.view.home_table = this->at(homes);
  return homes + aligned(count * stride);
}

namespace {

StepShape shape_of(std::span<const SequenceSpan> spans) {
  StepShape shape;
  shape.sequences = static_cast<int32_t>(spans.size());
  int32_t longest = 1;
  for (const SequenceSpan& span : spans) {
    shape.tokens += span.rows;
    shape.decoding += span.rows == 1 ? 1 : 0;
    shape.generating += span.rows == 1 && span.generates ? 1 : 0;
    shape.max_rows = std::max(shape.max_rows, span.rows);
    longest = std::max(longest, std::min(span.start + span.rows, covered_by(span)));
    shape.values_at_home = shape.values_at_home || !span.home.empty();
  }
  shape.max_partitions = static_cast<int32_t>(
      std::bit_ceil(static_cast<uint32_t>((longest + kPartTokens - 1) / kPartTokens)));
  return shape;
}

size_t batch_elements(const StepShape& shape) {
  const auto count = static_cast<size_t>(shape.sequences);
  const size_t table =
      aligned(count * static_cast<size_t>(shape.max_partitions) * (kPartTokens / kKvBlockTokens));
  return 4 * aligned(count) + (shape.values_at_home ? 2 : 1) * table;
}

}  // namespace

void StepTables::send(size_t begin, size_t end) {
  if (begin == end) return;
  SPW_CUDA_CHECK(cudaMemcpyAsync(memory_.data() + begin * sizeof(int32_t),
                                 static_cast<const int32_t*>(pinned_.get()) + begin,
                                 (end - begin) * sizeof(int32_t), cudaMemcpyHostToDevice, stream_));
  SPW_CUDA_CHECK(cudaEventRecord(sent_.get(), stream_));
}

StepShape StepTables::upload(const StepBatch& batch) {
  batches_.resize(1 + batch.other_spans.size());
  batches_[0].spans = batch.spans;
  for (size_t i = 0; i < batch.other_spans.size(); ++i)
    batches_[i + 1].spans = batch.other_spans[i];
  const std::span<const int32_t> arrays[] = {batch.ids, batch.positions, batch.table_rows,
                                             batch.logit_rows};
  size_t elements = 0;
  for (KnownBatch& known : batches_) {
    known.shape = shape_of(known.spans);
    elements += batch_elements(known.shape);
  }
  for (const auto& array : arrays) elements += aligned(array.size());
  static_assert(sizeof(KvPlanes) == kAlignment * sizeof(int32_t));
  elements += kAlignment * batch.kv.size();
  reserve(elements);
  SPW_CUDA_CHECK(cudaEventSynchronize(sent_.get()));
  count_ = 0;
  planes_ = batch.kv;
  if (!planes_.empty()) std::memcpy(pinned_.get(), planes_.data(), planes_.size_bytes());
  size_t at = kAlignment * planes_.size();
  for (const auto& array : arrays) {
    remember(array.data(), array.size(), at);
    at = append(array, at);
  }
  for (KnownBatch& known : batches_) at = append_batch(known.spans, known.shape, at, known.placed);
  send(0, at);
  StepShape shape = batches_[0].shape;
  shape.tokens = static_cast<int32_t>(batch.ids.size());
  shape.logit_rows = static_cast<int32_t>(batch.logit_rows.size());
  return shape;
}

std::optional<OtherShapes> StepTables::try_other_shapes() const {
  OtherShapes shapes;
  if (batches_.size() > 1 + shapes.size()) return std::nullopt;
  for (size_t i = 1; i < batches_.size(); ++i) shapes[i - 1] = batches_[i].shape;
  return shapes;
}

const KvPlanes* StepTables::planes_of(const KvLayerView& kv) const {
  if (planes_.empty()) return nullptr;
  const KvPlanes& planes = planes_[static_cast<size_t>(kv.layer)];
  SPW_ASSERT(planes.k == kv.k && planes.v == kv.v);
  return reinterpret_cast<const KvPlanes*>(memory_.data()) + kv.layer;
}

const int32_t* StepTables::device_of(std::span<const int32_t> values) {
  if (const auto offset = try_find(values.data(), values.size())) return at(*offset);
  end_step();  // tests call ops outside a step
  reserve(aligned(values.size()) + 1);
  SPW_CUDA_CHECK(cudaStreamSynchronize(stream_));
  send(0, append(values, 0));
  return at(0);
}

PlacedBatch StepTables::device_of(std::span<const SequenceSpan> spans, StepShape& shape) {
  for (const KnownBatch& known : batches_) {
    if (count_ == 0 || spans.data() != known.spans.data() || spans.size() != known.spans.size())
      continue;
    shape = known.shape;
    return known.placed;
  }
  end_step();
  shape = shape_of(spans);
  reserve(batch_elements(shape));
  SPW_CUDA_CHECK(cudaStreamSynchronize(stream_));
  PlacedBatch placed;
  send(0, append_batch(spans, shape, 0, placed));
  return placed;
}

}  // namespace spillway::cuda
