// SPDX-License-Identifier: Apache-2.0
// Chat templates as models bring them: Jinja, run in a sandbox of its own.
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

// Refers to a value, which must outlive the rendering: copying JSON is recursive, and a hostile
// input may be nested deeply.
struct JinjaVariable {
  std::string_view name;
  const nlohmann::ordered_json* value = nullptr;
};

// What Hugging Face's apply_chat_template runs: Jinja with trim_blocks and lstrip_blocks, break,
// continue and generation, tojson, raise_exception and strftime_now. Nothing else can be reached,
// no value can be changed, and every resource is limited.
// Cheap to copy: copies share what was parsed. Immutable, so thread-safe.
class JinjaTemplate {
 public:
  // Throws Error(kInvalidArgument) with the line and what is wrong.
  explicit JinjaTemplate(std::string_view source);

  // `variables` is an object. Text of the template, and of variables that are trusted, is in
  // markers; all text of other variables is not, whatever the template does to it. Segments are not
  // empty, and neighbours differ in is_marker.
  // Throws Error(kInvalidArgument) for what the template cannot render, with its own message when
  // it calls raise_exception(), and at any of the limits.
  std::vector<TextSegment> render(const nlohmann::ordered_json& variables,
                                  const JinjaOptions& options = {}) const;
  // The same with variables from several places; of one name the last counts.
  std::vector<TextSegment> render(std::span<const JinjaVariable> variables,
                                  const JinjaOptions& options = {}) const;

 private:
  std::shared_ptr<const jinja::Tree> tree_;
};

}  // namespace spillway
