// SPDX-License-Identifier: Apache-2.0
#include "plan/weight_override_json.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/printable.h"
#include "model/transformer_shape.h"
#include "plan/tier_names.h"

namespace spillway {
namespace {

using nlohmann::json;

constexpr int kMostLayers = 1 << 16;

std::string_view text_of(const json& value, const std::string& field) {
  SPW_CHECK(value.is_string(), kInvalidArgument, "{} is not a string", field);
  return value.get_ref<const std::string&>();
}

int layer_of(std::string_view digits, std::string_view all, const std::string& field) {
  int layer = -1;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, layer);
  SPW_CHECK(error == std::errc() && stop == end && layer >= 0 && layer < kMostLayers,
            kInvalidArgument, "{} is '{}'; give layers and ranges of them, such as 0-3,40", field,
            printable(all));
  return layer;
}

std::vector<LayerRange> layers_of(std::string_view text, const std::string& field) {
  std::vector<LayerRange> ranges;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const size_t dash = part.find('-');
    const int first = layer_of(part.substr(0, dash), text, field);
    const int last =
        dash == std::string_view::npos ? first : layer_of(part.substr(dash + 1), text, field);
    SPW_CHECK(first <= last, kInvalidArgument, "{}: {} ends before it begins", field,
              printable(part));
    ranges.push_back({first, last});
    begin = end + 1;
  }
  return ranges;
}

std::string matrix_of(std::string_view text, const std::string& field) {
  const auto names = layer_matrix_names();
  SPW_CHECK(std::ranges::count(names, text) > 0 || text == "qkv", kInvalidArgument,
            "{} is '{}', no matrix of a layer ({}, or qkv for the first three)", field,
            printable(text), fmt::join(names, ", "));
  return std::string(text);
}

WeightOverride override_from(const json& entry, const std::string& field) {
  SPW_CHECK(entry.is_object(), kInvalidArgument, "{} is not an object with layers, role and home",
            field);
  WeightOverride read;
  for (const auto& [key, value] : entry.items()) {
    const std::string here = field + "." + printable(key);
    if (key == "layers") {
      read.layers = layers_of(text_of(value, here), here);
    } else if (key == "role") {
      read.matrix = matrix_of(text_of(value, here), here);
    } else if (key == "home") {
      read.home = parse_tier(text_of(value, here), here);
    } else {
      fail(ErrorCode::kInvalidArgument, "{}: no such field (layers, role, home)", here);
    }
  }
  SPW_CHECK(entry.contains("home"), kInvalidArgument, "{} says no home: gpu, host or disk", field);
  return read;
}

}  // namespace

std::vector<WeightOverride> weight_overrides_from(const json& value, const std::string& field) {
  SPW_CHECK(value.is_array(), kInvalidArgument, "{} is not a list of objects with a home", field);
  std::vector<WeightOverride> all;
  for (const json& entry : value)
    all.push_back(override_from(entry, fmt::format("{}[{}]", field, all.size())));
  return all;
}

nlohmann::ordered_json weight_overrides_to_json(const std::vector<WeightOverride>& overrides) {
  auto list = nlohmann::ordered_json::array();
  for (const WeightOverride& entry : overrides) {
    nlohmann::ordered_json& written = list.emplace_back(nlohmann::ordered_json::object());
    std::string layers;
    for (const auto& [first, last] : entry.layers) {
      layers += layers.empty() ? "" : ",";
      layers += first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
    }
    if (!layers.empty()) written["layers"] = layers;
    if (!entry.matrix.empty()) written["role"] = entry.matrix;
    written["home"] = tier_name(entry.home);
  }
  return list;
}

}  // namespace spillway
