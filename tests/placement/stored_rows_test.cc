// SPDX-License-Identifier: Apache-2.0
// Logits are the same however a file stores the rows of its weights: as tensors of their own, one
// behind the other, head by head, or as columns.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "model/family.h"
#include "model/test_tensors.h"
#include "runtime/device_traits.h"
#include "tensor/random_fill.h"
#include "tests/placement/placed_model.h"

namespace spillway::placement {
namespace {

using Format = ModelFiles::Format;

// Returns bytes for the rows (WeightSlot::stored_rows) of a weight, different for each weight.
std::vector<std::byte> rows_of(const WeightSlot& slot, DType type) {
  const int64_t count = slot.stored_rows() * slot.stored_cols();
  std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(type, count)));
  const auto seed = static_cast<uint64_t>(slot.layer * 1000 + slot.op * 20 + slot.matrix * 2 +
                                          static_cast<int>(slot.is_bias) + 5000);
  fill_random(type, bytes.data(), count, seed, slot.is_norm_scale() ? 1.0F : 0.1F);
  return bytes;
}

// A GPT-NeoX of three layers in one file, and the model that describes it.
class StoredModel {
 public:
  // Stores the tensors that this family has in files of the given format.
  StoredModel(Format format, int heads) {
    ModelFiles files;
    files.format = format;
    files.name = "test";
    const TransformerShape shape = shape_of(heads);
    if (format == Format::kGguf) {
      files.metadata.add("general.architecture", std::string("gptneox"));
      kNeoXFamily.write_gguf_keys(shape, files.metadata);
    } else {
      files.metadata = config(heads);
    }
    const ModelSpec spec = make_spec(shape);
    const auto names = kNeoXFamily.names(files);
    (void)add_tensors(names, spec, files);
    for (TensorInfo& tensor : files.tensors) {
      tensor.dtype = tensor.shape.size() == 1 ? DType::kF32 : DType::kF16;
      tensor.extent = {0, bytes_.size() + 13,  // rows begin anywhere
                       static_cast<uint64_t>(row_bytes(tensor.dtype, tensor.elements()))};
      bytes_.resize(tensor.extent.offset + tensor.extent.bytes);
    }
    files.finish();
    for (const WeightSlot& slot : weight_slots(spec)) {
      const TensorPlace place = place_of(names, spec, slot);
      const TensorInfo& tensor = files.get(place.name);
      write_rows(slot, tensor, place.first, place.groups);
    }
    write();
    files.paths = {path_};
    files.file_bytes = {bytes_.size()};
    model = describe_model(files);
  }

  // Stores each weight by itself; if `transposed`, matrices of layers are columns of tensors that
  // have other columns around them.
  StoredModel(bool transposed, int heads) {
    model.spec = make_spec(shape_of(heads));
    for (const WeightSlot& slot : weight_slots(model.spec)) {
      const DType type = slot.is_vector() ? DType::kF32 : DType::kF16;
      const std::vector<std::byte> rows = rows_of(slot, type);
      BoundWeight weight{slot, type, Extent{0, bytes_.size() + 7, rows.size()}};
      if (transposed && slot.is_layer_matrix()) {
        constexpr int64_t kBefore = 5, kBehind = 3;
        weight.first_column = kBefore;
        weight.tensor_columns = kBefore + slot.rows + kBehind;
        weight.extent->bytes =
            static_cast<uint64_t>(row_bytes(type, weight.tensor_columns) * slot.cols);
        bytes_.resize(weight.extent->offset + weight.extent->bytes);
        for (int64_t row = 0; row < slot.rows; ++row) {
          for (int64_t col = 0; col < slot.cols; ++col) {
            const int64_t at = col * weight.tensor_columns + kBefore + row;
            std::memcpy(bytes_.data() + weight.extent->offset + at * 2,
                        rows.data() + (row * slot.cols + col) * 2, 2);
          }
        }
      } else {
        bytes_.resize(weight.extent->offset);
        bytes_.insert(bytes_.end(), rows.begin(), rows.end());
      }
      model.weights.push_back(weight);
    }
    write();
  }

  std::vector<float> logits(const Placement& placement, bool compressed) const {
    Model described = model;
    if (compressed) compress_matrices(described);
    PlacedModel placed(false, placement, std::move(described), {path_}, KvType::kF32,
                       /*deterministic=*/true);
    return placed.run(2);
  }

  Model model;

 private:
  static TransformerShape shape_of(int heads) {
    ModelFiles files;
    files.format = Format::kHuggingFace;
    files.metadata = config(heads);
    return kNeoXFamily.read_shape(files);
  }
  static Metadata config(int heads) {
    Metadata m("config.json");
    m.add("model_type", std::string("gpt_neox"));
    for (const auto& [key, value] :
         std::initializer_list<std::pair<const char*, int64_t>>{{"hidden_size", 64},
                                                                {"intermediate_size", 192},
                                                                {"num_hidden_layers", 3},
                                                                {"num_attention_heads", heads},
                                                                {"vocab_size", 97},
                                                                {"max_position_embeddings", 128}})
      m.add(key, value);
    m.add("rotary_pct", 0.5);
    return m;
  }
  void write_rows(const WeightSlot& slot, const TensorInfo& tensor, int64_t first,
                  const RowGroups& groups) {
    const auto row = static_cast<size_t>(row_bytes(tensor.dtype, slot.stored_cols()));
    const std::vector<std::byte> rows = rows_of(slot, tensor.dtype);
    for (int64_t r = 0; r < slot.stored_rows(); ++r) {
      const int64_t at =
          first + (groups.rows == 0 ? r : r / groups.rows * groups.stride + r % groups.rows);
      std::memcpy(bytes_.data() + tensor.extent.offset + static_cast<size_t>(at) * row,
                  rows.data() + static_cast<size_t>(r) * row, row);
    }
  }
  void write() { path_ = folder_.write("model", bytes_); }

  TempFolder folder_;
  std::filesystem::path path_;
  std::vector<std::byte> bytes_;
};

std::vector<Placement> placements() {
  std::vector<Placement> all;
  const auto add = [&](const char* name, TierShares weights, double cpu, bool on_cpu) {
    Placement& placement = all.emplace_back();
    placement.name = name;
    placement.weights = weights;
    placement.segment_bytes = 10'000;  // segments hold parts of heads
    if (cpu > 0) placement.cpu_linear = {{.tokens = 512, .share = cpu}};
    placement.on_cpu = on_cpu;
  };
  add("on the device", {1, 0, 0}, 0, false);
  add("in host memory", {0, 1, 0}, 0, false);
  add("on disk", {0, 0, 1}, 0, false);
  add("on disk, shared with the CPU", {0, 0, 1}, 0.4, false);
  add("on a CPU", {1, 0, 0}, 0, true);
  add("on a CPU's disk", {0, 0, 1}, 0, true);
  return all;
}

class StoredRowsTest : public testing::TestWithParam<int> {};

TEST_P(StoredRowsTest, MakeNoDifference) {
  const int heads = GetParam();
  const StoredModel own(/*transposed=*/false, heads), columns(/*transposed=*/true, heads);
  const StoredModel stacked(Format::kGguf, heads), per_head(Format::kHuggingFace, heads);
  const auto is_in_groups = [](const BoundWeight& weight) { return weight.groups.rows > 0; };
  EXPECT_TRUE(std::ranges::any_of(per_head.model.weights, is_in_groups));
  EXPECT_FALSE(std::ranges::any_of(stacked.model.weights, is_in_groups));
  for (const bool compressed : {false, true}) {
    for (const Placement& placement : placements()) {
      SCOPED_TRACE(placement.name + (compressed ? ", compressed" : ""));
      const std::vector<float> expected = own.logits(placement, compressed);
      EXPECT_EQ(stacked.logits(placement, compressed), expected);
      EXPECT_EQ(per_head.logits(placement, compressed), expected);
      EXPECT_EQ(columns.logits(placement, compressed), expected);
    }
  }
}

// Heads have 16 rows, as many as a group of a layout, or 8.
INSTANTIATE_TEST_SUITE_P(Heads, StoredRowsTest, testing::Values(4, 8));

// Weights that loading assembles take host memory, which plans count.
TEST(StoredRowsNeedsTest, CountWhatIsPutTogether) {
  const StoredModel own(/*transposed=*/false, 4), columns(/*transposed=*/true, 4);
  const CpuDevice cpu(CpuDeviceOptions{.threads = 2});
  const auto loading = [&](const Model& model) {
    const std::vector<Tier> homes(model.weights.size(), Tier::kDevice);
    return weight_bytes(traits_of(cpu), model, homes, /*may_map=*/true).loading_host;
  };
  EXPECT_EQ(loading(own.model), 0U);
  EXPECT_GE(loading(columns.model), uint64_t{64} * 192 * 2 * 2);
}

}  // namespace
}  // namespace spillway::placement
