// SPDX-License-Identifier: Apache-2.0
// spillway list: lists the models in the cache.
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <string>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/printable.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/terminal.h"
#include "engine/model_catalog.h"
#include "model/model.h"
#include "storage/model_files.h"

namespace spillway {
namespace {

using nlohmann::json;

// Describes a model by its files, or says why they cannot be read.
json describe(const CachedModel& model) {
  json out{{"name", model.name}, {"path", model.path.string()}, {"bytes", model.bytes}};
  out["origin"] = model.origin.empty() ? json() : json(model.origin);
  try {
    const ModelFiles files = open_model(model.path);
    out["format"] = files.format == ModelFiles::Format::kGguf ? "GGUF" : "Hugging Face";
    const Model described = describe_model(files);
    out["type"] = dtype_name(described.main_dtype());
    out["parameters"] = parameter_count(described.spec);
  } catch (const Error& error) {
    out["problem"] = error.what();
  }
  return out;
}

void print_table(const json& models) {
  size_t name_width = 4;
  for (const json& model : models)
    name_width = std::max(name_width, printable(model["name"].get<std::string>()).size());
  print_now(fmt::format("{:{}}  {:>10}  {:5}  {}\n", "name", name_width, "size", "type", "from"));
  for (const json& model : models) {
    const std::string origin =
        model["origin"].is_null() ? "unknown (not recorded)" : model["origin"];
    print_now(fmt::format("{:{}}  {:>10}  {:5}  {}\n", printable(model["name"].get<std::string>()),
                          name_width, format_bytes(model["bytes"].get<uint64_t>()),
                          model.value("type", "?"), origin));
    if (model.contains("problem"))
      print_now(fmt::format("  cannot be used: {}\n", model["problem"].get<std::string>()));
  }
}

int list(bool as_json) {
  const std::string folder = models_folder().string();
  json models = json::array();
  for (const CachedModel& model : cached_models()) models.push_back(describe(model));
  if (as_json) {
    print_json({{"folder", folder}, {"models", models}});
  } else if (models.empty()) {
    print_now(
        fmt::format("no models in {}\n"
                    "scripts/fetch_model.sh smollm2 gets a small one (94 MiB); GGUF files and "
                    "Hugging Face folders put there are listed too,\n"
                    "and every command takes a path to a model elsewhere.\n",
                    folder));
  } else {
    print_table(models);
    print_now(fmt::format("in {}; run one: spillway run {} -p 'Once upon a time'\n", folder,
                          printable(models[0]["name"].get<std::string>())));
  }
  return 0;
}

}  // namespace

void add_list_command(Command& app) {
  auto* command = app.add_subcommand("list", "list models in the cache: sizes, types, origins");
  auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "print {\"folder\": ..., \"models\": [...]}")
      ->group(HelpGroup::kOutput)
      ->basic();
  command->example("spillway list --json");
  command->note(
      "The cache is $XDG_CACHE_HOME/spillway/models, or ~/.cache/spillway/models. Every command "
      "takes the names listed.");
  command->action([as_json] { return list(*as_json); });
}

}  // namespace spillway
