// SPDX-License-Identifier: Apache-2.0
#include "storage/model_files.h"

#include <array>
#include <cstring>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/printable.h"
#include "storage/file.h"
#include "storage/gguf_reader.h"
#include "storage/gguf_types.h"
#include "storage/hf_folder.h"

namespace spillway {
namespace {

bool is_folder(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  SPW_CHECK(status.type() != std::filesystem::file_type::not_found, kInvalidArgument,
            "{} does not exist; expected a GGUF file or a Hugging Face folder",
            printable_path(path));
  return std::filesystem::is_directory(status);
}

// Whether the name is that of one file of a Hugging Face folder's weights.
bool is_weights_of_folder(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  return name.ends_with(".safetensors") ||
         (name.starts_with("pytorch_model") && name.ends_with(".bin"));
}

ModelFiles open_file(const std::filesystem::path& path) {
  {
    const File file(path);
    uint32_t magic = 0;
    if (file.size() >= sizeof(magic))
      file.read_exact(0, std::as_writable_bytes(std::span(&magic, 1)));
    const std::string shown = printable_path(path);
    if (magic != kGgufMagic) {
      SPW_CHECK(!is_weights_of_folder(path), kInvalidArgument,
                "{} is one file of a Hugging Face model; give the folder that also holds its "
                "config.json",
                shown);
      SPW_CHECK(path.extension() != ".json", kInvalidArgument,
                "{} is not a model; give the folder it is in", shown);
      fail(ErrorCode::kInvalidArgument,
           "{} is not a GGUF file (it does not start with 'GGUF'); expected a GGUF file or a "
           "Hugging Face folder",
           shown);
    }
  }
  return read_gguf(path);
}

}  // namespace

ModelFiles open_model(const std::filesystem::path& path) {
  return is_folder(path) ? read_hf_folder(path) : open_file(path);
}

ModelFiles open_tokenizer(const std::filesystem::path& path) {
  return is_folder(path) ? read_tokenizer_folder(path) : open_file(path);
}

}  // namespace spillway
