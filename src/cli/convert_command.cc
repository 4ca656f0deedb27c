// SPDX-License-Identifier: Apache-2.0
// spillway convert: writes a GGUF with matrices in other types, from a GGUF or a Hugging Face
// folder.
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/json_output.h"
#include "cli/terminal.h"
#include "cli/value_check.h"
#include "engine/gguf_tokenizer_keys.h"
#include "engine/model_catalog.h"
#include "engine/vocabulary_from_files.h"
#include "model/gguf_input.h"
#include "model/model.h"
#include "storage/gguf_convert.h"
#include "storage/model_files.h"

namespace spillway {
namespace {

using nlohmann::json;

struct CommandOptions {
  std::string model, out, type;
  int threads = 0;
  bool json = false;
};

bool is_folder(const ModelFiles& files) { return files.format != ModelFiles::Format::kGguf; }

// Without --type, a GGUF gets F32 and a folder the type of most of its weights.
TypeMix mix_of(const CommandOptions& options, const ModelFiles& files) {
  std::string name = options.type;
  if (name.empty())
    name = is_folder(files) ? dtype_name(describe_model(files).main_dtype()) : "F32";
  const auto mix = try_type_mix(name);
  SPW_CHECK(mix.has_value(), kInvalidArgument, "--type is {}; give one of {}", name,
            type_mix_names());
  return *mix;
}

bool has_tokenizer(const ModelFiles& files) {
  return std::filesystem::exists(files.folder / "tokenizer.json") ||
         std::filesystem::exists(files.folder / "vocab.json");
}

// Returns the contents of the file to write, and notes about it for the user.
std::pair<ConvertInput, std::vector<std::string>> input_of(const ModelFiles& files) {
  std::pair<ConvertInput, std::vector<std::string>> made{gguf_input(files), {}};
  auto& [input, notes] = made;
  if (!is_folder(files)) return made;
  if (std::string caveat = gguf_caveat(files); !caveat.empty()) notes.push_back(std::move(caveat));
  if (!has_tokenizer(files)) {
    notes.emplace_back("the folder has no tokenizer, so the file has none: give ids, not text");
    return made;
  }
  const auto rows = describe_model(files).spec.vocab_size;
  for (std::string& note : add_tokenizer_keys(vocabulary_from_files(files), rows, input.metadata))
    notes.push_back(std::move(note));
  return made;
}

// Returns one sentence for all tensors that fall back in the same way.
std::vector<std::string> describe_fallbacks(const ConvertReport& report) {
  std::map<std::tuple<int64_t, DType, DType>, int> groups;
  for (const auto& fallback : report.fallbacks)
    ++groups[{fallback.columns, fallback.wanted, fallback.type}];
  std::vector<std::string> lines;
  for (const auto& [group, count] : groups) {
    const auto& [columns, wanted, type] = group;
    lines.push_back(fmt::format("{} of width {} {} {} instead of {}, whose blocks have {} columns",
                                count == 1 ? "1 matrix" : fmt::format("{} matrices", count),
                                columns, count == 1 ? "is" : "are", dtype_name(type),
                                dtype_name(wanted), dtype_info(wanted).block_elements));
  }
  return lines;
}

void print_report(const CommandOptions& options, const TypeMix& mix, const ConvertReport& report,
                  const std::vector<std::string>& notes) {
  const uint64_t bytes = std::filesystem::file_size(options.out);
  if (options.json) {
    json tensors = json::object(), fallbacks = json::array();
    for (const DType type : kAllDTypes) {
      if (const int count = report.tensors_of[static_cast<size_t>(type)]; count > 0)
        tensors[std::string(dtype_name(type))] = count;
    }
    for (const auto& fallback : report.fallbacks) {
      fallbacks.push_back({{"tensor", fallback.tensor},
                           {"columns", fallback.columns},
                           {"wanted", dtype_name(fallback.wanted)},
                           {"type", dtype_name(fallback.type)}});
    }
    print_json({{"path", options.out},
                {"type", mix.name},
                {"bytes", bytes},
                {"weight_bytes", report.bytes},
                {"weight_bytes_before", report.bytes_before},
                {"tensors", tensors},
                {"fallbacks", fallbacks},
                {"quantized_again", report.requantized},
                {"notes", notes}});
    return;
  }
  std::string counts;
  for (const DType type : kAllDTypes) {
    if (const int count = report.tensors_of[static_cast<size_t>(type)]; count > 0)
      counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", count, dtype_name(type));
  }
  print_now(fmt::format("{}: {}, {}; weights {} (before: {})\n  tensors: {}\n", options.out,
                        mix.name, format_bytes(bytes), format_bytes(report.bytes),
                        format_bytes(report.bytes_before), counts));
  for (const std::string& line : describe_fallbacks(report)) print_now("  " + line + "\n");
  if (report.requantized > 0) {
    print_now(fmt::format("  {} matrices were quantized before; they lost a little more now\n",
                          report.requantized));
  }
  for (const std::string& note : notes) print_now("  note: " + note + "\n");
}

int convert(const CommandOptions& options) {
  SPW_CHECK(!options.out.empty(), kInvalidArgument, "give OUT, the GGUF file to write");
  SPW_CHECK(options.type.empty() || try_type_mix(options.type), kInvalidArgument,
            "--type is {}; give one of {}", options.type, type_mix_names());
  const ModelFiles files = open_model(resolve_model(options.model));
  const TypeMix mix = mix_of(options, files);
  const auto [input, notes] = input_of(files);
  ConvertReport report;
  {
    ThreadPool pool(options.threads);
    ProgressBar bar("convert");
    const auto progress = [&](uint64_t done, uint64_t total) {
      bar.update(done, total, fmt::format("{} of {}", format_bytes(done), format_bytes(total)));
    };
    report = convert_gguf(input, mix, options.out,
                          {.progress = progress, .cancel = &interrupted(), .pool = &pool});
  }
  print_report(options, mix, report, notes);
  return 0;
}

}  // namespace

void add_convert_command(Command& app) {
  auto* command =
      app.add_subcommand("convert", "write a GGUF of a model, its matrices in another type");
  auto options = std::make_shared<CommandOptions>();
  command
      ->add_option("MODEL", options->model,
                   "a GGUF file (the first, if it is split), a Hugging Face folder, or smollm2")
      ->required()
      ->basic();
  command->add_option("OUT", options->out, "the GGUF file to write")->show_required()->basic();
  command
      ->add_option("--type", options->type,
                   "f32: exactly what quantized weights stand for; f16, bf16: rounded; q8_0, "
                   "q6_k, q5_k_m, q4_k_m, q4_0: quantized, with llama-quantize's choice of types "
                   "for each matrix")
      ->placeholder("TYPE")
      ->default_text("f32 for a GGUF, a folder's own type")
      ->basic();
  command->add_option("-t,--threads", options->threads, "CPU threads")
      ->check(in_range(0, 1024))
      ->default_text("all cores")
      ->group(HelpGroup::kSpeed)
      ->basic();
  command
      ->add_flag("--json", options->json,
                 "print {\"path\": ..., \"type\": ..., \"bytes\": ..., \"tensors\": {...}, ...}")
      ->group(HelpGroup::kOutput)
      ->basic();
  command->example("spillway convert model-F16.gguf model-Q4_K_M.gguf --type q4_k_m");
  command->example("spillway convert Llama-3.2-1B/ llama.gguf --type q8_0");
  command->note(
      "Vectors (norms, biases) are never quantized. Matrices whose width is no whole number of "
      "blocks get a type with smaller ones, or F16; that is said at the end.");
  command->action([options] { return convert(*options); });
}

}  // namespace spillway
