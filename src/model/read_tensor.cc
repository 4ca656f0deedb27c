// SPDX-License-Identifier: Apache-2.0
#include "model/read_tensor.h"

#include "base/error.h"
#include "storage/file.h"
#include "tensor/dequantize.h"

namespace spillway {

std::vector<float> read_tensor_f32(const ModelFiles& files, const TensorInfo& tensor,
                                   int64_t count) {
  SPW_CHECK(tensor.elements() == count, kInvalidArgument,
            "{}: tensor '{}' has {} elements, {} expected", files.name, tensor.name,
            tensor.elements(), count);
  std::vector<std::byte> stored(tensor.extent.bytes);
  const File file(files.paths.at(static_cast<size_t>(tensor.extent.file)));
  file.read_exact(tensor.extent.offset, stored);
  std::vector<float> values(static_cast<size_t>(count));
  dequantize_reference(tensor.dtype, stored.data(), values.data(), count);
  return values;
}

}  // namespace spillway
