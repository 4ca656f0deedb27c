// SPDX-License-Identifier: Apache-2.0
#include "plan/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/printable.h"
#include "model/transformer_shape.h"
#include "plan/named_value.h"
#include "plan/tier_names.h"
#include "plan/weight_override_json.h"

namespace spillway {
namespace {

using nlohmann::json;

constexpr std::array<const char*, 4> kScheduleNames = {"continuous", "zigzag", "diagonal", "row"};
constexpr std::array<const char*, 2> kResidenceNames = {"even", "gain"};
constexpr std::array<const char*, 3> kAttentionNames = {"auto", "cpu", "gpu"};
constexpr int kMostMicroBatches = 1 << 20;
constexpr int64_t kMostTokens = int64_t{1} << 30;

TierShares checked(const TierShares& shares, std::string_view what) {
  for (const double share : {shares.device, shares.host, shares.disk}) {
    SPW_CHECK(std::isfinite(share) && share >= 0 && share <= 1, kInvalidArgument,
              "{}: shares lie between 0 and 100 percent", what);
  }
  const double sum = shares.device + shares.host + shares.disk;
  SPW_CHECK(std::abs(sum - 1) < 1e-6, kInvalidArgument,
            "{}: the shares on GPU, host and disk add up to {:.6g} percent, not 100", what,
            sum * 100);
  return shares;
}

double number(const json& value, const std::string& field) {
  SPW_CHECK(value.is_number(), kInvalidArgument, "{} is not a number", field);
  return value.get<double>();
}

TierShares shares_of(const json& value, const std::string& field) {
  SPW_CHECK(value.is_object(), kInvalidArgument,
            "{} is not an object with gpu, host and disk in percent", field);
  TierShares shares{0, 0, 0};
  double* const of[] = {&shares.device, &shares.host, &shares.disk};
  for (const auto& [key, share] : value.items()) {
    const Tier tier = parse_tier(key, field + ": a tier");
    *of[static_cast<size_t>(tier)] = number(share, field + "." + key) / 100;
  }
  return checked(shares, field);
}

json shares_to_json(const TierShares& shares) {
  return {{"gpu", shares.device * 100}, {"host", shares.host * 100}, {"disk", shares.disk * 100}};
}

std::string text_of(const json& value, const std::string& field) {
  SPW_CHECK(value.is_string(), kInvalidArgument, "{} is not a string", field);
  return value.get<std::string>();
}

int count_of(const json& value, const std::string& field) {
  SPW_CHECK(value.is_number_integer(), kInvalidArgument, "{} is not a whole number", field);
  const auto count = value.get<int64_t>();
  SPW_CHECK(count >= 0 && count <= kMostMicroBatches, kInvalidArgument, "{} is {}; give 0 to {}",
            field, count, kMostMicroBatches);
  return static_cast<int>(count);
}

}  // namespace

const char* schedule_name(ScheduleKind kind) { return kScheduleNames[static_cast<size_t>(kind)]; }
const char* attention_place_name(AttentionPlace place) {
  return kAttentionNames[static_cast<size_t>(place)];
}
bool CpuLinearShare::any() const {
  return share > 0 || std::ranges::any_of(modules, [](const auto& of) { return of.second > 0; });
}

void CpuLinearShare::add(double more) {
  const auto within = [](double of) { return std::clamp(of, 0.0, 1.0); };
  share = within(share + more);
  for (auto& [op, of] : modules) of = within(of + more);
}

std::vector<CpuLinearShare> parse_cpu_linear(std::string_view text, std::string_view option) {
  const auto refuse = [&] {
    fail(ErrorCode::kInvalidArgument,
         "{} {}: give percent, 66, or percent by growing numbers of tokens, 1:66,64:50", option,
         printable(text));
  };
  const auto parse = [&](std::string_view part, auto& number) {
    const char* const end = part.data() + part.size();
    const auto [stop, error] = std::from_chars(part.data(), end, number);
    if (error != std::errc() || stop != end) refuse();
  };
  std::vector<CpuLinearShare> shares;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view entry = text.substr(0, comma);
    const size_t colon = entry.find(':');
    CpuLinearShare at{.tokens = kAnyTokens};
    if (colon != std::string_view::npos) parse(entry.substr(0, colon), at.tokens);
    double percent = -1;
    parse(colon == std::string_view::npos ? entry : entry.substr(colon + 1), percent);
    if (!(percent >= 0 && percent <= 100) || at.tokens < 1) refuse();
    if (!shares.empty() && at.tokens <= shares.back().tokens) refuse();
    at.share = percent / 100;
    shares.push_back(at);
    if (comma == std::string_view::npos) return shares;
    text.remove_prefix(comma + 1);
  }
}

ScheduleKind parse_schedule(std::string_view text) {
  return named_value<ScheduleKind>(kScheduleNames, text, "the schedule");
}
AttentionPlace parse_attention_place(std::string_view text) {
  return named_value<AttentionPlace>(kAttentionNames, text, "the place of attention");
}

bool Plan::all_on_device() const {
  return weights.device == 1 && embeddings == Tier::kDevice && kv.device == 1 &&
         activations.device == 1 && std::ranges::all_of(overrides, [](const WeightOverride& o) {
           return o.home == Tier::kDevice;
         });
}

AttentionPlace same_for_every_sequence(const Plan& plan) {
  const bool one_home = plan.kv.device == 0 && plan.kv.disk == 0;
  return one_home || plan.kv.host == 0 ? AttentionPlace::kCpu : AttentionPlace::kGpu;
}

TierShares parse_shares(std::string_view text, std::string_view option) {
  std::vector<double> percent;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    double value = 0;
    const char *first = text.data() + begin, *last = text.data() + end;
    const auto [stop, error] = std::from_chars(first, last, value);
    SPW_CHECK(error == std::errc() && stop == last && first != last, kInvalidArgument,
              "{} is '{}'; give percent on GPU, host and disk, such as 20,80,0", option,
              printable(text));
    percent.push_back(value);
    begin = end + 1;
  }
  SPW_CHECK(percent.size() == 3, kInvalidArgument,
            "{} is '{}'; give three numbers, percent on GPU, host and disk, such as 20,80,0",
            option, printable(text));
  return checked({percent[0] / 100, percent[1] / 100, percent[2] / 100}, option);
}

namespace {

// A field of a plan's file and its reader; errors name `field`.
struct PlanField {
  const char* key;
  void (*read)(Plan& plan, const json& value, const std::string& field);
  int since = 2, until = kPlanVersion;  // versions that have it
};

int64_t positive_of(const json& value, const std::string& field) {
  SPW_CHECK(value.is_number_integer(), kInvalidArgument, "{} is not a whole number", field);
  const auto count = value.get<int64_t>();
  SPW_CHECK(count > 0 && count <= kMostTokens, kInvalidArgument, "{} is {}; give 1 to {}", field,
            count, kMostTokens);
  return count;
}

double percent_of(const json& value, const std::string& field) {
  const double share = number(value, field) / 100;
  SPW_CHECK(share >= 0 && share <= 1, kInvalidArgument, "{} is {} percent; give 0 to 100", field,
            share * 100);
  return share;
}

// Returns the name of a linear op, also for the shorter names in plans of earlier versions. Empty:
// there is no such op.
std::string_view try_linear_op(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kShorter[] = {
      {"out", "attention_out"}, {"up", "mlp_up"}, {"down", "mlp_down"}};
  for (const auto& [shorter, op] : kShorter) {
    if (name == shorter) return op;
  }
  const auto known = linear_op_names();
  const auto found = std::ranges::find(known, name);
  return found == known.end() ? std::string_view() : *found;
}

std::vector<CpuLinearShare> cpu_linear_of(const json& value, const std::string& field) {
  SPW_CHECK(value.is_array(), kInvalidArgument, "{} is not a list of [tokens, percent]", field);
  std::vector<CpuLinearShare> shares;
  for (const json& point : value) {
    SPW_CHECK(
        point.is_array() && (point.size() == 2 || (point.size() == 3 && point[2].is_object())),
        kInvalidArgument,
        "{}: an entry is [tokens, percent] or [tokens, percent, {{\"mlp_up\": percent}}], not {}",
        field, printable(point.dump()));
    const auto tokens = static_cast<int>(positive_of(point[0], field));
    SPW_CHECK(shares.empty() || tokens > shares.back().tokens, kInvalidArgument,
              "{}: tokens grow from entry to entry, {} does not", field, tokens);
    CpuLinearShare& at = shares.emplace_back();
    at.tokens = tokens;
    at.share = percent_of(point[1], field);
    if (point.size() < 3) continue;
    for (const auto& [name, percent] : point[2].items()) {
      const std::string_view op = try_linear_op(name);
      SPW_CHECK(!op.empty(), kInvalidArgument, "{}: no linear op has the name {}; they are {}",
                field, printable(name), fmt::join(linear_op_names(), ", "));
      at.modules[std::string(op)] = percent_of(percent, field);
    }
  }
  return shares;
}

PlanOrigin origin_of(const json& value, const std::string& field) {
  SPW_CHECK(value.is_object(), kInvalidArgument, "{} is not an object with model and hardware",
            field);
  PlanOrigin origin;
  for (const auto& [key, text] : value.items()) {
    SPW_CHECK(key == "model" || key == "hardware", kInvalidArgument, "{}: no field {}", field,
              printable(key));
    (key == "model" ? origin.model : origin.hardware) = text_of(text, field + "." + key);
  }
  return origin;
}

bool bool_of(const json& value, const std::string& field) {
  SPW_CHECK(value.is_boolean(), kInvalidArgument, "{} is not true or false", field);
  return value.get<bool>();
}

void read_max_concurrent(Plan& plan, const json& value, const std::string& field) {
  plan.max_concurrent = static_cast<int>(positive_of(value, field));
}

PlanMemory memory_of(const json& value, const std::string& field) {
  SPW_CHECK(value.is_object(), kInvalidArgument,
            "{} is not an object with the bytes of gpu, host and disk", field);
  PlanMemory memory;
  for (const auto& [key, bytes] : value.items()) {
    std::optional<uint64_t>* const of = key == "gpu"    ? &memory.device
                                        : key == "host" ? &memory.host
                                        : key == "disk" ? &memory.disk
                                                        : nullptr;
    SPW_CHECK(of != nullptr, kInvalidArgument, "{}: no field {} (gpu, host, disk)", field,
              printable(key));
    SPW_CHECK(bytes.is_number_unsigned(), kInvalidArgument, "{}.{} is not a number of bytes", field,
              key);
    *of = bytes.get<uint64_t>();
  }
  return memory;
}

constexpr std::array kTypeNames = {"stored", "4-bit"};
constexpr std::array kDraftNames = {"off", "lookup"};

constexpr PlanField kPlanFields[] = {
    {"version", [](Plan&, const json&, const std::string&) {}},  // version_of() reads it
    {"weights", [](Plan& plan, const json& value,
                   const std::string& field) { plan.weights = shares_of(value, field); }},
    {"overrides",
     [](Plan& plan, const json& value, const std::string& field) {
       plan.overrides = weight_overrides_from(value, field);
     }},
    {"residence",
     [](Plan& plan, const json& value, const std::string& field) {
       plan.residence = named_value<Residence>(kResidenceNames, text_of(value, field), field);
     }},
    {"embeddings",
     [](Plan& plan, const json& value, const std::string& field) {
       plan.embeddings = parse_embeddings(text_of(value, field), field);
     }},
    {"kv", [](Plan& plan, const json& value,
              const std::string& field) { plan.kv = shares_of(value, field); }},
    {"activations", [](Plan& plan, const json& value,
                       const std::string& field) { plan.activations = shares_of(value, field); }},
    {"micro_batch", [](Plan& plan, const json& value,
                       const std::string& field) { plan.micro_batch = count_of(value, field); }},
    {"micro_batches",
     [](Plan& plan, const json& value, const std::string& field) {
       plan.micro_batches = count_of(value, field);
     }},
    {"schedule",
     [](Plan& plan, const json& value, const std::string& field) {
       plan.schedule = parse_schedule(text_of(value, field));
     }},
    {"attention",
     [](Plan& plan, const json& value, const std::string& field) {
       plan.attention = parse_attention_place(text_of(value, field));
     }},
    {"cpu_attention",
     [](Plan& plan, const json& value, const std::string& field) {
       plan.cpu_attention = percent_of(value, field);
     }},
    {"overlap", [](Plan& plan, const json& value,
                   const std::string& field) { plan.overlap = bool_of(value, field); }},
    {"weight_type",
     [](Plan& plan, const json& value, const std::string& field) {
       plan.compress_weights = named_value<int>(kTypeNames, text_of(value, field), field) == 1;
     }},
    {"kv_type",
     [](Plan& plan, const json& value, const std::string& field) {
       const std::string name = text_of(value, field);
       plan.kv_type = try_kv_type_from_name(name);
       SPW_CHECK(plan.kv_type, kInvalidArgument, "{} is '{}', no type of a KV cache", field,
                 printable(name));
     }},
    {"attention_topk",
     [](Plan& plan, const json& value, const std::string& field) {
       const double share = number(value, field);
       SPW_CHECK(share >= 0 && share <= 1, kInvalidArgument, "{} is {}; give 0 (all) to 1", field,
                 share);
       plan.attention_topk = static_cast<float>(share);
     }},
    {"context", [](Plan& plan, const json& value,
                   const std::string& field) { plan.context = positive_of(value, field); }},
    {"chunk",
     [](Plan& plan, const json& value, const std::string& field) {
       plan.chunk = static_cast<int>(positive_of(value, field));
     }},
    {"sequences",
     [](Plan& plan, const json& value, const std::string& field) {
       plan.sequences = static_cast<int>(positive_of(value, field));
     }},
    {"at_once", read_max_concurrent, 2, 2},
    {"max_concurrent", read_max_concurrent, 3},
    {"deterministic",
     [](Plan& plan, const json& value, const std::string& field) {
       plan.deterministic = bool_of(value, field);
     },
     3},
    {"kv_expansion",
     [](Plan& plan, const json& value, const std::string& field) {
       plan.kv_expansion = parse_kv_expansion(text_of(value, field), field);
     },
     3},
    {"draft",
     [](Plan& plan, const json& value, const std::string& field) {
       plan.lookup_drafts = named_value<int>(kDraftNames, text_of(value, field), field) == 1;
     },
     3},
    {"memory",
     [](Plan& plan, const json& value, const std::string& field) {
       plan.memory = memory_of(value, field);
     },
     3},
    {"cpu_linear", [](Plan& plan, const json& value,
                      const std::string& field) { plan.cpu_linear = cpu_linear_of(value, field); }},
    {"made_for", [](Plan& plan, const json& value,
                    const std::string& field) { plan.made_for = origin_of(value, field); }},
};

int version_of(const json& document, const std::string& where) {
  const auto found = document.find("version");
  if (found == document.end()) return kPlanVersion;
  SPW_CHECK(found->is_number_integer() && (*found == 2 || *found == kPlanVersion), kInvalidArgument,
            "{}: version is {}; this program reads versions 2 and {}", where,
            printable(found->dump()), kPlanVersion);
  return found->get<int>();
}

// Returns the fields that every version has, whatever is decided.
nlohmann::ordered_json document_of(const Plan& plan, int version) {
  nlohmann::ordered_json document{
      {"version", version},
      {"weights", shares_to_json(plan.weights)},
      {"embeddings", tier_name(plan.embeddings)},
      {"kv", shares_to_json(plan.kv)},
      {"activations", shares_to_json(plan.activations)},
      {"micro_batch", plan.micro_batch},
      {"micro_batches", plan.micro_batches},
      {"schedule", schedule_name(plan.schedule)},
      {"attention", attention_place_name(plan.attention)},
      {"cpu_attention", plan.cpu_attention ? json(*plan.cpu_attention * 100) : json(nullptr)},
      {"overlap", plan.overlap}};
  if (!plan.overrides.empty()) document["overrides"] = weight_overrides_to_json(plan.overrides);
  return document;
}

}  // namespace

Plan parse_plan(std::string_view text, const std::string& where) {
  const json document = json::parse(text, nullptr, false);
  SPW_CHECK(!document.is_discarded(), kInvalidArgument, "{}: not JSON", where);
  SPW_CHECK(document.is_object(), kInvalidArgument, "{}: not a plan (a JSON object)", where);
  const int version = version_of(document, where);
  const auto has = [&](const PlanField& field) {
    return version >= field.since && version <= field.until;
  };
  Plan plan;
  for (const auto& [key, value] : document.items()) {
    const std::string field = where + ": " + printable(key);
    const auto* const found =
        std::ranges::find_if(kPlanFields, [&](const PlanField& f) { return key == f.key; });
    if (found == std::end(kPlanFields)) {
      std::string names;
      for (const PlanField& known : kPlanFields)
        if (has(known)) names += fmt::format("{}{}", names.empty() ? "" : ", ", known.key);
      fail(ErrorCode::kInvalidArgument, "{} is not a field of a plan ({})", field, names);
    }
    SPW_CHECK(has(*found), kInvalidArgument,
              "{} is a field of plans of version {}, and this one is of version {}{}", field,
              version < found->since ? found->since : found->until, version,
              key == "at_once" ? "; give max_concurrent instead" : "");
    // Null is written for a field that is not decided.
    if (!value.is_null()) found->read(plan, value, field);
  }
  return plan;
}

Plan read_plan(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  SPW_CHECK(file.good(), kInvalidArgument, "{}: cannot be read", printable_path(path));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return parse_plan(text, printable_path(path));
}

std::string weight_placement_text(const Plan& plan) {
  Plan homes;
  homes.weights = plan.weights;
  homes.overrides = plan.overrides;
  homes.embeddings = plan.embeddings;
  // Version 2 is what was written when the first identities were made.
  return document_of(homes, 2).dump(2);
}

std::string plan_to_json(const Plan& plan) {
  nlohmann::ordered_json document = document_of(plan, kPlanVersion);
  if (plan.residence != Residence::kEven)
    document["residence"] = kResidenceNames[static_cast<size_t>(plan.residence)];
  if (plan.compress_weights)
    document["weight_type"] = kTypeNames[static_cast<size_t>(*plan.compress_weights)];
  if (plan.kv_type) document["kv_type"] = kv_type_name(*plan.kv_type);
  if (plan.attention_topk) document["attention_topk"] = *plan.attention_topk;
  if (plan.context) document["context"] = *plan.context;
  if (plan.chunk) document["chunk"] = *plan.chunk;
  if (plan.sequences) document["sequences"] = *plan.sequences;
  if (plan.max_concurrent) document["max_concurrent"] = *plan.max_concurrent;
  if (plan.deterministic) document["deterministic"] = *plan.deterministic;
  if (plan.kv_expansion) document["kv_expansion"] = kv_expansion_text(*plan.kv_expansion);
  if (plan.lookup_drafts) document["draft"] = kDraftNames[*plan.lookup_drafts ? 1 : 0];
  for (const CpuLinearShare& at : plan.cpu_linear) {
    nlohmann::ordered_json point{at.tokens, at.share * 100};
    for (const auto& [op, share] : at.modules) {
      if (point.size() < 3) point.push_back(nlohmann::ordered_json::object());
      point[2][op] = share * 100;
    }
    document["cpu_linear"].push_back(std::move(point));
  }
  if (plan.memory) {
    nlohmann::ordered_json& memory = document["memory"] = nlohmann::ordered_json::object();
    if (plan.memory->device) memory["gpu"] = *plan.memory->device;
    if (plan.memory->host) memory["host"] = *plan.memory->host;
    if (plan.memory->disk) memory["disk"] = *plan.memory->disk;
  }
  if (!plan.made_for.model.empty()) document["made_for"]["model"] = plan.made_for.model;
  if (!plan.made_for.hardware.empty()) document["made_for"]["hardware"] = plan.made_for.hardware;
  return document.dump(2);
}

int concurrent_sequences(const Plan& plan, int sequences) {
  if (plan.micro_batch == 0) return sequences;
  if (plan.schedule == ScheduleKind::kRow) return std::min(plan.micro_batch, sequences);
  if (plan.micro_batches == 0) return sequences;
  const int64_t block = int64_t{plan.micro_batch} * plan.micro_batches;
  return static_cast<int>(std::min<int64_t>(block, sequences));
}

}  // namespace spillway
