// SPDX-License-Identifier: Apache-2.0
#include "device/tuning_text.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/json_events.h"
#include "base/printable.h"

namespace spillway {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "spillway-tuning";

const char* layout_name(WeightLayout layout) {
  return layout == WeightLayout::kGroups16 ? "groups16" : "rows";
}

std::optional<WeightLayout> try_layout_from_name(std::string_view name) {
  for (const WeightLayout layout : {WeightLayout::kRows, WeightLayout::kGroups16}) {
    if (name == layout_name(layout)) return layout;
  }
  return std::nullopt;
}

// Checks the limits that all JSON input has to keep (depth, lengths) and discards the values.
class Checked final : public JsonHandler {
  void start_object() override {}
  void key(std::string&) override {}
  void end_object() override {}
  void start_array() override {}
  void end_array() override {}
  void string(std::string&) override {}
  void integer(int64_t) override {}
  void large_unsigned(uint64_t) override {}
  void number(double) override {}
  void boolean(bool) override {}
  void null() override {}
};

// Reads fields of one object; every error names the file and the field.
class Fields {
 public:
  Fields(const json& object, const std::string& label) : object_(object), label_(label) {
    SPW_CHECK(object.is_object(), kInvalidArgument, "{}: expected an object", label);
  }

  const json& array(const char* name) const {
    const json& value = at(name);
    SPW_CHECK(value.is_array(), kInvalidArgument, "{}: '{}' is no array", label_, name);
    return value;
  }
  std::string string(const char* name) const {
    const json& value = at(name);
    SPW_CHECK(value.is_string(), kInvalidArgument, "{}: '{}' is no string", label_, name);
    return value.get<std::string>();
  }
  float number(const char* name) const {
    constexpr double kMost = 1e9;  // scores larger than this cannot be told apart by a softmax
    const json& value = at(name);
    const bool fits = value.is_number() && std::abs(value.get<double>()) <= kMost;
    SPW_CHECK(fits, kInvalidArgument, "{}: '{}' is no number up to {:g}", label_, name, kMost);
    return value.get<float>();
  }
  bool has(const char* name) const { return object_.contains(name); }
  int64_t integer(const char* name, int64_t low, int64_t high) const {
    const json& value = at(name);
    const bool fits =
        value.is_number_integer() &&
        (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(high)) &&
        value.get<int64_t>() >= low && value.get<int64_t>() <= high;
    SPW_CHECK(fits, kInvalidArgument, "{}: '{}' is no integer from {} to {}", label_, name, low,
              high);
    return value.get<int64_t>();
  }

 private:
  const json& at(const char* name) const {
    const auto it = object_.find(name);
    SPW_CHECK(it != object_.end(), kInvalidArgument, "{}: '{}' is missing", label_, name);
    return *it;
  }

  const json& object_;
  const std::string& label_;
};

void parse_shape(const json& entry, const std::string& label, TuningTable& table) {
  constexpr int64_t kMaxSide = int64_t{1} << 40;
  const Fields fields(entry, label);
  const std::string type = fields.string("type"), layout = fields.string("layout");
  const auto dtype = try_dtype_from_name(type);
  SPW_CHECK(dtype.has_value(), kInvalidArgument, "{}: unknown type '{}'", label, printable(type));
  const auto place = try_layout_from_name(layout);
  SPW_CHECK(place.has_value(), kInvalidArgument, "{}: unknown layout '{}'", label,
            printable(layout));
  const auto point = [&](const char* name) {
    return static_cast<int32_t>(fields.integer(name, kMinInflection, kNeverInflection));
  };
  table.set({*dtype, *place, fields.integer("n", 1, kMaxSide), fields.integer("k", 1, kMaxSide)},
            {point("m1"), point("m2")});
}

void parse_scores(const json& entry, const std::string& label, TuningTable& table) {
  const Fields fields(entry, label);
  const float lowest_top = fields.number("lowest_top"), highest = fields.number("highest");
  SPW_CHECK(lowest_top <= highest, kInvalidArgument, "{}: 'lowest_top' is above 'highest'", label);
  table.set_scores(fields.string("model"), {lowest_top, highest});
}

}  // namespace

std::string tuning_text(const TuningTables& tables) {
  constexpr auto kReplace = json::error_handler_t::replace;
  std::string text = fmt::format("{{\"format\": \"{}\", \"version\": {}, \"machines\": [", kFormat,
                                 kTuningVersion);
  const char* between_machines = "\n";
  for (const auto& [machine, table] : tables) {
    const auto quoted = [](const std::string& value) {
      return json(value).dump(-1, ' ', false, kReplace);
    };
    text += fmt::format(
        "{}  {{\"device\": {}, \"hardware\": {}, \"features\": {}, \"threads\": {}, \"linear\": [",
        between_machines, quoted(machine.device), quoted(machine.hardware),
        quoted(machine.features), machine.threads);
    const char* between_shapes = "\n";
    for (const auto& [shape, points] : table.measured()) {
      text += fmt::format(
          "{}    {{\"type\": \"{}\", \"layout\": \"{}\", \"n\": {}, \"k\": {}, \"m1\": {}, "
          "\"m2\": {}}}",
          between_shapes, dtype_name(shape.dtype), layout_name(shape.layout), shape.n, shape.k,
          points.m1, points.m2);
      between_shapes = ",\n";
    }
    text += "], \"scores\": [";
    between_shapes = "\n";
    for (const auto& [model, bounds] : table.scores()) {
      text += fmt::format("{}    {{\"model\": {}, \"lowest_top\": {:.6g}, \"highest\": {:.6g}}}",
                          between_shapes, quoted(model), bounds.lowest_top, bounds.highest);
      between_shapes = ",\n";
    }
    text += "]}";
    between_machines = ",\n";
  }
  return text + "]}\n";
}

TuningTables parse_tuning_text(std::string_view text, const std::string& label) {
  SPW_CHECK(text.size() <= kMaxTuningBytes, kInvalidArgument, "{}: {} bytes are too many", label,
            text.size());
  Checked checked;
  read_json_events(text, label, checked);
  const json root = json::parse(text, nullptr, false);
  SPW_CHECK(!root.is_discarded(), kInvalidArgument, "{}: not JSON", label);
  const Fields fields(root, label);
  SPW_CHECK(fields.string("format") == kFormat, kInvalidArgument, "{}: not a tuning file", label);
  fields.integer("version", kTuningVersion, kTuningVersion);
  TuningTables tables;
  for (const json& entry : fields.array("machines")) {
    const Fields machine(entry, label);
    TuningTable& table =
        tables[{machine.string("device"), machine.string("hardware"), machine.string("features"),
                static_cast<int>(machine.integer("threads", 1, 1 << 20))}];
    for (const json& shape : machine.array("linear")) parse_shape(shape, label, table);
    if (!machine.has("scores")) continue;  // older files do not have them
    for (const json& scores : machine.array("scores")) parse_scores(scores, label, table);
  }
  return tables;
}

}  // namespace spillway
