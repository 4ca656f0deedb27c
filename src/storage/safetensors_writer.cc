// SPDX-License-Identifier: Apache-2.0
#include "storage/safetensors_writer.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "storage/file_writer.h"

namespace spillway {

void SafetensorsWriter::add_tensor(std::string_view name, std::string_view dtype,
                                   std::span<const int64_t> shape,
                                   std::span<const std::byte> bytes) {
  const nlohmann::json value = {
      {"dtype", dtype},
      {"shape", std::vector<int64_t>(shape.begin(), shape.end())},
      {"data_offsets", {data_.size(), data_.size() + bytes.size()}},
  };
  if (!header_.empty()) header_ += ',';
  header_ += nlohmann::json(name).dump() + ':' + value.dump();
  data_.insert(data_.end(), bytes.begin(), bytes.end());
}

std::vector<std::byte> SafetensorsWriter::bytes() const {
  std::string header = '{' + header_ + '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  std::vector<std::byte> out(sizeof(length) + header.size());
  std::memcpy(out.data(), &length, sizeof(length));
  std::memcpy(out.data() + sizeof(length), header.data(), header.size());
  out.insert(out.end(), data_.begin(), data_.end());
  return out;
}

void SafetensorsWriter::write(const std::filesystem::path& path) const {
  FileWriter file(path);
  file.write(bytes());
  file.commit();
}

}  // namespace spillway
