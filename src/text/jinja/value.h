// SPDX-License-Identifier: Apache-2.0
// The values of a template's expressions: Python's values, as far as templates see them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/text.h"

namespace spillway::jinja {

class Dict;
class Value;
struct Arguments;
struct Function;
struct Iterator;
struct List;
struct Namespace;
struct Object;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,  // and other things that Python can index, see Sequence
  kDict,
  kIterator,
  kNamespace,
  kFunction,
  kObject,
};

// A handle, cheap to copy. What it refers to belongs to the Heap of the rendering, to the template
// or to the input. All values except namespaces, iterators and objects are immutable.
class Value {
 public:
  Value() = default;  // None
  Value(bool value) : kind_(Kind::kBool), bool_(value) {}
  Value(int64_t value) : kind_(Kind::kInt), int_(value) {}
  Value(double value) : kind_(Kind::kFloat), float_(value) {}
  explicit Value(const Text* text) : kind_(Kind::kString), text_(text) {}
  explicit Value(const List* list) : kind_(Kind::kList), list_(list) {}
  explicit Value(const Dict* dict) : kind_(Kind::kDict), dict_(dict) {}
  explicit Value(Iterator* iterator) : kind_(Kind::kIterator), iterator_(iterator) {}
  explicit Value(Namespace* space) : kind_(Kind::kNamespace), namespace_(space) {}
  explicit Value(const Function* function) : kind_(Kind::kFunction), function_(function) {}
  explicit Value(Object* object) : kind_(Kind::kObject), object_(object) {}
  // `why` is the message with which a use of the value fails, e.g. "'x' is undefined".
  static Value undefined(const std::string* why);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integral() || kind_ == Kind::kFloat; }

  // The caller must have checked the kind before it uses one of these.
  bool boolean() const { return bool_; }
  int64_t integer() const { return kind_ == Kind::kBool ? int64_t{bool_} : int_; }
  double number() const { return kind_ == Kind::kFloat ? float_ : static_cast<double>(integer()); }
  const Text& text() const { return *text_; }
  std::string_view bytes() const { return text_->bytes(); }
  const List& list() const { return *list_; }
  const Dict& dict() const { return *dict_; }
  Iterator& iterator() const { return *iterator_; }
  Namespace& name_space() const { return *namespace_; }
  const Function& function() const { return *function_; }
  Object& object() const { return *object_; }
  const std::string& why_undefined() const { return *why_; }

  // Whether both are the same object, as Python's `is` tells.
  bool same_as(const Value& other) const;

 private:
  Kind kind_ = Kind::kNone;
  union {
    bool bool_;
    int64_t int_ = 0;
    double float_;
    const Text* text_;
    const List* list_;
    const Dict* dict_;
    Iterator* iterator_;
    Namespace* namespace_;
    const Function* function_;
    Object* object_;
    const std::string* why_;
  };
};

// The Python type of a List; the types print differently, and only some can be indexed.
enum class Sequence : uint8_t { kList, kTuple, kRange, kDictKeys, kDictValues, kDictItems };

struct List {
  std::vector<Value> items;
  Sequence sequence = Sequence::kList;
  int64_t range_start = 0;  // only for a range, to print it
  int64_t range_stop = 0;
  int64_t range_step = 1;
  bool is_group = false;  // a tuple made by groupby, which also has .grouper and .list

  bool is_view() const { return sequence >= Sequence::kDictKeys; }
};

// A sequence that Python makes lazily: it can be iterated once, has no length, and is always true.
struct Iterator {
  std::vector<Value> items;
  size_t next = 0;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
};

struct Function {
  std::string name;
  std::function<Value(const Arguments&)> call;
  // The attributes that templates can read of a macro.
  std::map<std::string, Value, std::less<>> attributes;
};

// An object whose attributes change: `loop`, cycler, joiner. Never copied.
struct Object {
  virtual ~Object() = default;
  virtual std::string_view type_name() const = 0;
  [[nodiscard]] virtual std::optional<Value> try_attribute(std::string_view name) = 0;
  // Throws Error(kInvalidArgument) if the object cannot be called.
  virtual Value call(const Arguments& arguments) = 0;
};

// Returns Python's name of the type: "str", "list", ...
std::string_view type_name(const Value& value);

// Throws the error for using an undefined value.
[[noreturn]] void fail_undefined(const Value& value);

}  // namespace spillway::jinja
