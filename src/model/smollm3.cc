// SPDX-License-Identifier: Apache-2.0
// SmolLM3 is built like Llama, and every fourth layer rotates nothing.
#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "model/family.h"
#include "model/usual_keys.h"

namespace spillway {
namespace {

constexpr std::string_view kFamilies[] = {"smollm3"};

std::span<const WeightName> names(const ModelFiles& files) { return kLlamaFamily.names(files); }

// GGUF has no key for this: other programs, too, take every fourth layer.
constexpr int kUsualInterval = 4;
int usual_no_rope(int layers) { return layers < kUsualInterval ? 0 : kUsualInterval; }

// no_rope_layers has a 0 for each layer that rotates nothing.
int read_no_rope(const ModelFiles& files, int layers) {
  const auto rotates = files.metadata.try_int_array("no_rope_layers");
  if (!rotates) {
    const int64_t every = files.metadata.try_int("no_rope_layer_interval", 1, int64_t{1} << 30)
                              .value_or(kUsualInterval);
    return every > layers ? 0 : static_cast<int>(every);
  }
  SPW_CHECK(std::ssize(*rotates) >= layers, kInvalidArgument,
            "{}: no_rope_layers has {} elements for {} layers", files.name, rotates->size(),
            layers);
  const auto end = rotates->begin() + layers;
  const auto first = std::find(rotates->begin(), end, 0);
  const int every = first == end ? 0 : static_cast<int>(first - rotates->begin()) + 1;
  for (int layer = 0; layer < layers; ++layer) {
    const bool is_plain = every > 0 && (layer + 1) % every == 0;
    SPW_CHECK(((*rotates)[static_cast<size_t>(layer)] == 0) == is_plain, kUnsupported,
              "{}: no_rope_layers is not supported unless it is 0 for every n-th layer alone",
              files.name);
  }
  return every;
}

TransformerShape read_shape(const ModelFiles& files) {
  TransformerShape shape;
  shape.family = "smollm3";
  if (is_gguf(files)) {
    shape = read_usual_gguf(files, names(files), shape, RopeStyle::kInterleaved);
    shape.no_rope_every = usual_no_rope(shape.layers);
    return shape;
  }
  shape.tied_head = true;  // unless config.json says otherwise
  shape = read_usual_folder(files, names(files), shape, {.context = 32768, .rope_theta = 2e6});
  shape.no_rope_every = read_no_rope(files, shape.layers);
  SPW_CHECK(!files.metadata.try_bool("use_sliding_window").value_or(false), kUnsupported,
            "{}: use_sliding_window, a window in the layers that rotate nothing, is not supported "
            "yet",
            files.name);
  shape.sliding_window = 0;  // a size that is not used
  return shape;
}

void write_gguf_keys(const TransformerShape& shape, Metadata& keys) {
  SPW_CHECK(shape.no_rope_every == usual_no_rope(shape.layers), kUnsupported,
            "{}: no_rope_layers cannot be converted: in a GGUF, every {}th layer rotates nothing",
            shape.name, kUsualInterval);
  write_usual_keys(shape, keys);
}

// The sizes are from the published configuration.
constexpr KnownSizes kKnown[] = {
    {"smollm3-3b", 36, 2048, 16, 4, 11008, 128256, 65536, true},
};

void complete(TransformerShape& shape) {
  shape.family = "smollm3";
  shape.norm_eps = 1e-6F;
  shape.no_rope_every = usual_no_rope(shape.layers);
  set_plain_rope(shape.rope, 5e6, shape.head_dim);
}

}  // namespace

const Family kSmolLm3Family{.gguf_names = kFamilies,
                            .folder_names = kFamilies,
                            .read_shape = read_shape,
                            .names = names,
                            .write_gguf_keys = write_gguf_keys,
                            .gguf_pairs_rope = true,
                            .known = kKnown,
                            .complete = complete};

}  // namespace spillway
