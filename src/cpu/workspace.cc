// SPDX-License-Identifier: Apache-2.0
#include "cpu/workspace.h"

namespace spillway {

void Workspace::grow(Buffer& buffer, size_t floats) {
  const size_t bytes = floats * sizeof(float);
  if (buffer.bytes() >= bytes) return;
  buffer = Buffer();  // the old one is freed first, since both together might not fit
  buffer = device_.allocate(bytes, MemoryTag::kWorkspace);
}

float* Workspace::shared(size_t floats) {
  grow(shared_, floats);
  return reinterpret_cast<float*>(shared_.data());
}

float* Workspace::queries(size_t floats) {
  grow(queries_, floats);
  return reinterpret_cast<float*>(queries_.data());
}

void Workspace::reserve_workers(size_t floats) {
  for (Buffer& buffer : per_worker_) grow(buffer, floats);
}

}  // namespace spillway
