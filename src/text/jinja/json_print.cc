// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "text/jinja/compare.h"
#include "text/jinja/number_text.h"
#include "text/jinja/print.h"
#include "text/utf8.h"

namespace spillway::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Heap& heap, const JsonStyle& style, TextBuilder& out)
      : heap_(heap), style_(style), out_(out) {}

  void write(const Value& value, uint32_t depth) {
    heap_.charge_steps(1);
    SPW_CHECK(depth < heap_.limits().value_depth, kInvalidArgument,
              "the chat template writes JSON nested more than {} deep", heap_.limits().value_depth);
    switch (value.kind()) {
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kFloat:
        put(scalar(value));
        return;
      case Kind::kString:
        write_string(value.text());
        return;
      case Kind::kDict:
        write_dict(value.dict(), depth);
        return;
      case Kind::kList:
        if (value.list().sequence == Sequence::kList || value.list().sequence == Sequence::kTuple) {
          write_list(value.list().items, depth);
          return;
        }
        break;
      default:
        break;
    }
    fail(ErrorCode::kInvalidArgument, "a value of type '{}' cannot be written as JSON",
         type_name(value));
  }

 private:
  void put(std::string_view text) { out_.append(text, Origin::kInput); }

  static std::string scalar(const Value& value) {
    switch (value.kind()) {
      case Kind::kBool:
        return value.boolean() ? "true" : "false";
      case Kind::kInt:
        return fmt::format("{}", value.integer());
      case Kind::kFloat:
        if (std::isnan(value.number())) return "NaN";
        if (std::isinf(value.number())) return value.number() < 0 ? "-Infinity" : "Infinity";
        return float_text(value.number());
      default:
        return "null";
    }
  }

  void separate(bool first, uint32_t depth) {
    if (!first) out_.append(style_.item_separator);
    new_line(depth);
  }

  void new_line(uint32_t depth) {
    if (!style_.indent) return;
    put("\n");
    for (uint32_t i = 0; i < depth; ++i) out_.append(*style_.indent);
  }

  void write_list(const std::vector<Value>& items, uint32_t depth) {
    put("[");
    for (size_t i = 0; i < items.size(); ++i) {
      separate(i == 0, depth + 1);
      write(items[i], depth + 1);
    }
    if (!items.empty()) new_line(depth);
    put("]");
  }

  void write_dict(const Dict& dict, uint32_t depth) {
    std::vector<std::pair<Value, Value>> items = dict.items();
    if (style_.sort_keys)
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto& a, const auto& b) { return less(heap_, a.first, b.first); });
    put("{");
    bool first = true;
    for (const auto& [key, value] : items) {
      separate(first, depth + 1);
      first = false;
      if (key.is_string()) {
        write_string(key.text());
      } else {
        SPW_CHECK(key.is_none() || key.is_number(), kInvalidArgument,
                  "a value of type '{}' cannot be a key in JSON", type_name(key));
        put("\"");
        put(scalar(key));
        put("\"");
      }
      out_.append(style_.key_separator);
      write(value, depth + 1);
    }
    if (!items.empty()) new_line(depth);
    put("}");
  }

  void write_string(const Text& text) {
    put("\"");
    text.for_each_run([&](std::string_view run, Origin origin) {
      std::string escaped;
      for (size_t at = 0; at < run.size();) {
        const Utf8Char c = decode_utf8(run, at);
        append_escaped(escaped, run.substr(at, c.bytes), c);
        at += c.bytes;
      }
      out_.append(escaped, origin);
    });
    put("\"");
  }

  void append_escaped(std::string& out, std::string_view bytes, const Utf8Char& c) const {
    const auto code = static_cast<uint32_t>(c.code_point);
    if (!c.valid) {
      out.append(bytes);
    } else if (code == '"' || code == '\\') {
      out.push_back('\\');
      out.append(bytes);
    } else if (code == '\n') {
      out.append("\\n");
    } else if (code == '\r') {
      out.append("\\r");
    } else if (code == '\t') {
      out.append("\\t");
    } else if (code == '\b') {
      out.append("\\b");
    } else if (code == '\f') {
      out.append("\\f");
    } else if (code < 0x20 || (style_.ensure_ascii && code >= 0x7F && code < 0x10000)) {
      if (code == 0x7F)
        out.append(bytes);
      else
        out.append(fmt::format("\\u{:04x}", code));
    } else if (style_.ensure_ascii && code >= 0x10000) {
      const uint32_t rest = code - 0x10000;
      out.append(fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF)));
    } else {
      out.append(bytes);
    }
  }

  Heap& heap_;
  const JsonStyle& style_;
  TextBuilder& out_;
};

}  // namespace

Value to_json(Heap& heap, const Value& value, const JsonStyle& style) {
  TextBuilder out(heap);
  JsonWriter(heap, style, out).write(value, 0);
  return out.take();
}

}  // namespace spillway::jinja
