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

namespace spillway {
namespace {

using nlohmann::json;

constexpr std::array<const char*, 3> kTierNames = {"gpu", "host", "disk"};
constexpr std::array<const char*, 3> kScheduleNames = {"zigzag", "diagonal", "row"};
constexpr std::array<const char*, 3> kAttentionNames = {"auto", "cpu", "gpu"};
constexpr int kMostMicroBatches = 1 << 20;

template <class Enum>
Enum from_name(std::span<const char* const> names, std::string_view text, std::string_view what) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (text == names[i]) return static_cast<Enum>(i);
  }
  fail(ErrorCode::kInvalidArgument, "{} is '{}'; give {} or {}", what, printable(text),
       fmt::join(names.first(names.size() - 1), ", "), names.back());
}

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
    const auto tier = from_name<Tier>(kTierNames, key, field + ": a tier");
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
ScheduleKind parse_schedule(std::string_view text) {
  return from_name<ScheduleKind>(kScheduleNames, text, "the schedule");
}
AttentionPlace parse_attention_place(std::string_view text) {
  return from_name<AttentionPlace>(kAttentionNames, text, "the place of attention");
}
Tier parse_embeddings(std::string_view text, std::string_view option) {
  return from_name<Tier>(std::span(kTierNames).first(2), text, option);
}

bool Plan::all_on_device() const {
  return weights.device == 1 && embeddings == Tier::kDevice && kv.device == 1 &&
         activations.device == 1;
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

Plan parse_plan(std::string_view text, const std::string& where) {
  const json document = json::parse(text, nullptr, false);
  SPW_CHECK(!document.is_discarded(), kInvalidArgument, "{}: not JSON", where);
  SPW_CHECK(document.is_object(), kInvalidArgument, "{}: not a plan (a JSON object)", where);
  Plan plan;
  for (const auto& [key, value] : document.items()) {
    const std::string field = where + ": " + printable(key);
    if (key == "weights") {
      plan.weights = shares_of(value, field);
    } else if (key == "embeddings") {
      plan.embeddings = parse_embeddings(text_of(value, field), field);
    } else if (key == "kv") {
      plan.kv = shares_of(value, field);
    } else if (key == "activations") {
      plan.activations = shares_of(value, field);
    } else if (key == "micro_batch") {
      plan.micro_batch = count_of(value, field);
    } else if (key == "micro_batches") {
      plan.micro_batches = count_of(value, field);
    } else if (key == "schedule") {
      plan.schedule = parse_schedule(text_of(value, field));
    } else if (key == "attention") {
      plan.attention = parse_attention_place(text_of(value, field));
    } else if (key == "cpu_attention") {
      if (value.is_null()) continue;
      const double share = number(value, field) / 100;
      SPW_CHECK(share >= 0 && share <= 1, kInvalidArgument, "{} is {} percent; give 0 to 100",
                field, share * 100);
      plan.cpu_attention = share;
    } else if (key == "overlap") {
      SPW_CHECK(value.is_boolean(), kInvalidArgument, "{} is not true or false", field);
      plan.overlap = value.get<bool>();
    } else {
      fail(ErrorCode::kInvalidArgument,
           "{} is not a field of a plan (weights, embeddings, kv, activations, micro_batch, "
           "micro_batches, schedule, attention, cpu_attention, overlap)",
           field);
    }
  }
  return plan;
}

Plan read_plan(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  SPW_CHECK(file.good(), kInvalidArgument, "{}: cannot be read", printable_path(path));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return parse_plan(text, printable_path(path));
}

std::string plan_to_json(const Plan& plan) {
  const json document{
      {"weights", shares_to_json(plan.weights)},
      {"embeddings", kTierNames[static_cast<size_t>(plan.embeddings)]},
      {"kv", shares_to_json(plan.kv)},
      {"activations", shares_to_json(plan.activations)},
      {"micro_batch", plan.micro_batch},
      {"micro_batches", plan.micro_batches},
      {"schedule", schedule_name(plan.schedule)},
      {"attention", attention_place_name(plan.attention)},
      {"cpu_attention", plan.cpu_attention ? json(*plan.cpu_attention * 100) : json(nullptr)},
      {"overlap", plan.overlap}};
  return document.dump(2);
}

int sequences_at_once(const Plan& plan, int sequences) {
  if (plan.micro_batch == 0) return sequences;
  if (plan.schedule == ScheduleKind::kRow) return std::min(plan.micro_batch, sequences);
  if (plan.micro_batches == 0) return sequences;
  const int64_t block = int64_t{plan.micro_batch} * plan.micro_batches;
  return static_cast<int>(std::min<int64_t>(block, sequences));
}

}  // namespace spillway
