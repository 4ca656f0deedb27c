// SPDX-License-Identifier: Apache-2.0
#include "plan/hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "base/printable.h"
#include "plan/shipped_hardware.h"

namespace spillway {
namespace {

using nlohmann::json;

constexpr double kMega = 1e6, kGiga = 1e9, kTera = 1e12, kMicro = 1e-6;
constexpr double kGiB = 1 << 30;
// The largest number that is accepted, in the units of the file: more than any machine of the next
// years has.
constexpr double kMost = 1e9;
constexpr uintmax_t kMaxFileBytes = uintmax_t{1} << 20;

// One JSON object of the file. Its fields are taken one by one; fields that were not taken are
// errors.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    SPW_CHECK(object.is_object(), kInvalidArgument, "{} is not an object", where_);
  }
  std::string at(const std::string& key) const { return where_ + ": " + key; }
  const json* try_take(const std::string& key) {
    taken_.push_back(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  const json& take(const std::string& key) {
    const json* found = try_take(key);
    SPW_CHECK(found != nullptr, kInvalidArgument, "{} is missing", at(key));
    return *found;
  }
  std::string text(const std::string& key) {
    const json* found = try_take(key);
    if (found == nullptr) return {};
    SPW_CHECK(found->is_string(), kInvalidArgument, "{} is not a string", at(key));
    return found->get<std::string>();
  }
  bool flag(const std::string& key) {
    const json* found = try_take(key);
    if (found == nullptr) return false;
    SPW_CHECK(found->is_boolean(), kInvalidArgument, "{} is not true or false", at(key));
    return found->get<bool>();
  }
  static double positive(const json& value, const std::string& field) {
    SPW_CHECK(value.is_number(), kInvalidArgument, "{} is not a number", field);
    const auto number = value.get<double>();
    SPW_CHECK(std::isfinite(number) && number > 0 && number <= kMost, kInvalidArgument,
              "{} is {}; give a number above 0", field, number);
    return number;
  }
  double number(const std::string& key) { return positive(take(key), at(key)); }
  double number_or(const std::string& key, double otherwise) {
    const json* found = try_take(key);
    return found != nullptr ? positive(*found, at(key)) : otherwise;
  }
  // Reads a number, or [[size, rate], ...] with increasing sizes.
  RateCurve curve(const std::string& key, double unit) {
    return curve_of(take(key), at(key), unit);
  }
  static RateCurve curve_of(const json& value, const std::string& field, double unit) {
    if (value.is_number()) return RateCurve(positive(value, field) * unit);
    SPW_CHECK(value.is_array() && !value.empty(), kInvalidArgument,
              "{} is neither a number nor a list of [size, rate]", field);
    std::vector<std::pair<double, double>> points;
    for (const json& point : value) {
      SPW_CHECK(point.is_array() && point.size() == 2 && point[0].is_number(), kInvalidArgument,
                "{}: a point is [size, rate], not {}", field, printable(point.dump()));
      const auto size = point[0].get<double>();
      SPW_CHECK(size > 0 && (points.empty() || size > points.back().first), kInvalidArgument,
                "{}: sizes grow from point to point, {} does not", field, size);
      points.emplace_back(size, positive(point[1], field) * unit);
    }
    return RateCurve(std::move(points));
  }
  void finish() const {
    for (const auto& [key, value] : object_.items()) {
      SPW_CHECK(std::find(taken_.begin(), taken_.end(), key) != taken_.end(), kInvalidArgument,
                "{}: {} is not a field of a machine's file", where_, printable(key));
    }
  }

 private:
  const json& object_;
  std::string where_;
  std::vector<std::string> taken_;
};

// Reads a number, or {"1": rate, "4": rate} by the number of query heads that share a key head.
RateCurve rates_by_group(const json& value, const std::string& field) {
  if (!value.is_object()) return RateCurve(Fields::positive(value, field) * kGiga);
  std::map<int, double> rates;  // sorted by group: "16" comes before "4" in the file
  for (const auto& [key, rate] : value.items()) {
    int group = 0;
    const char* const end = key.data() + key.size();
    const auto [stop, error] = std::from_chars(key.data(), end, group);
    SPW_CHECK(error == std::errc() && stop == end && group > 0, kInvalidArgument,
              "{}: '{}' is no number of query heads that share a key's", field, printable(key));
    rates[group] = Fields::positive(rate, field + "." + key) * kGiga;
  }
  SPW_CHECK(!rates.empty(), kInvalidArgument, "{} has no rates", field);
  return RateCurve(std::vector<std::pair<double, double>>(rates.begin(), rates.end()));
}

Processor processor_from(const json& object, const std::string& where) {
  Fields fields(object, where);
  Processor processor;
  processor.name = fields.text("name");
  processor.memory_bytes = static_cast<uint64_t>(fields.number("memory_gib") * kGiB);
  processor.read_bytes_per_s = fields.number("read_gb_per_s") * kGiga;
  processor.flop_per_s = fields.number("tflops") * kTera;
  processor.launch_s = fields.number_or("launch_us", 0) * kMicro;
  processor.threads = static_cast<int>(std::min(fields.number_or("threads", 0), 65536.0));
  processor.prompt_attention_flop_per_s = fields.number_or("prompt_attention_tflops", 0) * kTera;
  processor.dequantize_bytes_per_s = fields.number_or("dequantize_gb_per_s", 0) * kGiga;
  processor.activations_per_s = fields.number_or("activations_g_per_s", 0) * kGiga;
  if (const json* linear = fields.try_take("linear_tflops")) {
    SPW_CHECK(linear->is_object(), kInvalidArgument, "{} is not an object by types of weights",
              fields.at("linear_tflops"));
    for (const auto& [name, curve] : linear->items()) {
      const std::string field = fields.at("linear_tflops") + "." + printable(name);
      const auto type = try_dtype_from_name(name);
      SPW_CHECK(type, kInvalidArgument, "{}: no such type of weights", field);
      processor.linear[*type] = Fields::curve_of(curve, field, kTera);
    }
  }
  if (const json* small = fields.try_take("small_matrices")) {
    SPW_CHECK(small->is_object(), kInvalidArgument, "{} is not an object",
              fields.at("small_matrices"));
    Fields of(*small, fields.at("small_matrices"));
    processor.small_elements = of.number("mega_elements") * kMega;
    processor.large_elements = of.number("large_mega_elements") * kMega;
    processor.small_share = of.curve("share", 1);
    of.finish();
    SPW_CHECK(processor.small_elements < processor.large_elements, kInvalidArgument,
              "{}: small matrices are not smaller than large ones", fields.at("small_matrices"));
  }
  if (const json* attention = fields.try_take("attention_gb_per_s")) {
    SPW_CHECK(attention->is_object(), kInvalidArgument, "{} is not an object by types of KV",
              fields.at("attention_gb_per_s"));
    for (const auto& [name, rate] : attention->items()) {
      const std::string field = fields.at("attention_gb_per_s") + "." + printable(name);
      const auto type = try_kv_type_from_name(name);
      SPW_CHECK(type, kInvalidArgument, "{}: no such type of KV", field);
      processor.attention[*type] = rates_by_group(rate, field);
    }
  }
  fields.finish();
  return processor;
}

using ordered = nlohmann::ordered_json;

// Writes as many digits as a measurement has, so that people can read the file.
ordered in_units(double value, double unit) {
  return ordered::parse(fmt::format("{:.5g}", value / unit));
}

ordered curve_to_json(const RateCurve& curve, double unit) {
  if (curve.points().size() == 1) return in_units(curve.points()[0].second, unit);
  ordered points = ordered::array();
  for (const auto& [size, rate] : curve.points())
    points.push_back({static_cast<int64_t>(size), in_units(rate, unit)});
  return points;
}

ordered groups_to_json(const RateCurve& rates) {
  if (rates.points().size() == 1 && rates.points()[0].first == 1)
    return in_units(rates.points()[0].second, kGiga);
  ordered by_group = ordered::object();
  for (const auto& [group, rate] : rates.points())
    by_group[fmt::format("{:.0f}", group)] = in_units(rate, kGiga);
  return by_group;
}

ordered processor_to_json(const Processor& processor) {
  ordered document{{"name", processor.name},
                   {"memory_gib", in_units(static_cast<double>(processor.memory_bytes), kGiB)},
                   {"read_gb_per_s", in_units(processor.read_bytes_per_s, kGiga)},
                   {"tflops", in_units(processor.flop_per_s, kTera)}};
  if (processor.threads > 0) document["threads"] = processor.threads;
  if (processor.launch_s > 0) document["launch_us"] = in_units(processor.launch_s, kMicro);
  if (processor.prompt_attention_flop_per_s > 0) {
    document["prompt_attention_tflops"] = in_units(processor.prompt_attention_flop_per_s, kTera);
  }
  if (processor.dequantize_bytes_per_s > 0)
    document["dequantize_gb_per_s"] = in_units(processor.dequantize_bytes_per_s, kGiga);
  if (processor.activations_per_s > 0)
    document["activations_g_per_s"] = in_units(processor.activations_per_s, kGiga);
  for (const auto& [type, curve] : processor.linear)
    document["linear_tflops"][std::string(dtype_name(type))] = curve_to_json(curve, kTera);
  if (processor.small_elements > 0) {
    document["small_matrices"] = {
        {"mega_elements", in_units(processor.small_elements, kMega)},
        {"large_mega_elements", in_units(processor.large_elements, kMega)},
        {"share", curve_to_json(processor.small_share, 1)}};
  }
  for (const auto& [type, rates] : processor.attention)
    document["attention_gb_per_s"][std::string(kv_type_name(type))] = groups_to_json(rates);
  return document;
}

SplitCurve split_from(const json& object, const std::string& where) {
  Fields fields(object, where + ": splits");
  SplitCurve split;
  const std::string type = fields.text("type");
  const auto dtype = try_dtype_from_name(type);
  SPW_CHECK(dtype, kInvalidArgument, "{}: splits: no such type of weights as {}", where,
            printable(type));
  split.shape = {*dtype, static_cast<int64_t>(fields.number("rows")),
                 static_cast<int64_t>(fields.number("cols"))};
  split.tokens = static_cast<int64_t>(fields.number("tokens"));
  split.cpu = {fields.number_or("cpu_us", 0) * kMicro, fields.number("cpu_all_us") * kMicro};
  split.link = {fields.number_or("link_us", 0) * kMicro, fields.number("link_all_us") * kMicro};
  fields.finish();
  return split;
}

ordered split_to_json(const SplitCurve& split) {
  ordered entry{{"type", std::string(dtype_name(split.shape.type))},
                {"rows", split.shape.rows},
                {"cols", split.shape.cols},
                {"tokens", split.tokens}};
  if (split.cpu.fixed_s > 0) entry["cpu_us"] = in_units(split.cpu.fixed_s, kMicro);
  entry["cpu_all_us"] = in_units(split.cpu.all_s, kMicro);
  if (split.link.fixed_s > 0) entry["link_us"] = in_units(split.link.fixed_s, kMicro);
  entry["link_all_us"] = in_units(split.link.all_s, kMicro);
  return entry;
}

// Writes objects with a line for each member, and a curve in one line.
std::string text_of(const ordered& value, int depth) {
  if (!value.is_object()) return value.dump(-1, ' ', false, json::error_handler_t::replace);
  std::string text = "{";
  for (const auto& [key, member] : value.items()) {
    text += (text.size() > 1 ? ",\n" : "\n") + std::string(static_cast<size_t>(2 * depth + 2), ' ');
    text += ordered(key).dump() + ": " + text_of(member, depth + 1);
  }
  return text + "\n" + std::string(static_cast<size_t>(2 * depth), ' ') + "}";
}

// Returns the words and numbers of a device's name in lower case.
std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words;
  bool inside = false;
  for (const char c : name) {
    const bool part = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (part && !inside) words.emplace_back();
    if (part) words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    inside = part;
  }
  return words;
}

}  // namespace

double RateCurve::at(double size) const {
  SPW_ASSERT(!points_.empty());
  if (size <= points_.front().first) return points_.front().second;
  for (size_t i = 1; i < points_.size(); ++i) {
    const auto& [low, low_rate] = points_[i - 1];
    const auto& [high, high_rate] = points_[i];
    if (size > high) continue;
    const double way = std::log(size / low) / std::log(high / low);
    return low_rate * std::pow(high_rate / low_rate, way);
  }
  return points_.back().second;
}

double RateCurve::best() const {
  double best = 0;
  for (const auto& [size, rate] : points_) best = std::max(best, rate);
  return best;
}

RateCurve RateCurve::times(double factor) const {
  RateCurve result = *this;
  for (auto& [size, rate] : result.points_) rate *= factor;
  return result;
}

Processor with_threads(Processor host, int threads) {
  if (host.threads <= 0 || threads <= 0 || threads >= host.threads) return host;
  const double part = static_cast<double>(threads) / host.threads;
  host.threads = threads;
  for (double* const rate :
       {&host.read_bytes_per_s, &host.flop_per_s, &host.prompt_attention_flop_per_s,
        &host.dequantize_bytes_per_s, &host.activations_per_s})
    *rate *= part;
  for (auto& [type, curve] : host.linear) curve = curve.times(part);
  for (auto& [type, rates] : host.attention) rates = rates.times(part);
  return host;
}

namespace {

// Returns the factor on the rate of large matrices, interpolated by the logarithm of the size.
double share_of_rate(const Processor& on, double tokens, double elements) {
  if (on.small_elements <= 0 || elements >= on.large_elements) return 1;
  const double small = std::min(1.0, on.small_share.at(tokens));
  const double from = std::log(on.small_elements), to = std::log(on.large_elements);
  const double at = std::clamp((std::log(elements) - from) / (to - from), 0.0, 1.0);
  return small + at * (1 - small);
}

}  // namespace

double linear_seconds(const Processor& on, DType type, double tokens, double elements,
                      double bytes) {
  if (tokens <= 0 || elements <= 0) return 0;
  double before = on.launch_s;
  if (on.dequantize_bytes_per_s > 0 && is_quantized(type)) {
    bytes = 2 * elements;
    before += on.launch_s + bytes / on.dequantize_bytes_per_s;
    type = DType::kF16;
  }
  const double flop = 2 * tokens * elements;
  const auto found = on.linear.find(type);
  if (found != on.linear.end()) {
    return before + flop / (found->second.at(tokens) * share_of_rate(on, tokens, elements));
  }
  return before + std::max(bytes / on.read_bytes_per_s, flop / on.flop_per_s);
}

double Hardware::to_device_rate(double bytes, Source from) const {
  const double rate = to_device.at(bytes);
  return from == Source::kPageable && pageable_to_device > 0 ? std::min(rate, pageable_to_device)
                                                             : rate;
}

double attention_seconds(const Processor& on, KvType type, double group, double bytes) {
  if (bytes <= 0) return 0;
  const auto found = on.attention.find(type);
  const double rate = found != on.attention.end() ? found->second.at(group) : on.read_bytes_per_s;
  return on.launch_s + bytes / rate;
}

double prompt_attention_seconds(const Processor& on, double flop) {
  if (flop <= 0) return 0;
  const double rate =
      on.prompt_attention_flop_per_s > 0 ? on.prompt_attention_flop_per_s : on.flop_per_s / 4;
  return on.launch_s + flop / rate;
}

Hardware parse_hardware(std::string_view text, const std::string& where) {
  const json document = json::parse(text, nullptr, false);
  SPW_CHECK(!document.is_discarded(), kInvalidArgument, "{}: not JSON", where);
  Fields fields(document, where);
  const double version = fields.number("version");
  SPW_CHECK(version == 1, kInvalidArgument, "{}: version {} of a machine's file; this reads 1",
            where, version);
  Hardware hardware;
  hardware.name = fields.text("name");
  hardware.source = fields.text("source");
  hardware.measured = fields.text("measured");
  hardware.unified = fields.flag("unified_memory");
  hardware.host = processor_from(fields.take("host"), where + ": host");
  if (const json* gpu = fields.try_take("gpu")) {
    hardware.gpu = processor_from(*gpu, where + ": gpu");
  }
  if (hardware.has_device()) {
    Fields links(fields.take("links"), where + ": links");
    hardware.to_device = links.curve("to_gpu_gb_per_s", kGiga);
    hardware.to_host = links.curve("to_host_gb_per_s", kGiga);
    hardware.transfer_s = links.number_or("transfer_us", 0) * kMicro;
    hardware.meeting_s = links.number_or("meeting_us", 0) * kMicro;
    hardware.pageable_to_device = links.number_or("pageable_to_gpu_gb_per_s", 0) * kGiga;
    hardware.pin_bytes_per_s = links.number_or("pin_gb_per_s", 0) * kGiga;
    hardware.link_beside_cpu = std::min(1.0, links.number_or("beside_cpu", 1));
    hardware.cpu_beside_link = std::min(1.0, links.number_or("cpu_beside_link", 1));
    links.finish();
  } else {
    fields.try_take("links");
  }
  if (const json* object = fields.try_take("disk")) {
    Fields disk(*object, where + ": disk");
    hardware.disk_read = disk.number("read_gb_per_s") * kGiga;
    hardware.disk_write = disk.number("write_gb_per_s") * kGiga;
    hardware.disk_access_s = disk.number_or("access_us", 0) * kMicro;
    hardware.disk_bytes = static_cast<uint64_t>(disk.number("free_gib") * kGiB);
    disk.finish();
  }
  if (const json* splits = fields.try_take("splits")) {
    SPW_CHECK(splits->is_array(), kInvalidArgument, "{}: splits is not a list", where);
    for (const json& entry : *splits) hardware.splits.push_back(split_from(entry, where));
  }
  fields.finish();
  return hardware;
}

std::string hardware_to_json(const Hardware& hardware) {
  ordered document{{"version", 1}, {"name", hardware.name}, {"source", hardware.source}};
  if (!hardware.measured.empty()) document["measured"] = hardware.measured;
  document["host"] = processor_to_json(hardware.host);
  if (hardware.gpu) document["gpu"] = processor_to_json(*hardware.gpu);
  if (hardware.unified) document["unified_memory"] = true;
  if (hardware.has_device()) {
    ordered& links = document["links"];
    links = {{"to_gpu_gb_per_s", curve_to_json(hardware.to_device, kGiga)},
             {"to_host_gb_per_s", curve_to_json(hardware.to_host, kGiga)},
             {"beside_cpu", in_units(hardware.link_beside_cpu, 1)},
             {"cpu_beside_link", in_units(hardware.cpu_beside_link, 1)}};
    if (hardware.pageable_to_device > 0)
      links["pageable_to_gpu_gb_per_s"] = in_units(hardware.pageable_to_device, kGiga);
    if (hardware.transfer_s > 0) links["transfer_us"] = in_units(hardware.transfer_s, kMicro);
    if (hardware.meeting_s > 0) links["meeting_us"] = in_units(hardware.meeting_s, kMicro);
    if (hardware.pin_bytes_per_s > 0)
      links["pin_gb_per_s"] = in_units(hardware.pin_bytes_per_s, kGiga);
  }
  if (hardware.disk_read > 0) {
    document["disk"] = {{"read_gb_per_s", in_units(hardware.disk_read, kGiga)},
                        {"write_gb_per_s", in_units(hardware.disk_write, kGiga)},
                        {"free_gib", in_units(static_cast<double>(hardware.disk_bytes), kGiB)}};
    if (hardware.disk_access_s > 0)
      document["disk"]["access_us"] = in_units(hardware.disk_access_s, kMicro);
  }
  for (const SplitCurve& split : hardware.splits)
    document["splits"].push_back(split_to_json(split));
  return text_of(document, 0) + "\n";
}

std::vector<std::string> shipped_hardware() {
  std::vector<std::string> names;
  // The machine gh200 can be read by its name, but is not offered: a memory shared by GPU and host
  // is priced at the GPU's rate, which gh200 has for only 96 of its 576 GB.
  for (const auto& [name, text] : kShippedHardware) {
    if (name != "gh200") names.emplace_back(name);
  }
  return names;
}

Hardware read_hardware_file(const std::filesystem::path& path) {
  const std::string where = printable_path(path);
  std::error_code error;
  SPW_CHECK(std::filesystem::is_regular_file(path, error), kInvalidArgument,
            "{}: not a file that can be read", where);
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  SPW_CHECK(!error && bytes <= kMaxFileBytes, kInvalidArgument,
            "{}: too large for a machine's file", where);
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  SPW_CHECK(file.good() || file.eof(), kInvalidArgument, "{}: cannot be read", where);
  return parse_hardware(text, where);
}

Hardware read_hardware(const std::string& file_or_name) {
  for (const auto& [name, text] : kShippedHardware) {
    if (file_or_name == name) return parse_hardware(text, std::string(name));
  }
  std::error_code error;
  SPW_CHECK(std::filesystem::exists(file_or_name, error), kInvalidArgument,
            "--hardware {}: neither a file that can be read nor one of {}", printable(file_or_name),
            fmt::join(shipped_hardware(), ", "));
  return read_hardware_file(file_or_name);
}

Hardware nearest_hardware(std::string_view gpu_name, uint64_t gpu_memory, uint64_t host_memory) {
  const std::vector<std::string> wanted = words_of(gpu_name);
  std::optional<Hardware> best;
  double best_score = 0;
  for (const auto& [name, text] : kShippedHardware) {
    Hardware found = parse_hardware(text, std::string(name));
    if (found.gpu.has_value() != !wanted.empty()) continue;
    double score = 0;
    if (found.gpu) {
      for (const std::string& word : words_of(found.gpu->name)) {
        // Words with a digit, such as "H200", identify a GPU better than "NVIDIA".
        const bool model = std::any_of(word.begin(), word.end(),
                                       [](unsigned char c) { return std::isdigit(c) != 0; });
        if (std::find(wanted.begin(), wanted.end(), word) != wanted.end()) score += model ? 10 : 1;
      }
      score -= std::abs(std::log2(static_cast<double>(std::max<uint64_t>(gpu_memory, 1)) /
                                  static_cast<double>(found.gpu->memory_bytes)));
    } else {
      score -= std::abs(std::log2(static_cast<double>(std::max<uint64_t>(host_memory, 1)) /
                                  static_cast<double>(found.host.memory_bytes)));
    }
    if (!best || score > best_score) best = std::move(found), best_score = score;
  }
  SPW_ASSERT(best);
  return *best;
}

}  // namespace spillway
