// SPDX-License-Identifier: Apache-2.0
#include "model/foreign_quantization.h"

#include <algorithm>
#include <string_view>

#include "base/printable.h"
#include "model/metadata_fields.h"

namespace spillway {
namespace {

bool is_true(const Metadata& m, std::string_view key) {
  const Value* value = m.find(key);
  return value != nullptr && std::holds_alternative<bool>(*value) && std::get<bool>(*value);
}

bool has_keys_below(const Metadata& m, std::string_view prefix) {
  const auto keys = m.keys();
  return std::any_of(keys.begin(), keys.end(),
                     [&](std::string_view key) { return key.starts_with(prefix); });
}

// Looks at config.json. bitsandbytes leaves its section there even if both of its switches are off.
std::optional<std::string> try_by_config(const Metadata& m) {
  for (const std::string section : {"quantization_config.", "compression_config."}) {
    if (!has_keys_below(m, section)) continue;
    const bool bits_and_bytes =
        m.contains(section + "load_in_8bit") || m.contains(section + "load_in_4bit");
    const bool off = !is_true(m, section + "load_in_8bit") && !is_true(m, section + "load_in_4bit");
    if (bits_and_bytes && off) continue;
    if (const std::string* method = m.try_string(section + "quant_method"))
      return printable(*method);
    if (bits_and_bytes) return "bitsandbytes";
    if (m.contains("quantization.bits")) return "the quantization of MLX";
    return "the quantization that config.json names";
  }
  if (m.contains("quantization.bits")) return "the quantization of MLX";
  return std::nullopt;
}

// Looks at tensors: folders from before quantization_config have a file of the library's own beside
// config.json instead.
std::optional<std::string> try_by_tensors(const ModelFiles& files) {
  const auto any_ends_with = [&](std::string_view ending) {
    const auto ends = [&](const auto& tensor) { return tensor.name.ends_with(ending); };
    return std::any_of(files.unsupported.begin(), files.unsupported.end(), ends) ||
           std::any_of(files.tensors.begin(), files.tensors.end(), ends);
  };
  if (any_ends_with(".qweight")) return "gptq or awq";
  if (any_ends_with(".weight_scale") || any_ends_with(".weight_scale_inv")) return "fp8";
  return std::nullopt;
}

}  // namespace

std::optional<std::string> try_foreign_quantization(const ModelFiles& files) {
  if (files.format != ModelFiles::Format::kHuggingFace) return std::nullopt;
  if (auto method = try_by_config(files.metadata)) return method;
  return try_by_tensors(files);
}

}  // namespace spillway
