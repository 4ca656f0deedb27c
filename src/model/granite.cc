// SPDX-License-Identifier: Apache-2.0
// Granite 3 is built like Llama, with factors of embeddings, branches, attention scores and logits.
//
// A factor m of all branches is the same as a residual stream divided by m: then the embeddings are
// divided by m, too, and the norms, which do not see the size of their input, have an epsilon that
// is divided by its square. So devices need no such factor.
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "model/family.h"
#include "model/usual_keys.h"

namespace spillway {
namespace {

constexpr std::string_view kFamilies[] = {"granite"};

std::span<const WeightName> names(const ModelFiles& files) { return kLlamaFamily.names(files); }

struct Factors {
  double embedding = 1, branch = 1, attention = 0, logits = 1;
};

void apply(const Factors& factors, const std::string& where, TransformerShape& shape) {
  for (const auto& [what, value] : {std::pair("embeddings", factors.embedding),
                                    {"branches", factors.branch},
                                    {"attention scores", factors.attention},
                                    {"logits", factors.logits}}) {
    SPW_CHECK(std::isfinite(value) && value > 0, kInvalidArgument,
              "{}: the factor of {} is {}, which makes no sense", where, what, value);
  }
  shape.embedding_scale = static_cast<float>(factors.embedding / factors.branch);
  shape.norm_eps = static_cast<float>(double{shape.norm_eps} / factors.branch / factors.branch);
  shape.attention_scale = static_cast<float>(factors.attention);
  shape.logit_scale = static_cast<float>(1 / factors.logits);
  validate(shape, where);
}

TransformerShape read_shape(const ModelFiles& files) {
  TransformerShape shape;
  shape.family = "granite";
  const Metadata& m = files.metadata;
  const auto usual_scale = [&] { return 1 / std::sqrt(static_cast<double>(shape.head_dim)); };
  if (is_gguf(files)) {
    shape = read_usual_gguf(files, names(files), shape, RopeStyle::kInterleaved);
    apply({m.try_double("granite.embedding_scale").value_or(1),
           m.try_double("granite.residual_scale").value_or(1),
           m.try_double("granite.attention.scale").value_or(usual_scale()),
           m.try_double("granite.logit_scale").value_or(1)},
          files.name, shape);
    return shape;
  }
  shape = read_usual_folder(files, names(files), shape);
  apply({m.try_double("embedding_multiplier").value_or(1),
         m.try_double("residual_multiplier").value_or(1),
         m.try_double("attention_multiplier").value_or(1),
         m.try_double("logits_scaling").value_or(1)},
        files.name, shape);
  return shape;
}

void write_gguf_keys(const TransformerShape& shape, Metadata& keys) {
  write_usual_keys(shape, keys);
  const auto add = [&](const char* key, float value) { keys.add(key, double{value}); };
  add("granite.embedding_scale", shape.embedding_scale);
  add("granite.residual_scale", 1);
  add("granite.attention.scale", shape.attention_scale);
  add("granite.logit_scale", 1 / shape.logit_scale);
}

// The sizes are from the published configurations.
constexpr KnownSizes kKnown[] = {
    {"granite-3.3-2b", 40, 2048, 32, 8, 8192, 49159, 131072, true},
    {"granite-3.3-8b", 40, 4096, 32, 8, 12800, 49159, 131072, true},
};

void complete(TransformerShape& shape) {
  shape.family = "granite";
  const bool is_large = shape.hidden == 4096;
  set_plain_rope(shape.rope, 1e7, shape.head_dim);
  apply({12, 0.22, is_large ? 0.0078125 : 0.015625, is_large ? 16.0 : 8.0}, shape.name, shape);
}

}  // namespace

const Family kGraniteFamily{.gguf_names = kFamilies,
                            .folder_names = kFamilies,
                            .read_shape = read_shape,
                            .names = names,
                            .write_gguf_keys = write_gguf_keys,
                            .gguf_pairs_rope = true,
                            .known = kKnown,
                            .complete = complete};

}  // namespace spillway
