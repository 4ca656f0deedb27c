// SPDX-License-Identifier: Apache-2.0
#include "storage/pickle_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/test_scoped_folder.h"
#include "storage/pickle_opcodes.h"
#include "storage/test_torch_file.h"

namespace spillway {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string error_of_pickle(std::string_view pickle) {
  return error_of([&] { read_state_dict(pickle, "w.bin", [](const PickledTensor&) {}); });
}

std::vector<std::string> names_in(std::string_view pickle) {
  std::vector<std::string> names;
  read_state_dict(pickle, "w.bin",
                  [&](const PickledTensor& tensor) { names.emplace_back(tensor.name); });
  return names;
}

TestTensor scalar(std::string_view name) {
  return {.name = std::string(name), .type = "FloatStorage", .storage_elements = 1, .shape = {}};
}

// A pickle that puts this on an empty stack, and ends.
std::string pickle_of(std::string_view opcodes) { return TestPickle().raw(opcodes).raw(".").text; }

// The pickle of one tensor, with something in it replaced.
std::string one_tensor_with(std::string_view old_bytes, std::string_view new_bytes) {
  const TestTensor tensor{.name = "t",
                          .type = "HalfStorage",
                          .storage_elements = 6,
                          .shape = {2, 3},
                          .is_parameter = true};
  std::string pickle = TestPickle().state_dict(std::span(&tensor, 1)).text;
  const size_t at = pickle.find(old_bytes);
  EXPECT_NE(at, std::string::npos);
  return pickle.replace(at, old_bytes.size(), new_bytes);
}

TEST(PickleReaderTest, ReadsWhatTorchSaves) {
  std::vector<TestTensor> tensors;
  tensors.push_back({.name = "a", .type = "HalfStorage", .storage_elements = 6, .shape = {2, 3}});
  tensors.push_back(
      {.name = "scalar", .type = "LongStorage", .storage = 1, .storage_elements = 1, .shape = {}});
  tensors.push_back({.name = "view",
                     .type = "FloatStorage",
                     .storage = 70'000,
                     .storage_elements = int64_t{1} << 40,
                     .shape = {300, 70'000},
                     .offset = 3'000'000'000,
                     .strides = {1, 300},
                     .is_parameter = true});
  int count = 0;
  read_state_dict(TestPickle().state_dict(tensors).text, "w.bin", [&](const PickledTensor& read) {
    const TestTensor& written = tensors.at(static_cast<size_t>(count++));
    EXPECT_EQ(read.name, written.name);
    EXPECT_EQ(read.storage_type->torch_name, written.type);
    EXPECT_EQ(read.storage_key, std::to_string(written.storage));
    EXPECT_EQ(read.storage_elements, static_cast<uint64_t>(written.storage_elements));
    EXPECT_EQ(read.offset, static_cast<uint64_t>(written.offset));
    EXPECT_THAT(read.shape, ::testing::ElementsAreArray(written.shape));
    EXPECT_EQ(read.strides.size(), read.shape.size());
    EXPECT_TRUE(read.name != "a" || (read.strides[0] == 3 && read.strides[1] == 1));
    EXPECT_TRUE(read.name != "view" || (read.strides[0] == 1 && read.strides[1] == 300));
  });
  EXPECT_EQ(count, 3);
}

TEST(PickleReaderTest, ReadsPlainDictionariesItemByItem) {
  TestPickle pickle;
  pickle.raw("}").put();
  for (int i = 0; i < 400; ++i) {
    pickle.tensor(scalar(std::to_string(i))).raw("s");
  }
  EXPECT_EQ(names_in(pickle.raw(".").text).size(), 400u);
  EXPECT_THAT(names_in(pickle_of("}")), IsEmpty());
}

TEST(PickleReaderTest, GivesOnlyTheTensorsOfTheDictionaryItself) {
  TestPickle pickle;
  pickle.raw("}").put().tensor(scalar("outer")).raw("s");
  // An attribute of the dictionary.
  pickle.raw("}").put().tensor(scalar("inner")).raw("sb.");
  EXPECT_THAT(names_in(pickle.text), ElementsAre("outer"));
}

TEST(PickleReaderTest, NamesGlobalsThatItDoesNotKnow) {
  const std::pair<const char*, const char*> globals[] = {
      {"posix", "system"},
      {"builtins", "eval"},
      {"collections", "Counter"},
      {"torch", "UntypedStorage"},
      {"torch.storage", "UntypedStorage"},
      {"torch.storage", "HalfStorage"},
      {"torch", "ComplexFloatStorage"},
      {"torch", ""},
      {"torch._utils", "_rebuild_tensor_v3"},
      {"torch._utils", "_rebuild_sparse_tensor"},
      {"torch.storage", "_load_from_bytes"},
      {"numpy.core.multiarray", "_reconstruct"},
  };
  for (const auto& [module, name] : globals) {
    const std::string pickle = pickle_of(fmt::format("c{}\n{}\n", module, name));
    EXPECT_THAT(error_of_pickle(pickle),
                AllOf(HasSubstr(fmt::format("w.bin: data.pkl: '{}.{}' at byte 2", module, name)),
                      HasSubstr("convert the folder to safetensors or GGUF")));
  }
  EXPECT_THAT(error_of_pickle(pickle_of("ctorch\nHalf\x1b\n")), HasSubstr(R"('torch.Half\x1b')"));
  EXPECT_THAT(error_of_pickle(pickle_of("c" + std::string(200, 'x'))),
              HasSubstr("a global whose name does not end within 128 bytes"));
}

TEST(PickleReaderTest, NamesOpcodesThatItDoesNotFollow) {
  constexpr std::string_view kFollowed = "(.NJKMX)t}suRbQhjqrc\x80\x85\x86\x87\x88\x89\x8a";
  int named = 0;
  for (int code = 0; code < 256; ++code) {
    if (kFollowed.find(static_cast<char>(code)) != std::string_view::npos) continue;
    const std::string error = error_of_pickle(pickle_of(std::string(1, static_cast<char>(code))));
    const std::string_view name = pickle_op_name(static_cast<uint8_t>(code));
    if (name.empty()) {
      EXPECT_THAT(error, HasSubstr(fmt::format("no opcode: {:#04x} at byte 2", code)));
    } else {
      EXPECT_THAT(error, HasSubstr(fmt::format("opcode {} at byte 2; only", name)));
      ++named;
    }
  }
  EXPECT_EQ(named + static_cast<int>(kFollowed.size()), 68);  // all of protocols 0 to 5
}

TEST(PickleReaderTest, RefusesOtherProtocols) {
  EXPECT_THAT(error_of_pickle("\x80\x04\x95"), HasSubstr("pickle protocol 4 at byte 0"));
  EXPECT_THAT(error_of_pickle("\x80\x02\x80\x02}."), HasSubstr("a second protocol at byte 2"));
  EXPECT_THAT(error_of_pickle("}."), HasSubstr("no pickle that begins with its protocol"));
  EXPECT_THAT(error_of_pickle(""), HasSubstr("an opcode that lacks bytes"));
}

TEST(PickleReaderTest, RefusesTruncatedPickles) {
  const std::string pickle = one_tensor_with("", "");
  for (size_t bytes = 0; bytes < pickle.size(); ++bytes) {
    EXPECT_THAT(error_of_pickle(std::string_view(pickle).substr(0, bytes)), HasSubstr("damaged"))
        << bytes;
  }
  EXPECT_THAT(error_of_pickle(pickle + "."), HasSubstr("more bytes behind its end"));
}

TEST(PickleReaderTest, RefusesCallsOfOtherArguments) {
  using namespace std::string_literals;
  const std::pair<std::string, const char*> cases[] = {
      {"ctorch\nHalfStorage\n)R", "a call of a storage's type"},
      {"ccollections\nOrderedDict\nK\1\x85R", "an OrderedDict with arguments"},
      {"ctorch._utils\n_rebuild_tensor_v2\n)R", "a tensor of other arguments"},
      {"ctorch._utils\n_rebuild_parameter\n}N}\x87R", "a parameter of other arguments"},
      {"}}R", "a dictionary instead of a tuple"},
      {"})R", "a dictionary instead of a class"},
      {"NQ", "None instead of a tuple"},
      {")Q", "a reference that is no storage"},
      {"NNb", "None instead of a dictionary"},
      {"N}b", "None instead of a dictionary"},
      {"NNNs", "None instead of a dictionary"},
  };
  for (const auto& [opcodes, message] : cases)
    EXPECT_THAT(error_of_pickle(pickle_of(opcodes)), HasSubstr(message)) << opcodes;

  // The key, the number of elements, the offset, the shape, its end, whether there is a gradient.
  const std::pair<std::string, std::string> changes[] = {
      {"X\1\0\0\0"s + "0"s, "X\1\0\0\0\xff"s},  // any text is a key
      {"K\6t", "Nt"},                           // the storage's size
      {"K\6t", "J\xff\xff\xff\xfft"},           // a negative size
      {"QK\0"s, "QJ\xff\xff\xff\xff"s},         // a negative offset
      {"(K\2K\3t", "(K\2Nt"},                   // a shape without numbers
      {"(K\2K\3t", "(K\2K\3K\4t"},              // more dimensions than strides
      {"(K\3K\1t", "(K\3J\xfe\xff\xff\xfft"},   // a negative stride
      {"\x89", "N"},                            // no bool
      {"storage", "Storage"},
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    const std::string error = error_of_pickle(one_tensor_with(changes[i].first, changes[i].second));
    if (i == 0) {
      EXPECT_EQ(error, "no error");
    } else {
      EXPECT_THAT(error, ::testing::AnyOf(HasSubstr("a reference that is no storage"),
                                          HasSubstr("a tensor of other arguments"),
                                          HasSubstr("shape or strides are no sizes")))
          << i;
    }
  }
}

TEST(PickleReaderTest, RefusesEntriesThatAreNoTensors) {
  EXPECT_THAT(error_of_pickle(pickle_of("}X\2\0\0\0")), HasSubstr("lacks bytes"));
  const auto entry = [](std::string_view key, std::string_view value) {
    return error_of_pickle(TestPickle().raw("}").raw(key).raw(value).raw("s.").text);
  };
  const std::string key = TestPickle().string("model").text.substr(2);
  EXPECT_THAT(entry(key, "}"), HasSubstr("'model' is a dictionary, not a tensor"));
  EXPECT_THAT(entry(key, "K\7"), HasSubstr("'model' is a number, not a tensor"));
  EXPECT_THAT(entry("K\7", "K\7"), HasSubstr("a tensor's name is a number, not a text"));
  EXPECT_THAT(error_of_pickle(pickle_of("N")), HasSubstr("None instead of a dictionary"));
}

TEST(PickleReaderTest, StaysWithinItsStackAndMemo) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "several values left"},
      {"NN", "several values left"},
      {"t", "no mark"},
      {"u", "no mark"},
      {"\x85", "an empty stack"},
      {"}(NuN", "a key without a value"},
      {"s", "an empty stack"},
      {"(NNu", "an empty stack"},
      {"NNs", "an empty stack"},
      {"R", "an empty stack"},
      {"b", "an empty stack"},
      {"Q", "an empty stack"},
      {"(Q", "a mark instead"},
      {"(\x85", "a mark instead"},
      {"}(Ns", "a mark instead"},
      {"h\7", "no value 7 in the memo"},
      {"j\7\7\7\7", "no value"},
      {"Nq\1", "value 1 in a memo of 0"},
      {"(q", "lacks bytes"},
      {"Nr\1\1\1\1", "value 16843009 in a memo of 0"},
      {"\x8a\x09", "a number of 9"},
      {"\x8a\x08\7\7\7\7\7\7\7\7", "the number 50"},
      {"q", "lacks bytes"},
      {"(NNNNNNNNNt", "a tuple of 9 values"},
  };
  for (const auto& [opcodes, message] : cases) {
    const std::string pickle = std::string("\x80\x02") + opcodes;
    const bool lacks = std::string_view(message) == "lacks bytes";
    EXPECT_THAT(error_of_pickle(lacks ? pickle : pickle + '.'), HasSubstr(message)) << opcodes;
  }
  using namespace std::string_literals;
  EXPECT_THAT(error_of_pickle(pickle_of("(q\0"s)), HasSubstr("a mark instead of a value"));
}

std::string repeated(std::string_view text, size_t times) {
  std::string out = "\x80\x02";
  for (size_t i = 0; i < times; ++i) out += text;
  return out + '.';
}

TEST(PickleReaderTest, BoundsWhatItKeeps) {
  constexpr size_t kMany = 3'000'000;
  EXPECT_THAT(error_of_pickle(repeated("N", kMany)), HasSubstr("a stack of over 1048576 values"));
  EXPECT_THAT(error_of_pickle(repeated("(", kMany)), HasSubstr("a stack of over 1048576 values"));
  EXPECT_THAT(error_of_pickle("\x80\x02N" + repeated("\x85", kMany).substr(2)),
              HasSubstr("over 2097152 values in tuples"));
  EXPECT_THAT(error_of_pickle("\x80\x02}" + repeated("NNs", kMany).substr(2)),
              HasSubstr("over 524288 entries in dictionaries"));
  std::string memo = "\x80\x02N";
  for (uint32_t i = 0; i < kMany; ++i) {
    memo += 'r';
    append_number(memo, i);
  }
  EXPECT_THAT(error_of_pickle(memo), HasSubstr("in a memo of 2097152"));
  EXPECT_THAT(error_of_pickle(std::string((64 << 20) + 1, '}')), HasSubstr("over 67108864"));
}

}  // namespace
}  // namespace spillway
