// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/print.h"

#include <fmt/core.h>

#include "base/error.h"
#include "text/jinja/characters.h"
#include "text/jinja/number_text.h"
#include "text/utf8.h"

namespace spillway::jinja {
namespace {

// Returns the text of a value that holds no strings; nullopt for the other kinds.
std::optional<std::string> try_scalar_text(const Value& value) {
  switch (value.kind()) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.boolean() ? "True" : "False";
    case Kind::kInt:
      return fmt::format("{}", value.integer());
    case Kind::kFloat:
      return float_text(value.number());
    case Kind::kIterator:
      return "<generator object>";
    case Kind::kFunction:
      return fmt::format("<function '{}'>", value.function().name);
    case Kind::kObject:
      return fmt::format("<{}>", value.object().type_name());
    default:
      return std::nullopt;
  }
}

class ReprWriter {
 public:
  ReprWriter(Heap& heap, TextBuilder& out) : heap_(heap), out_(out) {}

  void write(const Value& value, uint32_t depth) {
    heap_.charge_steps(1);
    SPW_CHECK(depth < heap_.limits().value_depth, kInvalidArgument,
              "the chat template prints values nested more than {} deep",
              heap_.limits().value_depth);
    switch (value.kind()) {
      case Kind::kString:
        write_string(value.text());
        break;
      case Kind::kUndefined:
        put("Undefined");
        break;
      case Kind::kList:
        write_list(value.list(), depth);
        break;
      case Kind::kDict:
        write_dict(value.dict(), depth);
        break;
      case Kind::kNamespace:
        put("<Namespace ");
        write_dict(value.name_space().attributes, depth);
        put(">");
        break;
      default:
        put(*try_scalar_text(value));
    }
  }

 private:
  void put(std::string_view text) { out_.append(text, Origin::kInput); }

  void write_items(const std::vector<Value>& items, uint32_t depth) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) put(", ");
      write(items[i], depth + 1);
    }
  }

  void write_list(const List& list, uint32_t depth) {
    switch (list.sequence) {
      case Sequence::kTuple:
        put("(");
        write_items(list.items, depth);
        put(list.items.size() == 1 ? ",)" : ")");
        return;
      case Sequence::kRange:
        put(fmt::format("range({}, {}", list.range_start, list.range_stop));
        put(list.range_step == 1 ? ")" : fmt::format(", {})", list.range_step));
        return;
      case Sequence::kDictKeys:
        put("dict_keys(");
        break;
      case Sequence::kDictValues:
        put("dict_values(");
        break;
      case Sequence::kDictItems:
        put("dict_items(");
        break;
      case Sequence::kList:
        break;
    }
    put("[");
    write_items(list.items, depth);
    put(list.is_view() ? "])" : "]");
  }

  void write_dict(const Dict& dict, uint32_t depth) {
    put("{");
    bool first = true;
    for (const auto& [key, value] : dict.items()) {
      if (!first) put(", ");
      first = false;
      write(key, depth + 1);
      put(": ");
      write(value, depth + 1);
    }
    put("}");
  }

  void write_string(const Text& text) {
    const std::string_view bytes = text.bytes();
    const bool has_single = bytes.find('\'') != std::string_view::npos;
    const bool has_double = bytes.find('"') != std::string_view::npos;
    const char quote = has_single && !has_double ? '"' : '\'';
    if (text.is_markup()) put("Markup(");
    put({&quote, 1});
    text.for_each_run([&](std::string_view run, Origin origin) {
      std::string escaped;
      for (size_t at = 0; at < run.size();) {
        const Utf8Char c = decode_utf8(run, at);
        append_escaped(escaped, run.substr(at, c.bytes), c, quote);
        at += c.bytes;
      }
      out_.append(escaped, origin);
    });
    put({&quote, 1});
    if (text.is_markup()) put(")");
  }

  static void append_escaped(std::string& out, std::string_view bytes, const Utf8Char& c,
                             char quote) {
    if (!c.valid) {
      out.append(bytes);
    } else if (c.code_point == static_cast<char32_t>(quote) || c.code_point == '\\') {
      out.push_back('\\');
      out.append(bytes);
    } else if (c.code_point == '\n') {
      out.append("\\n");
    } else if (c.code_point == '\r') {
      out.append("\\r");
    } else if (c.code_point == '\t') {
      out.append("\\t");
    } else if (is_printable(c.code_point)) {
      out.append(bytes);
    } else if (c.code_point < 0x100) {
      out.append(fmt::format("\\x{:02x}", static_cast<uint32_t>(c.code_point)));
    } else if (c.code_point < 0x10000) {
      out.append(fmt::format("\\u{:04x}", static_cast<uint32_t>(c.code_point)));
    } else {
      out.append(fmt::format("\\U{:08x}", static_cast<uint32_t>(c.code_point)));
    }
  }

  Heap& heap_;
  TextBuilder& out_;
};

}  // namespace

void append_repr(Heap& heap, TextBuilder& out, const Value& value) {
  ReprWriter(heap, out).write(value, 0);
}

void append_str(Heap& heap, TextBuilder& out, const Value& value) {
  if (value.is_string()) {
    out.append(value.text());
  } else if (const auto scalar = try_scalar_text(value)) {
    out.append(*scalar, Origin::kTemplate);
  } else if (!value.is_undefined()) {
    append_repr(heap, out, value);
  }
}

Value to_str(Heap& heap, const Value& value) {
  if (value.is_string()) return value;
  TextBuilder out(heap);
  append_str(heap, out, value);
  return out.take();
}

Text str_of(Heap& heap, const Value& value) { return to_str(heap, value).text(); }

Text escape_html(Heap& heap, const Text& text) {
  if (text.is_markup()) return text;
  TextBuilder out(heap);
  text.for_each_run([&](std::string_view run, Origin origin) {
    size_t done = 0;
    for (size_t i = 0; i < run.size(); ++i) {
      const std::string_view name = run[i] == '&'    ? "&amp;"
                                    : run[i] == '<'  ? "&lt;"
                                    : run[i] == '>'  ? "&gt;"
                                    : run[i] == '\'' ? "&#39;"
                                    : run[i] == '"'  ? "&#34;"
                                                     : "";
      if (name.empty()) continue;
      out.append(run.substr(done, i - done), origin);
      out.append(name, origin);
      done = i + 1;
    }
    out.append(run.substr(done), origin);
  });
  return out.take(true).text();
}

}  // namespace spillway::jinja
