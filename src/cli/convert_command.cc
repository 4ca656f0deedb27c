// SPDX-License-Identifier: Apache-2.0
// spillway convert: a GGUF with its matrices in another type.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>
#include <string>

#include "base/byte_units.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/json_output.h"
#include "cli/model_catalog.h"
#include "cli/terminal.h"
#include "storage/gguf_convert.h"
#include "storage/model_files.h"

namespace spillway {
namespace {

struct ConvertOptions {
  std::string model, out, type = "f32";
  bool json = false;
};

int convert(const ConvertOptions& options) {
  SPW_CHECK(!options.out.empty(), kInvalidArgument, "give OUT, the GGUF file to write");
  std::string name = options.type;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  const auto type = try_dtype_from_name(name);
  SPW_CHECK(type == DType::kF32 || type == DType::kF16 || type == DType::kBF16, kInvalidArgument,
            "--type is {}; give f32, f16 or bf16", options.type);
  const ModelFiles model = open_model(resolve_model(options.model));
  {
    ProgressBar bar("convert");
    const auto progress = [&](uint64_t done, uint64_t total) {
      bar.update(done, total, fmt::format("{} of {}", format_bytes(done), format_bytes(total)));
    };
    convert_gguf(model, *type, options.out, progress, &interrupted());
  }
  const uint64_t bytes = std::filesystem::file_size(options.out);
  if (options.json) {
    print_json({{"path", options.out}, {"type", dtype_name(*type)}, {"bytes", bytes}});
  } else {
    print_now(fmt::format("{}: {}, matrices in {}\n", options.out, format_bytes(bytes),
                          dtype_name(*type)));
  }
  return 0;
}

}  // namespace

void add_convert_command(CLI::App& app) {
  auto* command = app.add_subcommand("convert", "the same model with its matrices in another type");
  auto options = std::make_shared<ConvertOptions>();
  command
      ->add_option("MODEL", options->model, "a GGUF file (the first, if it is split), or smollm2")
      ->required();
  command->add_option("OUT", options->out, "the GGUF file to write");
  command->add_option(
      "--type", options->type,
      "f32 (default): exactly what quantized weights stand for; f16, bf16: rounded");
  command->add_flag("--json", options->json, "{\"path\": ..., \"type\": ..., \"bytes\": ...}");
  command->footer(
      "Vectors (norms, biases) stay as they are.\n"
      "  spillway convert model-Q8_0.gguf model-F32.gguf");
  command->final_callback([options] { throw CLI::RuntimeError(convert(*options)); });
}

}  // namespace spillway
