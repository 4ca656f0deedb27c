// SPDX-License-Identifier: Apache-2.0
// random_gguf: writes a GGUF file with random weights in the shape of a known model, or in one
// given by numbers. Any engine that reads GGUF can load it and runs at the speed of the real model.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <string>

#include "base/byte_units.h"
#include "base/error.h"
#include "bench/random_model.h"
#include "cli/terminal.h"
#include "model/known_models.h"

namespace spillway {
namespace {

struct Options {
  std::string path, model, type = "f16";
  int layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t hidden = 0, ffn = 0, vocab = 0, context = 0;
  bool tied = false, quiet = false;
};

// Returns a known shape with some numbers replaced, or a shape made only of numbers.
TransformerShape make_spec(const Options& options) {
  TransformerShape spec;
  if (!options.model.empty()) {
    const auto known = try_known_model(options.model);
    SPW_CHECK(known.has_value(), kInvalidArgument, "no known model '{}'; known are: {}",
              options.model, fmt::join(known_model_names(), " "));
    spec = *known;
  } else {
    spec.family = "llama";
    spec.name = "custom";
    spec.vocab_size = 32000;
    spec.max_context = 4096;
  }
  const auto replace = [](auto& field, auto value) {
    if (value != 0) field = value;
  };
  replace(spec.layers, options.layers);
  replace(spec.hidden, options.hidden);
  spec.embedding_dim = spec.hidden;
  replace(spec.heads, options.heads);
  replace(spec.kv_heads, options.kv_heads != 0 ? options.kv_heads : options.heads);
  replace(spec.ffn, options.ffn);
  replace(spec.vocab_size, options.vocab);
  replace(spec.max_context, options.context);
  if (options.tied) spec.tied_head = true;
  SPW_CHECK(spec.heads > 0, kInvalidArgument,
            "no shape; give --model NAME, or --layers --hidden --heads --ffn");
  spec.head_dim =
      options.head_dim != 0 ? options.head_dim : static_cast<int>(spec.hidden / spec.heads);
  if (spec.rope.dims != spec.head_dim) {
    spec.rope.dims = spec.head_dim;
    const auto frequencies = base_inverse_frequencies(spec.rope);
    spec.rope.inverse_frequencies.assign(frequencies.begin(), frequencies.end());
  }
  validate(spec, spec.name);
  return spec;
}

void write(const Options& options) {
  const auto mix = try_random_mix(options.type);
  SPW_CHECK(mix.has_value(), kInvalidArgument,
            "no type '{}'; give f32, f16, bf16, q4_0, ..., q6_k, q4_k_m or q5_k_m", options.type);
  const TransformerShape spec = make_spec(options);
  uint64_t bytes = 0;
  {
    ProgressBar bar("writing " + options.path);
    random_model(spec, *mix, [&](uint64_t done, uint64_t total) {
      bytes = total;
      bar.update(done, total, fmt::format("{} of {}", format_bytes(done), format_bytes(total)));
    }).write(options.path);
  }
  if (options.quiet) return;
  fmt::print("{}: {}, {} parameters, {} of weights\n", options.path, spec.name,
             parameter_count(make_spec(spec)), format_bytes(bytes));
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  CLI::App app{"Writes a GGUF file with random weights.", "random_gguf"};
  spillway::Options options;
  app.add_option("FILE", options.path, "the file to write")->required();
  app.add_option("--model", options.model, "shape of a known model, e.g. tinyllama-1.1b");
  app.add_option("--type", options.type,
                 "f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_k ... q6_k, "
                 "or the mixes q4_k_m q5_k_m")
      ->capture_default_str();
  app.add_option("--layers", options.layers, "layers; this and what follows replaces a number");
  app.add_option("--hidden", options.hidden, "width of the hidden state");
  app.add_option("--heads", options.heads, "query heads");
  app.add_option("--kv-heads", options.kv_heads,
                 "key and value heads; as many as --heads if left out");
  app.add_option("--head-dim", options.head_dim, "width of a head; hidden / heads if left out");
  app.add_option("--ffn", options.ffn, "width of the MLP");
  app.add_option("--vocab", options.vocab, "tokens in the vocabulary");
  app.add_option("--context", options.context, "longest context");
  app.add_flag("--tied", options.tied, "the head is the token embedding");
  app.add_flag("--quiet", options.quiet, "say nothing when all goes well");
  CLI11_PARSE(app, argc, argv);
  try {
    spillway::write(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "random_gguf: {}\n", error.what());
    return 1;
  }
  return 0;
}
