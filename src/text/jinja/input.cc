// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/input.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"

namespace spillway::jinja {
namespace {

using Json = nlohmann::ordered_json;

class Reader {
 public:
  Reader(Heap& heap, Origin origin, std::span<const std::string_view> trusted_roles)
      : heap_(heap), origin_(origin), trusted_roles_(trusted_roles) {}

  Value read(const Json& json, uint32_t depth) {
    heap_.charge_steps(1);
    SPW_CHECK(depth < heap_.limits().value_depth, kInvalidArgument,
              "the input of the chat template is nested more than {} deep",
              heap_.limits().value_depth);
    switch (json.type()) {
      case Json::value_t::boolean:
        return json.get<bool>();
      case Json::value_t::number_integer:
        return json.get<int64_t>();
      case Json::value_t::number_unsigned: {
        const auto number = json.get<uint64_t>();
        SPW_CHECK(number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
                  kInvalidArgument, "the input of the chat template has an integer too large");
        return static_cast<int64_t>(number);
      }
      case Json::value_t::number_float:
        return json.get<double>();
      case Json::value_t::string:
        return text(json, origin_);
      case Json::value_t::array:
        return list(json, depth);
      case Json::value_t::object:
        return dict(json, depth);
      default:
        return {};
    }
  }

 private:
  Value text(const Json& json, Origin origin) {
    return heap_.text(Text(json.get_ref<const std::string&>(), origin));
  }

  Value list(const Json& json, uint32_t depth) {
    std::vector<Value> items;
    items.reserve(json.size());
    for (const Json& item : json) items.push_back(read(item, depth + 1));
    return heap_.list(std::move(items));
  }

  Value dict(const Json& json, uint32_t depth) {
    Dict dict;
    for (const auto& [key, value] : json.get_ref<const Json::object_t&>()) {
      const bool trusted = key == "role" && value.is_string() && is_trusted_role(value);
      dict.set(heap_.text(Text(key, origin_)),
               trusted ? text(value, Origin::kTemplate) : read(value, depth + 1));
    }
    return heap_.dict(std::move(dict));
  }

  bool is_trusted_role(const Json& value) const {
    const auto& role = value.get_ref<const std::string&>();
    return std::find(trusted_roles_.begin(), trusted_roles_.end(), role) != trusted_roles_.end();
  }

  Heap& heap_;
  Origin origin_;
  std::span<const std::string_view> trusted_roles_;
};

}  // namespace

Value from_json(Heap& heap, const Json& json, Origin origin,
                std::span<const std::string_view> trusted_roles) {
  return Reader(heap, origin, trusted_roles).read(json, 0);
}

}  // namespace spillway::jinja
