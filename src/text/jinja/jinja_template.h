// SPDX-License-Identifier: Apache-2.0
// Runs the chat templates that models come with: Jinja, in a sandbox.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "text/jinja/jinja_options.h"
#include "text/text_segment.h"

namespace spillway {

namespace jinja {
struct Tree;
}

// A named value. It must outlive the rendering and is not copied, because copying JSON is recursive
// and a hostile input may be nested deeply.
struct JinjaVariable {
  std::string_view name;
  const nlohmann::ordered_json* value = nullptr;
};

// Supports what Hugging Face's apply_chat_template runs: Jinja with trim_blocks and lstrip_blocks,
// break, continue and generation, tojson, raise_exception and strftime_now. A template can reach
// nothing else, cannot change a value, and is limited in every resource.
// Cheap to copy: copies share the parsed tree. Immutable, so thread-safe.
class JinjaTemplate {
 public:
  // Throws Error(kInvalidArgument) with the line and the reason.
  explicit JinjaTemplate(std::string_view source);

  // `variables` must be an object. Text of the template and of trusted variables is in marker
  // segments, the only ones in which control tokens are recognized; text of other variables never
  // is, whatever the template does to it. Segments are not empty, and neighbours differ in
  // is_marker. Throws Error(kInvalidArgument) if the template cannot be rendered or reaches a
  // limit; if it calls raise_exception(), the error has the template's own message.
  std::vector<TextSegment> render(const nlohmann::ordered_json& variables,
                                  const JinjaOptions& options = {}) const;
  // Does the same with a list of variables; if a name occurs several times, the last one counts.
  std::vector<TextSegment> render(std::span<const JinjaVariable> variables,
                                  const JinjaOptions& options = {}) const;

 private:
  std::shared_ptr<const jinja::Tree> tree_;
};

}  // namespace spillway
