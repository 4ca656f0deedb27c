// SPDX-License-Identifier: Apache-2.0
// spillway inspect: shows what a model's files contain and how much memory it needs, and lists
// devices.
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/printable.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/json_output.h"
#include "cli/local_devices.h"
#include "cli/terminal.h"
#include "engine/loaded_model.h"
#include "engine/model_catalog.h"
#include "engine/vocabulary_from_files.h"
#include "plan/footprint.h"
#include "plan/resolved_plan.h"
#include "runtime/device_traits.h"
#include "storage/model_files.h"
#include "text/chat_template.h"

namespace spillway {
namespace {

// Returns "Jinja" if the chat template can be used, else what is wrong with it.
std::string describe_template(const Vocabulary& vocabulary) {
  try {
    ChatTemplate(vocabulary.chat_template, vocabulary);
    return "Jinja";
  } catch (const Error& error) {
    return error.what();
  }
}

using nlohmann::json;

struct InspectOptions {
  std::string model;
  bool devices = false;
  bool tensors = false;
  bool metadata = false;
  bool json = false;
};

json describe_tokenizer(const ModelFiles& files) {
  try {
    const Vocabulary vocabulary = vocabulary_from_files(files);
    json out{{"kind", vocabulary.model == TokenizerModel::kByteLevelBpe ? "byte-level BPE"
                                                                        : "SentencePiece"},
             {"tokens", vocabulary.tokens.size()},
             {"add_bos", vocabulary.add_bos}};
    if (!vocabulary.chat_template.empty()) {
      out["chat_template"] = describe_template(vocabulary);
    }
    return out;
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
}

// Returns the groups of layers that keep the same state of a sequence, with the KV bytes of a full
// context.
json describe_states(const ModelSpec& spec, const KvShapes& kv) {
  json states = json::array();
  for (int i = 0; i < kv.groups(); ++i) {
    const StateSpec& state = spec.states.groups[static_cast<size_t>(i)].state;
    const KvGroupShape& shape = kv.group(i);
    const int64_t blocks = shape.rule.most_blocks(spec.max_context, RunSize().micro_tokens);
    json& out = states.emplace_back(json{{"kind", state_kind_name(state.kind)},
                                         {"layers", shape.layers},
                                         {"bytes_full_context", blocks * shape.block_bytes()}});
    if (state.window > 0) out["window"] = state.window;
  }
  return states;
}

json describe_spec(const Model& model) {
  const ModelSpec& spec = model.spec;
  const KvShapes kv = kv_shapes(spec.states, default_kv_type(model));
  const int64_t kv_token_bytes = kv.block_bytes() / kKvBlockTokens;
  const json states = describe_states(spec, kv);
  int64_t full_context = 0;
  for (const json& state : states) full_context += state["bytes_full_context"].get<int64_t>();
  std::map<std::string, int64_t> types;
  for (const BoundWeight& weight : model.weights)
    types[std::string(dtype_name(weight.dtype))] += weight.bytes();
  return {{"name", spec.name},
          {"family", spec.family},
          {"executable", spec.executable},
          {"parameters", parameter_count(spec)},
          {"layers", spec.layer_count()},
          {"hidden", spec.hidden},
          {"heads", spec.heads},
          {"kv_heads", spec.kv_heads},
          {"head_dim", spec.head_dim},
          {"ffn", spec.ffn},
          {"vocabulary", spec.vocab_size},
          {"context", spec.max_context},
          {"weight_bytes", model.weight_bytes()},
          {"weight_bytes_by_type", types},
          {"kv_type", kv_type_name(default_kv_type(model))},
          {"kv_bytes_per_token", kv_token_bytes},
          {"kv_bytes_full_context", full_context},
          {"state_groups", states}};
}

// Returns the memory that a run on this machine's CPU takes.
json describe_needs(const Model& model) {
  const auto cpu = local_devices().make({.name = "cpu"});
  const RunSize size{.tokens = std::min<int64_t>(4096, model.spec.max_context),
                     .kv_type = default_kv_type(model)};
  Footprint needs = resolve(model, Plan(), size, traits_of(*cpu)).needs;
  needs.device.add(MemoryTag::kWeights, needs.mapped);
  needs.device.add(MemoryTag::kWorkspace, needs.workspace);
  json by_tag = json::object();
  for (int tag = 0; tag < kMemoryTagCount; ++tag) {
    if (needs.device.bytes[tag] > 0)
      by_tag[memory_tag_name(static_cast<MemoryTag>(tag))] = needs.device.bytes[tag];
  }
  return {{"context", size.tokens},
          {"host_bytes", needs.device.total()},
          {"host_bytes_by_tag", by_tag},
          {"mapped_weight_bytes", needs.mapped}};
}

json describe_tensors(const ModelFiles& files) {
  json out = json::array();
  for (const TensorInfo& tensor : files.tensors) {
    out.push_back({{"name", tensor.name},
                   {"type", dtype_name(tensor.dtype)},
                   {"shape", tensor.shape},
                   {"file", tensor.extent.file},
                   {"offset", tensor.extent.offset},
                   {"bytes", tensor.extent.bytes}});
  }
  return out;
}

json inspect_model(const InspectOptions& options) {
  const std::string path = resolve_model(options.model);
  if (const auto name = try_dummy_name(path)) {
    const Model model = describe_dummy_model(*name);
    return {{"format", "dummy"}, {"model", describe_spec(model)}, {"needs", describe_needs(model)}};
  }

  const ModelFiles files = open_model(path);
  SPW_CHECK(!interrupted(), kCancelled, "stopped after reading {}", printable_path(path));
  json out{{"format", files.format == ModelFiles::Format::kGguf ? "GGUF" : "Hugging Face"},
           {"tensor_count", files.tensors.size()},
           {"tokenizer", describe_tokenizer(files)}};
  for (const auto& file : files.paths) out["files"].push_back(file.string());
  try {
    const Model model = describe_model(files);
    out["model"] = describe_spec(model);
    out["needs"] = describe_needs(model);
  } catch (const Error& error) {
    // A file that cannot be run is still described, unless it has neither a model nor a vocabulary.
    if (out["tokenizer"].contains("error")) throw;
    out["model_error"] = error.what();
  }
  if (options.metadata) {
    for (const std::string_view key : files.metadata.keys())
      out["metadata"][std::string(key)] = files.metadata.describe(key);
  }
  if (options.tensors) out["tensors"] = describe_tensors(files);
  return out;
}

json inspect_devices() {
  const auto cpu = local_devices().make({.name = "cpu"});
  std::vector<DeviceInfo> all{cpu->info()};
  for (const DeviceInfo& gpu : local_devices().gpus()) all.push_back(gpu);
  json out = json::array();
  for (const DeviceInfo& info : all) {
    out.push_back({{"name", info.name},
                   {"hardware", info.hardware},
                   {"features", info.features},
                   {"threads", info.threads},
                   {"memory_bytes", info.memory_bytes}});
  }
  return out;
}

void print_model(const json& out) {
  const auto line = [](const char* key, const std::string& value) {
    print_now(fmt::format("{:<12}{}\n", key, value));
  };
  const auto bytes = [](const json& value) { return format_bytes(value.get<uint64_t>()); };
  line("format", out["format"].get<std::string>());
  if (out.contains("files")) {
    for (const json& file : out["files"]) line("file", printable_path(file.get<std::string>()));
  }
  if (out.contains("model_error"))
    line("model", "cannot be run: " + out["model_error"].get<std::string>());
  if (out.contains("model")) {
    const json& m = out["model"];
    line("model",
         fmt::format("{} ({} family, {:.3g} billion parameters{})", m["name"].get<std::string>(),
                     m["family"].get<std::string>(), m["parameters"].get<double>() / 1e9,
                     m["executable"].get<bool>() ? "" : ", for planning only"));
    line("shape",
         fmt::format(
             "{} layers, hidden {}, {} heads, {} KV heads of {}, feed-forward {}, vocabulary {}",
             m["layers"].get<int>(), m["hidden"].get<int64_t>(), m["heads"].get<int>(),
             m["kv_heads"].get<int>(), m["head_dim"].get<int>(), m["ffn"].get<int64_t>(),
             m["vocabulary"].get<int64_t>()));
    std::string types;
    for (const auto& [type, size] : m["weight_bytes_by_type"].items())
      types += fmt::format("  {} {}", type, bytes(size));
    line("weights", fmt::format("{}:{}", bytes(m["weight_bytes"]), types));
    line("context", fmt::format("{} tokens; KV cache ({}) {} per token, {} when full",
                                m["context"].get<int64_t>(), m["kv_type"].get<std::string>(),
                                bytes(m["kv_bytes_per_token"]), bytes(m["kv_bytes_full_context"])));
    std::string windows;
    for (const json& state : m["state_groups"]) {
      if (!state.contains("window")) continue;
      windows += fmt::format("{}{} of {} layers see a {} of {} tokens", windows.empty() ? "" : ", ",
                             state["layers"].get<int>(), m["layers"].get<int>(),
                             state["kind"].get<std::string>(), state["window"].get<int>());
    }
    if (!windows.empty()) line("attention", windows);
  }
  if (out.contains("needs")) {
    const json& n = out["needs"];
    std::string tags;
    for (const auto& [tag, count] : n["host_bytes_by_tag"].items())
      tags += fmt::format("{}{} {}", tags.empty() ? "" : ", ", tag, bytes(count));
    line("memory",
         fmt::format("{} on the CPU, for {} tokens of context: {}{}", bytes(n["host_bytes"]),
                     n["context"].get<int64_t>(), tags,
                     n["mapped_weight_bytes"].get<uint64_t>() > 0 ? "; weights are mapped" : ""));
  }
  if (out.contains("tokenizer")) {
    const json& t = out["tokenizer"];
    line("tokenizer",
         t.contains("error")
             ? t["error"].get<std::string>()
             : fmt::format("{}, {} tokens{}", t["kind"].get<std::string>(),
                           t["tokens"].get<size_t>(),
                           t.contains("chat_template")
                               ? ", chat template " + t["chat_template"].get<std::string>()
                               : ""));
  }
  if (out.contains("metadata")) {
    for (const auto& [key, value] : out["metadata"].items())
      print_now(fmt::format("{} = {}\n", key, value.get<std::string>()));
  }
  if (out.contains("tensors")) {
    for (const json& t : out["tensors"]) {
      print_now(fmt::format("{:<48} {:<5} {:<16} {:>10}\n", printable(t["name"].get<std::string>()),
                            t["type"].get<std::string>(), t["shape"].dump(), bytes(t["bytes"])));
    }
  }
}

void print_devices(const json& devices) {
  for (const json& d : devices) {
    print_now(fmt::format("{:<6} {}, {} threads, {} ({})\n", d["name"].get<std::string>(),
                          d["hardware"].get<std::string>(), d["threads"].get<int>(),
                          format_bytes(d["memory_bytes"].get<uint64_t>()),
                          d["features"].get<std::string>()));
  }
}

int inspect(const InspectOptions& options) {
  SPW_CHECK(!options.model.empty() || options.devices, kInvalidArgument,
            "give a MODEL, or --devices");
  json out = options.model.empty() ? json::object() : inspect_model(options);
  if (options.devices) out["devices"] = inspect_devices();
  if (options.json) {
    print_json(out, 2);
    return 0;
  }
  if (!options.model.empty()) print_model(out);
  if (options.devices) print_devices(out["devices"]);
  return 0;
}

}  // namespace

void add_inspect_command(Command& app) {
  auto* command = app.add_subcommand(
      "inspect", "show what is in a model's files and what it needs; what devices there are");
  auto options = std::make_shared<InspectOptions>();
  command
      ->add_option("-m,--model,MODEL", options->model,
                   "GGUF file, Hugging Face folder, smollm2, or dummy:NAME")
      ->basic();
  command->add_flag("--devices", options->devices, "list the devices of this machine")->basic();
  command->add_flag("--tensors", options->tensors, "list every tensor")->basic();
  command->add_flag("--metadata", options->metadata, "list every key")->basic();
  command->add_flag("--json", options->json, "print JSON")->group(HelpGroup::kOutput)->basic();
  command->example("spillway inspect model.gguf --tensors");
  command->example("spillway inspect dummy:opt-175b      (sizes of a model without its files)");
  command->example("spillway inspect --devices");
  command->action([options] { return inspect(*options); });
}

}  // namespace spillway
