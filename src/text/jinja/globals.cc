// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/globals.h"

#include <array>
#include <utility>

#include "base/error.h"
#include "text/jinja/arguments.h"
#include "text/jinja/compare.h"
#include "text/jinja/print.h"
#include "text/jinja/sequence.h"

namespace spillway::jinja {
namespace {

Value range(Heap& heap, const Arguments& arguments) {
  const Parameters given("range()", arguments, {"start", "stop", "step"});
  if (!given.has(1)) return heap.range(0, given.integer(0), 1);
  return heap.range(given.integer(0), given.integer(1), given.integer_or(2, 1));
}

// Collects the items of dict() and namespace(): those of a mapping or of pairs, and named
// arguments.
Dict collected(Heap& heap, const Arguments& arguments) {
  SPW_CHECK(arguments.positional.size() <= 1, kInvalidArgument,
            "dict() and namespace() take at most one mapping");
  Dict dict;
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.is_undefined()) fail_undefined(from);
    if (from.is(Kind::kDict)) {
      heap.charge_steps(from.dict().size());
      dict = from.dict();
    } else {
      for (const Value& item : items_of(heap, from)) {
        const std::vector<Value> pair = items_of(heap, item);
        SPW_CHECK(pair.size() == 2, kInvalidArgument, "dict() wants pairs");
        dict.set(pair[0], pair[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named)
    dict.set(heap.text(Text(name, Origin::kTemplate)), value);
  return dict;
}

Value make_dict(Heap& heap, const Arguments& arguments) {
  return heap.dict(collected(heap, arguments));
}

Value make_namespace(Heap& heap, const Arguments& arguments) {
  return heap.name_space(collected(heap, arguments));
}

// Returns its items one after another, beginning again after the last.
class Cycler : public Object {
 public:
  Cycler(Heap& heap, std::vector<Value> items) : heap_(heap), items_(std::move(items)) {}

  std::string_view type_name() const override { return "Cycler"; }
  [[nodiscard]] std::optional<Value> try_attribute(std::string_view name) override {
    if (name == "current") return items_[at_];
    if (name == "next")
      return heap_.function({.name = "next",
                             .call =
                                 [this](const Arguments&) {
                                   const Value value = items_[at_];
                                   at_ = (at_ + 1) % items_.size();
                                   return value;
                                 },
                             .attributes = {}});
    if (name == "reset")
      return heap_.function({.name = "reset",
                             .call =
                                 [this](const Arguments&) {
                                   at_ = 0;
                                   return Value();
                                 },
                             .attributes = {}});
    return std::nullopt;
  }
  Value call(const Arguments&) override {
    fail(ErrorCode::kInvalidArgument, "a cycler cannot be called; its next() can");
  }

 private:
  Heap& heap_;
  std::vector<Value> items_;
  size_t at_ = 0;
};

// Returns an empty text at the first call, and its separator at every later one.
class Joiner : public Object {
 public:
  Joiner(Heap& heap, const Value& separator) : heap_(heap), separator_(separator) {}

  std::string_view type_name() const override { return "Joiner"; }
  [[nodiscard]] std::optional<Value> try_attribute(std::string_view) override {
    return std::nullopt;
  }
  Value call(const Arguments&) override {
    if (std::exchange(used_, true)) return separator_;
    return heap_.constant("");
  }

 private:
  Heap& heap_;
  Value separator_;
  bool used_ = false;
};

Value make_cycler(Heap& heap, const Arguments& arguments) {
  SPW_CHECK(!arguments.positional.empty() && arguments.named.empty(), kInvalidArgument,
            "cycler() wants at least one value");
  return heap.object(std::make_unique<Cycler>(heap, arguments.positional));
}

Value make_joiner(Heap& heap, const Arguments& arguments) {
  const Parameters given("joiner()", arguments, {"sep"});
  return heap.object(std::make_unique<Joiner>(heap, given.value_or(0, heap.constant(", "))));
}

Value raise_exception(Heap& heap, const Arguments& arguments) {
  const Parameters given("raise_exception()", arguments, {"message"});
  throw TemplateRefusal{std::string(str_of(heap, given.value(0)).bytes())};
}

std::tm local_time() {
  const std::time_t seconds = std::time(nullptr);
  std::tm local{};
  localtime_r(&seconds, &local);
  return local;
}

Value strftime_now(Heap& heap, const Arguments& arguments, const std::optional<std::tm>& now) {
  const Parameters given("strftime_now()", arguments, {"format"});
  const std::string format(given.text(0).bytes());
  if (format.empty()) return heap.constant("");
  SPW_CHECK(format.size() <= 1000, kInvalidArgument, "strftime_now() has a format of {} bytes",
            format.size());
  const std::tm time = now ? *now : local_time();
  std::string text(16384, '\0');
  const size_t size = std::strftime(text.data(), text.size(), format.c_str(), &time);
  text.resize(size);
  return heap.text(std::move(text), Origin::kTemplate);
}

using Global = Value (*)(Heap& heap, const Arguments& arguments);
constexpr std::array<std::pair<std::string_view, Global>, 6> kGlobals{
    {{"range", range},
     {"dict", make_dict},
     {"namespace", make_namespace},
     {"cycler", make_cycler},
     {"joiner", make_joiner},
     {"raise_exception", raise_exception}}};

}  // namespace

std::optional<Value> try_global(Heap& heap, std::string_view name,
                                const std::optional<std::tm>& now) {
  if (name == "strftime_now")
    return heap.function(
        {.name = std::string(name),
         .call = [&heap,
                  now](const Arguments& arguments) { return strftime_now(heap, arguments, now); },
         .attributes = {}});
  for (const auto& [known, global] : kGlobals) {
    if (known == name)
      return heap.function(
          {.name = std::string(name),
           .call = [&heap, global = global](const Arguments& a) { return global(heap, a); },
           .attributes = {}});
  }
  return std::nullopt;
}

}  // namespace spillway::jinja
