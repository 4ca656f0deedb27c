// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/jinja_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "base/printable.h"
#include "text/jinja/globals.h"
#include "text/jinja/input.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace spillway {
namespace {

// Sets the variables that the template mentions. Input variables hide functions of the same name.
void fill_root(jinja::Frame& root, jinja::Heap& heap, const jinja::Tree& tree,
               std::span<const JinjaVariable> variables, const JinjaOptions& options) {
  std::unordered_map<std::string_view, const nlohmann::ordered_json*> given;
  for (const JinjaVariable& variable : variables) given[variable.name] = variable.value;
  for (jinja::NameId id = 0; id < tree.names.size(); ++id) {
    const std::string& name = tree.names[id];
    const auto found = given.find(name);
    if (found != given.end()) {
      const bool trusted =
          std::find(options.trusted.begin(), options.trusted.end(), name) != options.trusted.end();
      const auto origin = trusted ? jinja::Origin::kTemplate : jinja::Origin::kInput;
      root.variables[id] = jinja::from_json(heap, *found->second, origin, options.trusted_roles);
    } else if (const auto global = jinja::try_global(heap, name, options.now)) {
      root.variables[id] = *global;
    }
  }
}

std::vector<TextSegment> segments_of(const jinja::OriginBytes& output) {
  std::vector<TextSegment> segments;
  output.view().for_each_run([&](std::string_view text, jinja::Origin origin) {
    segments.push_back(
        {.text = std::string(text), .is_marker = origin == jinja::Origin::kTemplate});
  });
  return segments;
}

}  // namespace

JinjaTemplate::JinjaTemplate(std::string_view source)
    : tree_(std::make_shared<const jinja::Tree>(jinja::parse_template(source))) {}

std::vector<TextSegment> JinjaTemplate::render(const nlohmann::ordered_json& variables,
                                               const JinjaOptions& options) const {
  SPW_CHECK(variables.is_object(), kInvalidArgument,
            "the variables of a chat template are a JSON object");
  std::vector<JinjaVariable> given;
  for (const auto& [name, value] : variables.get_ref<const nlohmann::ordered_json::object_t&>())
    given.push_back({.name = name, .value = &value});
  return render(given, options);
}

std::vector<TextSegment> JinjaTemplate::render(std::span<const JinjaVariable> variables,
                                               const JinjaOptions& options) const {
  jinja::Heap heap(options.limits);
  jinja::Interpreter interpreter(*tree_, heap);
  jinja::OriginBytes output;
  try {
    jinja::Frame root;
    fill_root(root, heap, *tree_, variables, options);
    output = interpreter.run(root);
  } catch (const jinja::TemplateRefusal& refusal) {
    fail(ErrorCode::kInvalidArgument, "{}", printable(refusal.message, 1000));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument || interpreter.line() == 0) throw;
    fail(ErrorCode::kInvalidArgument, "chat template, line {}: {}", interpreter.line(),
         error.what());
  }
  SPW_CHECK(output.bytes.size() <= options.limits.output_bytes, kInvalidArgument,
            "the chat template writes {} bytes; at most {}", output.bytes.size(),
            options.limits.output_bytes);
  return segments_of(output);
}

}  // namespace spillway
