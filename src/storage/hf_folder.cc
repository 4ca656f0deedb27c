// SPDX-License-Identifier: Apache-2.0
#include "storage/hf_folder.h"

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/printable.h"
#include "storage/file.h"
#include "storage/hf_index.h"
#include "storage/json_metadata.h"
#include "storage/safetensors_reader.h"
#include "storage/torch_reader.h"

namespace spillway {
namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{4} << 20;
constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;

// How a folder may hold its weights: in one file, or in shards that an index names.
struct WeightFormat {
  std::string_view single_file, index_file, shard_ending;
  void (*parse)(const ByteSource& source, int32_t file, ModelFiles& model);
  ModelFiles::SharedExtents shared;
};
// The first of these that a folder has is read.
constexpr WeightFormat kWeightFormats[] = {
    {"model.safetensors", "model.safetensors.index.json", ".safetensors", parse_safetensors,
     ModelFiles::SharedExtents::kRefused},
    {"pytorch_model.bin", "pytorch_model.bin.index.json", ".bin", parse_torch,
     ModelFiles::SharedExtents::kAllowed},
};

class DiskFolder final : public FolderSource {
 public:
  explicit DiskFolder(const std::filesystem::path& path)
      : path_(path), label_(printable_name(path)) {
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    SPW_CHECK(std::filesystem::exists(status), kInvalidArgument, "{} does not exist",
              printable_path(path));
    SPW_CHECK(std::filesystem::is_directory(status), kInvalidArgument, "{} is not a folder",
              printable_path(path));
  }
  const std::string& label() const override { return label_; }
  std::unique_ptr<ByteSource> try_open(std::string_view name) const override {
    const std::filesystem::path path = path_ / name;
    std::error_code error;
    if (std::filesystem::status(path, error).type() == std::filesystem::file_type::not_found)
      return nullptr;
    return std::make_unique<File>(path);
  }

 private:
  std::filesystem::path path_;
  std::string label_;
};

std::string read_text(const ByteSource& source, uint64_t max_bytes) {
  SPW_CHECK(source.size() <= max_bytes, kInvalidArgument,
            "{} has {} bytes, more than the {} allowed", source.label(), source.size(), max_bytes);
  std::string text(source.size(), '\0');
  source.read_exact(0, std::as_writable_bytes(std::span(text)));
  return text;
}

bool has(const FolderSource& folder, std::string_view name) {
  return folder.try_open(name) != nullptr;
}

void read_config(const FolderSource& folder, bool required, ModelFiles& model) {
  model.metadata = Metadata("config.json");
  if (const auto config = folder.try_open("config.json")) {
    flatten_json(read_text(*config, kMaxConfigBytes), config->label(), "", model.metadata);
  } else {
    SPW_CHECK(!required, kInvalidArgument,
              "{}: no config.json; expected a Hugging Face model folder or a GGUF file",
              folder.label());
  }
  if (const auto generation = folder.try_open("generation_config.json")) {
    flatten_json(read_text(*generation, kMaxConfigBytes), generation->label(), "generation_config.",
                 model.metadata);
  }
}

void add_weights(const ByteSource& source, std::string_view name, const WeightFormat& format,
                 ModelFiles& model) {
  const auto file = static_cast<int32_t>(model.paths.size());
  model.paths.emplace_back(name);
  model.file_bytes.push_back(source.size());
  format.parse(source, file, model);
}

// Checks that every tensor of the index is in the shard that the index names.
void check_weight_map(const HfIndex& index, std::string_view index_file, const ModelFiles& model) {
  for (const HfIndex::Entry& entry : index.tensors) {
    const std::string& shard = index.shards[static_cast<size_t>(entry.shard)];
    if (const TensorInfo* tensor = model.find(entry.tensor)) {
      SPW_CHECK(tensor->extent.file == entry.shard, kInvalidArgument,
                "{}: tensor '{}' should be in {} but is in {}", index_file, printable(entry.tensor),
                printable(shard),
                printable_path(model.paths[static_cast<size_t>(tensor->extent.file)]));
      continue;
    }
    const bool unsupported =
        std::ranges::binary_search(model.unsupported, entry.tensor, {}, &UnsupportedTensor::name);
    SPW_CHECK(unsupported, kInvalidArgument,
              "{}: tensor '{}' is not in {}; the shard is not the right one, download it again",
              index_file, printable(entry.tensor), printable(shard));
  }
}

void check_unsupported(ModelFiles& model) {
  std::ranges::sort(model.unsupported, {}, &UnsupportedTensor::name);
  for (size_t i = 0; i < model.unsupported.size(); ++i) {
    const std::string& name = model.unsupported[i].name;
    const bool twice = i > 0 && model.unsupported[i - 1].name == name;
    SPW_CHECK(!twice && model.find(name) == nullptr, kInvalidArgument,
              "{}: tensor '{}' is there twice", model.name, printable(name));
  }
}

// Returns false if the folder has no weights of this format.
bool try_read_weights(const FolderSource& folder, const WeightFormat& format, ModelFiles& model) {
  if (const auto single = folder.try_open(format.single_file)) {
    add_weights(*single, format.single_file, format, model);
    model.finish(format.shared);
    check_unsupported(model);
    return true;
  }
  const auto index_file = folder.try_open(format.index_file);
  if (index_file == nullptr) return false;
  const HfIndex index = parse_hf_index(read_text(*index_file, kMaxIndexBytes), index_file->label(),
                                       format.shard_ending);
  for (const std::string& shard : index.shards) {
    const auto source = folder.try_open(shard);
    SPW_CHECK(source != nullptr, kInvalidArgument, "{}: shard {} of {} is missing; download it",
              folder.label(), printable(shard), format.index_file);
    add_weights(*source, shard, format, model);
  }
  model.finish(format.shared);
  check_unsupported(model);
  check_weight_map(index, format.index_file, model);
  return true;
}

void read_weights(const FolderSource& folder, ModelFiles& model) {
  for (const WeightFormat& format : kWeightFormats) {
    if (try_read_weights(folder, format, model)) return;
  }
  const auto& [safetensors, torch] = kWeightFormats;
  fail(ErrorCode::kInvalidArgument, "{}: no weights: neither {} nor {}, and no {} or {}",
       folder.label(), safetensors.single_file, torch.single_file, safetensors.index_file,
       torch.index_file);
}

}  // namespace

ModelFiles parse_hf_folder(const FolderSource& folder) {
  ModelFiles model;
  model.format = ModelFiles::Format::kHuggingFace;
  model.name = folder.label();
  read_config(folder, true, model);
  read_weights(folder, model);
  return model;
}

ModelFiles read_hf_folder(const std::filesystem::path& folder) {
  ModelFiles model = parse_hf_folder(DiskFolder(folder));
  model.folder = folder;
  for (std::filesystem::path& path : model.paths) path = folder / path;
  return model;
}

ModelFiles read_tokenizer_folder(const std::filesystem::path& folder) {
  const DiskFolder source(folder);
  ModelFiles model;
  model.format = ModelFiles::Format::kTokenizerFolder;
  model.name = source.label();
  model.folder = folder;
  const bool complete =
      has(source, "tokenizer.json") || (has(source, "vocab.json") && has(source, "merges.txt"));
  SPW_CHECK(complete, kInvalidArgument,
            "{}: no tokenizer: neither tokenizer.json nor vocab.json with merges.txt",
            source.label());
  read_config(source, false, model);
  return model;
}

}  // namespace spillway
