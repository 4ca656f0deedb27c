// SPDX-License-Identifier: Apache-2.0
#include "storage/pickle_reader.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/printable.h"
#include "storage/pickle_opcodes.h"
#include "storage/pickle_value.h"

namespace spillway {
namespace {

constexpr uint8_t kPickleProtocol = 2;
constexpr uint64_t kMaxPickleBytes = uint64_t{64} << 20;
// These leave room for some 100,000 tensors in one file.
constexpr size_t kMaxStackValues = size_t{1} << 20;
constexpr size_t kMaxMemoValues = size_t{1} << 21;
constexpr size_t kMaxTupleValues = size_t{1} << 21;
constexpr size_t kMaxDictEntries = size_t{1} << 19;
constexpr size_t kMaxGlobalBytes = 128;

constexpr TorchStorageType kStorageTypes[] = {
    {"FloatStorage", "F32", 4},  {"HalfStorage", "F16", 2}, {"BFloat16Storage", "BF16", 2},
    {"DoubleStorage", "F64", 8}, {"LongStorage", "I64", 8}, {"IntStorage", "I32", 4},
    {"ShortStorage", "I16", 2},  {"CharStorage", "I8", 1},  {"ByteStorage", "U8", 1},
    {"BoolStorage", "BOOL", 1},
};

// The globals besides the types of storages, whose numbers follow kStorages.
enum PickleGlobal : uint64_t { kOrderedDict, kRebuildTensor, kRebuildParameter, kStorages };

using Kind = PickleValue::Kind;

// Makes room for `more` values, without more capacity than for `max` of them in all. Returns false
// if they would be more.
template <class T>
bool make_room(std::vector<T>& values, size_t more, size_t max) {
  if (more > max - values.size()) return false;
  const size_t needed = values.size() + more;
  if (needed > values.capacity())
    values.reserve(std::min(max, std::max(needed, 2 * values.capacity())));
  return true;
}

// Follows a pickle's opcodes on a stack, and keeps what they put into dictionaries.
class PickleMachine {
 public:
  PickleMachine(std::string_view pickle, const std::string& label)
      : pickle_(pickle), label_(label) {
    SPW_CHECK(pickle.size() <= kMaxPickleBytes, kInvalidArgument,
              "{}: data.pkl has {} bytes, over {}", label, pickle.size(), kMaxPickleBytes);
  }

  void run() {
    while (step(byte())) continue;
    if (at_ != pickle_.size()) damaged("more bytes behind its end");
    if (stack_.size() != 1) damaged("several values left");
    if (!stack_[0].is(Kind::kDict)) {
      refuse(fmt::format("{} instead of a dictionary", describe_pickle_kind(stack_[0].kind())));
    }
  }

  void visit_tensors(const std::function<void(const PickledTensor&)>& visit) const {
    for (const Entry& entry : entries_) {
      if (entry.dict != stack_[0].payload()) continue;
      SPW_CHECK(entry.key.is(Kind::kText), kInvalidArgument,
                "{}: data.pkl: a tensor's name is {}, not a text", label_,
                describe_pickle_kind(entry.key.kind()));
      const std::string_view name = text(entry.key);
      SPW_CHECK(entry.value.is(Kind::kTensor), kUnsupported,
                "{}: data.pkl: '{}' is {}, not a tensor: this is not a file of weights alone; "
                "convert the folder to safetensors or GGUF with a program that you trust",
                label_, printable(name), describe_pickle_kind(entry.value.kind()));
      visit_tensor(name, entry.value, visit);
    }
  }

 private:
  struct Entry {
    uint64_t dict;
    PickleValue key, value;
  };

  [[noreturn]] void damaged(std::string_view what) const {
    fail(ErrorCode::kInvalidArgument,
         "{}: data.pkl: {} at byte {}; the file is damaged, download it again", label_, what,
         op_at_);
  }
  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorCode::kUnsupported,
         "{}: data.pkl: {} at byte {}; only dictionaries of tensors are read, since other pickles "
         "can run code: convert the folder to safetensors or GGUF with a program that you trust",
         label_, what, op_at_);
  }

  // Does what an opcode says. Returns false for the last one.
  bool step(uint8_t code) {
    const auto op = static_cast<PickleOp>(code);
    if (op_at_ == 0 && op != PickleOp::kProto) damaged("no pickle that begins with its protocol");
    switch (op) {
      case PickleOp::kProto:
        read_protocol();
        return true;
      case PickleOp::kStop:
        return false;
      case PickleOp::kMark:
        push({Kind::kMark, 0});
        return true;
      case PickleOp::kNone:
        push({Kind::kNone, 0});
        return true;
      case PickleOp::kNewTrue:
      case PickleOp::kNewFalse:
        push({Kind::kBool, 0});  // torch needs no bool to find a tensor's bytes
        return true;
      case PickleOp::kBinInt:
        push(PickleValue::of_int(static_cast<int32_t>(unsigned_number(4))));
        return true;
      case PickleOp::kBinInt1:
        push(PickleValue::of_int(static_cast<int64_t>(unsigned_number(1))));
        return true;
      case PickleOp::kBinInt2:
        push(PickleValue::of_int(static_cast<int64_t>(unsigned_number(2))));
        return true;
      case PickleOp::kLong1:
        read_long();
        return true;
      case PickleOp::kBinUnicode:
        read_text();
        return true;
      case PickleOp::kEmptyTuple:
        make_tuple(0);
        return true;
      case PickleOp::kTuple1:
        make_tuple(1);
        return true;
      case PickleOp::kTuple2:
        make_tuple(2);
        return true;
      case PickleOp::kTuple3:
        make_tuple(3);
        return true;
      case PickleOp::kTuple:
        make_tuple(above_mark(), true);
        return true;
      case PickleOp::kEmptyDict:
        push({Kind::kDict, dicts_++});
        return true;
      case PickleOp::kSetItem:
        set_items(2, false);
        return true;
      case PickleOp::kSetItems:
        set_items(above_mark(), true);
        return true;
      case PickleOp::kGlobal:
        read_global();
        return true;
      case PickleOp::kReduce:
        call();
        return true;
      case PickleOp::kBuild:
        set_attributes();
        return true;
      case PickleOp::kBinPersId:
        make_storage();
        return true;
      case PickleOp::kBinGet:
        get(unsigned_number(1));
        return true;
      case PickleOp::kLongBinGet:
        get(unsigned_number(4));
        return true;
      case PickleOp::kBinPut:
        put(unsigned_number(1));
        return true;
      case PickleOp::kLongBinPut:
        put(unsigned_number(4));
        return true;
    }
    const std::string_view name = pickle_op_name(code);
    if (name.empty()) damaged(fmt::format("no opcode: {:#04x}", code));
    refuse(fmt::format("opcode {}", name));
  }

  // Bytes.

  uint8_t byte() {
    op_at_ = at_;
    return static_cast<uint8_t>(bytes(1)[0]);
  }
  std::string_view bytes(uint64_t count) {
    if (count > pickle_.size() - at_) damaged("an opcode that lacks bytes");
    at_ += count;
    return pickle_.substr(at_ - count, count);
  }
  // Reads a little-endian number of up to 8 bytes.
  uint64_t unsigned_number(size_t count) {
    uint64_t value = 0;
    const std::string_view raw = bytes(count);
    for (size_t i = 0; i < count; ++i) value |= uint64_t{static_cast<uint8_t>(raw[i])} << (8 * i);
    return value;
  }
  std::string_view text(PickleValue value) const {
    return pickle_.substr(value.text_begin(), value.text_bytes());
  }

  void read_protocol() {
    const uint64_t version = unsigned_number(1);
    if (op_at_ != 0) damaged("a second protocol");
    if (version != kPickleProtocol) refuse(fmt::format("pickle protocol {}", version));
  }
  // Reads a signed number with its length.
  void read_long() {
    const uint64_t count = unsigned_number(1);
    if (count > sizeof(int64_t)) refuse(fmt::format("a number of {} bytes", count));
    const uint64_t raw = unsigned_number(count);
    const auto shift = static_cast<int>(64 - 8 * count);
    const int64_t value = count == 0 ? 0 : static_cast<int64_t>(raw << shift) >> shift;
    if (value < -PickleValue::kMaxInt || value > PickleValue::kMaxInt)
      refuse(fmt::format("the number {}", value));
    push(PickleValue::of_int(value));
  }
  void read_text() {
    const uint64_t count = unsigned_number(4);
    const uint64_t begin = at_;
    bytes(count);
    push(PickleValue::of_text(begin, count));
  }
  std::string_view read_line() {
    const size_t end = pickle_.substr(at_, kMaxGlobalBytes + 1).find('\n');
    if (end == std::string_view::npos)
      damaged(fmt::format("a global whose name does not end within {} bytes", kMaxGlobalBytes));
    const std::string_view line = bytes(end + 1);
    return line.substr(0, end);
  }
  void read_global() {
    const std::string_view module = read_line();
    const std::string_view name = read_line();
    if (module == "collections" && name == "OrderedDict") {
      push({Kind::kGlobal, kOrderedDict});
    } else if (module == "torch._utils" && name == "_rebuild_tensor_v2") {
      push({Kind::kGlobal, kRebuildTensor});
    } else if (module == "torch._utils" && name == "_rebuild_parameter") {
      push({Kind::kGlobal, kRebuildParameter});
    } else {
      const auto* const type =
          module == "torch" ? std::ranges::find(kStorageTypes, name, &TorchStorageType::torch_name)
                            : std::end(kStorageTypes);
      if (type == std::end(kStorageTypes))
        refuse(fmt::format("'{}.{}'", printable(module), printable(name)));
      push({Kind::kGlobal, kStorages + static_cast<uint64_t>(type - kStorageTypes)});
    }
  }

  // The stack.

  void push(PickleValue value) {
    if (!make_room(stack_, 1, kMaxStackValues))
      damaged(fmt::format("a stack of over {} values", kMaxStackValues));
    stack_.push_back(value);
  }
  PickleValue pop() {
    if (stack_.empty()) damaged("an empty stack");
    const PickleValue value = stack_.back();
    if (value.is(Kind::kMark)) damaged("a mark instead of a value");
    stack_.pop_back();
    return value;
  }
  PickleValue pop(Kind kind) {
    const PickleValue value = pop();
    if (!value.is(kind)) wrong_kind(value, kind);
    return value;
  }
  [[noreturn]] void wrong_kind(PickleValue value, Kind kind) const {
    damaged(fmt::format("{} instead of {}", describe_pickle_kind(value.kind()),
                        describe_pickle_kind(kind)));
  }
  // Returns how many values lie above the topmost mark. They are taken off the stack by whoever
  // asks, so that this takes no longer than putting them there.
  size_t above_mark() const {
    for (size_t count = 0; count < stack_.size(); ++count) {
      if (stack_[stack_.size() - 1 - count].is(Kind::kMark)) return count;
    }
    damaged("no mark");
  }
  // Returns the topmost values, none of which may be a mark.
  std::span<const PickleValue> top(size_t count) const {
    if (stack_.size() < count) damaged("an empty stack");
    const auto values = std::span(stack_).last(count);
    const bool marked =
        std::ranges::any_of(values, [](PickleValue value) { return value.is(Kind::kMark); });
    if (marked) damaged("a mark instead of a value");
    return values;
  }
  // Takes the topmost values off, and the mark below them.
  void drop(size_t count, bool marked) {
    stack_.erase(stack_.end() - static_cast<ptrdiff_t>(count + (marked ? 1 : 0)), stack_.end());
  }

  void get(uint64_t index) {
    if (index >= memo_.size()) damaged(fmt::format("no value {} in the memo", index));
    push(memo_[index]);
  }
  // Pickles number the values of their memo in the order in which they come.
  void put(uint64_t index) {
    const PickleValue value = top(1)[0];
    if (index < memo_.size()) {
      memo_[index] = value;
      return;
    }
    if (index != memo_.size() || !make_room(memo_, 1, kMaxMemoValues))
      damaged(fmt::format("value {} in a memo of {}", index, memo_.size()));
    memo_.push_back(value);
  }

  // Values.

  void make_tuple(size_t count, bool marked = false) {
    const std::span<const PickleValue> values = top(count);
    if (count > kMaxPickledDims) refuse(fmt::format("a tuple of {} values", count));
    if (!make_room(tuples_, count, kMaxTupleValues))
      damaged(fmt::format("over {} values in tuples", kMaxTupleValues));
    const size_t begin = tuples_.size();
    tuples_.insert(tuples_.end(), values.begin(), values.end());
    drop(count, marked);
    push(PickleValue::of_tuple(begin, count));
  }
  std::span<const PickleValue> values_of(PickleValue tuple) const {
    return std::span(tuples_).subspan(tuple.tuple_begin(), tuple.tuple_count());
  }

  void set_items(size_t count, bool marked) {
    if (count % 2 != 0) damaged("a key without a value");
    const std::span<const PickleValue> values = top(count);
    if (!make_room(entries_, count / 2, kMaxDictEntries))
      damaged(fmt::format("over {} entries in dictionaries", kMaxDictEntries));
    const size_t below = count + (marked ? 1 : 0);
    if (stack_.size() == below) damaged("an empty stack");
    const PickleValue dict = stack_[stack_.size() - 1 - below];
    if (!dict.is(Kind::kDict)) wrong_kind(dict, Kind::kDict);
    for (size_t i = 0; i < count; i += 2)
      entries_.push_back({dict.payload(), values[i], values[i + 1]});
    drop(count, marked);
  }

  // A module's OrderedDict has an attribute with the versions of its parts, which say nothing about
  // the tensors.
  void set_attributes() {
    pop(Kind::kDict);
    const PickleValue object = top(1)[0];
    if (!object.is(Kind::kDict)) wrong_kind(object, Kind::kDict);
  }

  // Makes a storage of the tuple that names it.
  void make_storage() {
    const PickleValue tuple = pop(Kind::kTuple);
    const auto fields = values_of(tuple);
    const bool is_storage = fields.size() == PickleValue::kStorageFields &&
                            fields[0].is(Kind::kText) && text(fields[0]) == "storage" &&
                            fields[1].is(Kind::kGlobal) && fields[1].payload() >= kStorages &&
                            fields[2].is(Kind::kText) && fields[3].is(Kind::kText) &&
                            fields[4].is(Kind::kInt) && fields[4].number() >= 0;
    if (!is_storage) refuse("a reference that is no storage");
    push({Kind::kStorage, tuple.tuple_begin()});
  }

  void call() {
    const PickleValue tuple = pop(Kind::kTuple);
    const PickleValue callable = pop(Kind::kGlobal);
    const auto arguments = values_of(tuple);
    switch (callable.payload()) {
      case kOrderedDict:
        if (!arguments.empty()) refuse("an OrderedDict with arguments");
        push({Kind::kDict, dicts_++});
        return;
      case kRebuildTensor:
        check_tensor(arguments);
        push({Kind::kTensor, tuple.tuple_begin()});
        return;
      case kRebuildParameter:
        if (arguments.size() != PickleValue::kParameterFields || !arguments[0].is(Kind::kTensor))
          refuse("a parameter of other arguments");
        push(arguments[0]);
        return;
      default:
        refuse("a call of a storage's type");
    }
  }

  void check_tensor(std::span<const PickleValue> fields) const {
    const bool is_tensor = fields.size() == PickleValue::kTensorFields &&
                           fields[0].is(Kind::kStorage) && fields[1].is(Kind::kInt) &&
                           fields[2].is(Kind::kTuple) && fields[3].is(Kind::kTuple) &&
                           fields[4].is(Kind::kBool) && fields[5].is(Kind::kDict) &&
                           fields[2].tuple_count() == fields[3].tuple_count();
    if (!is_tensor) refuse("a tensor of other arguments");
    const auto is_size = [](PickleValue value) {
      return value.is(Kind::kInt) && value.number() >= 0;
    };
    const bool is_sized = is_size(fields[1]) &&
                          std::ranges::all_of(values_of(fields[2]), is_size) &&
                          std::ranges::all_of(values_of(fields[3]), is_size);
    if (!is_sized) damaged("a tensor whose offset, shape or strides are no sizes");
  }

  void visit_tensor(std::string_view name, PickleValue tensor,
                    const std::function<void(const PickledTensor&)>& visit) const {
    const auto fields = std::span(tuples_).subspan(tensor.payload(), PickleValue::kTensorFields);
    const auto storage =
        std::span(tuples_).subspan(fields[0].payload(), PickleValue::kStorageFields);
    std::array<uint64_t, kMaxPickledDims> shape{}, strides{};
    const auto fill = [&](PickleValue tuple, std::span<uint64_t> to) {
      std::ranges::transform(values_of(tuple), to.begin(), &PickleValue::payload);
      return std::span<const uint64_t>(to.first(tuple.tuple_count()));
    };
    visit({.name = name,
           .storage_type = &kStorageTypes[storage[1].payload() - kStorages],
           .storage_key = text(storage[2]),
           .storage_elements = storage[4].payload(),
           .offset = fields[1].payload(),
           .shape = fill(fields[2], shape),
           .strides = fill(fields[3], strides)});
  }

  std::string_view pickle_;
  const std::string& label_;
  uint64_t at_ = 0;     // the next byte
  uint64_t op_at_ = 0;  // where the current opcode begins
  std::vector<PickleValue> stack_;
  std::vector<PickleValue> memo_;
  std::vector<PickleValue> tuples_;  // the values of all tuples
  std::vector<Entry> entries_;       // those of all dictionaries
  uint64_t dicts_ = 0;
};

}  // namespace

void read_state_dict(std::string_view pickle, const std::string& label,
                     const std::function<void(const PickledTensor&)>& visit) {
  PickleMachine machine(pickle, label);
  machine.run();
  machine.visit_tensors(visit);
}

}  // namespace spillway
