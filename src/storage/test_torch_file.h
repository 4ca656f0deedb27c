// SPDX-License-Identifier: Apache-2.0
// Writes zip archives and pickles for tests: byte by byte as torch.save() does, or in ways that it
// never would.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

// Appends a number in little-endian order.
template <class T>
void append_number(std::string& to, T value) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof(T));
  to.append(raw, sizeof(T));
}

// A TestZip's member may have these besides its name and bytes.
struct TestMember {
  uint16_t method = 0;
  uint16_t flags = 0x0808;
  bool zip64 = false;           // sizes and offset are in a zip64 field
  uint64_t alignment = 64;      // of its bytes in the file, by an extra field; 1: none
  std::string local_name = {};  // if it is not the directory's
};

class TestZip {
 public:
  void add(std::string_view name, std::string_view content, const TestMember& member = {}) {
    const uint64_t header = file_.size();
    const std::string local_name =
        member.local_name.empty() ? std::string(name) : member.local_name;
    append_number<uint32_t>(file_, 0x04034b50);
    add_versions(file_, member);
    file_.append(8, '\0');              // time and checksum
    append_number<uint64_t>(file_, 0);  // sizes come behind the bytes
    append_number(file_, static_cast<uint16_t>(local_name.size()));
    const size_t extra_at = file_.size();
    append_number<uint16_t>(file_, 0);
    file_ += local_name;
    if (member.alignment > 1) {
      const size_t begin = file_.size();
      file_ += "FB";
      append_number<uint16_t>(file_, 0);
      file_.append((member.alignment - file_.size() % member.alignment) % member.alignment, 'Z');
      set_number(file_, begin + 2, static_cast<uint16_t>(file_.size() - begin - 4));
      set_number(file_, extra_at, static_cast<uint16_t>(file_.size() - begin));
    }
    file_ += content;
    append_number<uint32_t>(file_, 0x08074b50);
    append_number<uint32_t>(file_, 0);
    append_number(file_, static_cast<uint32_t>(content.size()));
    append_number(file_, static_cast<uint32_t>(content.size()));

    const auto number = [&](uint64_t value) {
      append_number(directory_, member.zip64 ? ~uint32_t{0} : static_cast<uint32_t>(value));
    };
    append_number<uint32_t>(directory_, 0x02014b50);
    append_number<uint16_t>(directory_, 0);  // made by
    add_versions(directory_, member);
    directory_.append(8, '\0');
    number(content.size());
    number(content.size());
    append_number(directory_, static_cast<uint16_t>(name.size()));
    append_number<uint16_t>(directory_, member.zip64 ? 28 : 0);
    directory_.append(10, '\0');  // comment, disk, attributes
    number(header);
    directory_ += name;
    if (member.zip64) {
      append_number<uint16_t>(directory_, 1);
      append_number<uint16_t>(directory_, 24);
      append_number<uint64_t>(directory_, content.size());
      append_number<uint64_t>(directory_, content.size());
      append_number(directory_, header);
    }
    ++count_;
  }

  // Ends the archive as torch does, with a zip64 record whatever its size, or without it. With
  // `saturated`, only the zip64 record has the directory's place.
  std::string bytes(bool zip64 = true, bool saturated = false) const {
    std::string out = file_ + directory_;
    const uint64_t zip64_at = out.size();
    if (zip64) {
      append_number<uint32_t>(out, 0x06064b50);
      append_number<uint64_t>(out, 44);
      append_number<uint32_t>(out, 0x032d001e);  // versions
      append_number<uint64_t>(out, 0);           // disks
      append_number<uint64_t>(out, count_);
      append_number<uint64_t>(out, count_);
      append_number<uint64_t>(out, directory_.size());
      append_number<uint64_t>(out, file_.size());
      append_number<uint32_t>(out, 0x07064b50);
      append_number<uint32_t>(out, 0);
      append_number<uint64_t>(out, zip64_at);
      append_number<uint32_t>(out, 1);
    }
    append_number<uint32_t>(out, 0x06054b50);
    append_number<uint32_t>(out, 0);  // disks
    for (int i = 0; i < 2; ++i)
      append_number(out, saturated ? uint16_t{0xffff} : static_cast<uint16_t>(count_));
    for (const size_t value : {directory_.size(), file_.size()})
      append_number(out, saturated ? ~uint32_t{0} : static_cast<uint32_t>(value));
    append_number<uint16_t>(out, 0);  // comment
    return out;
  }

  template <class T>
  static void set_number(std::string& file, size_t at, T value) {
    std::memcpy(file.data() + at, &value, sizeof(T));
  }

 private:
  static void add_versions(std::string& to, const TestMember& member) {
    append_number<uint16_t>(to, 0);  // needed
    append_number(to, member.flags);
    append_number(to, member.method);
  }

  std::string file_;
  std::string directory_;
  uint64_t count_ = 0;
};

// A tensor of a state dict. Without strides its elements lie in the order of its shape.
struct TestTensor {
  std::string name;
  std::string type;  // "FloatStorage"
  int storage = 0;
  int64_t storage_elements = 0;
  std::vector<int64_t> shape;
  int64_t offset = 0;
  std::vector<int64_t> strides = {};
  bool is_parameter = false;
};

// A pickle of protocol 2. Each function appends what torch.save() would, with its memo.
class TestPickle {
 public:
  std::string text = "\x80\x02";

  TestPickle& raw(std::string_view bytes) {
    text += bytes;
    return *this;
  }
  TestPickle& put() {
    text += memo_ < 256 ? 'q' : 'r';
    if (memo_ < 256) {
      text += static_cast<char>(memo_);
    } else {
      append_number(text, static_cast<uint32_t>(memo_));
    }
    ++memo_;
    return *this;
  }
  TestPickle& global(std::string_view module, std::string_view name) {
    return raw("c").raw(module).raw("\n").raw(name).raw("\n").put();
  }
  TestPickle& string(std::string_view value) {
    text += 'X';
    append_number(text, static_cast<uint32_t>(value.size()));
    return raw(value).put();
  }
  TestPickle& number(int64_t value) {
    if (value >= 0 && value < 256) {
      text += 'K';
      append_number(text, static_cast<uint8_t>(value));
    } else if (value >= 0 && value < 65536) {
      text += 'M';
      append_number(text, static_cast<uint16_t>(value));
    } else if (value == static_cast<int32_t>(value)) {
      text += 'J';
      append_number(text, static_cast<int32_t>(value));
    } else {
      text += "\x8a\x08";
      append_number(text, value);
    }
    return *this;
  }
  TestPickle& sizes(std::span<const int64_t> values) {
    if (values.empty()) return raw(")");
    raw("(");
    for (const int64_t value : values) number(value);
    return raw("t").put();
  }
  TestPickle& ordered_dict() { return global("collections", "OrderedDict").raw(")R").put(); }

  // Appends the name and the value.
  TestPickle& tensor(const TestTensor& tensor) {
    std::vector<int64_t> strides = tensor.strides;
    if (strides.empty()) {
      strides.resize(tensor.shape.size(), 1);
      for (size_t i = strides.size(); i-- > 1;) strides[i - 1] = strides[i] * tensor.shape[i];
    }
    string(tensor.name);
    if (tensor.is_parameter) global("torch._utils", "_rebuild_parameter");
    global("torch._utils", "_rebuild_tensor_v2").raw("((");
    string("storage").global("torch", tensor.type).string(std::to_string(tensor.storage));
    string("cpu").number(tensor.storage_elements).raw("t").put().raw("Q");
    number(tensor.offset).sizes(tensor.shape).sizes(strides).raw("\x89");
    ordered_dict().raw("t").put().raw("R").put();
    if (tensor.is_parameter) raw("\x88").ordered_dict().raw("\x87").put().raw("R").put();
    return *this;
  }

  // Appends a dictionary of tensors with the attribute that modules give it, and the end.
  TestPickle& state_dict(std::span<const TestTensor> tensors) {
    ordered_dict().raw("(");
    for (const TestTensor& one : tensors) tensor(one);
    raw("u}").put().string("_metadata").ordered_dict().string("").raw("}").put();
    return string("version").number(1).raw("sssb.");
  }

 private:
  int memo_ = 0;
};

// Returns the archive of a pickle and of storages, whose keys are their numbers.
inline std::string test_torch_file(std::string_view pickle, std::span<const std::string> storages,
                                   const TestMember& member = {}) {
  TestZip zip;
  const std::string archive = "pytorch_model/";
  zip.add(archive + "data.pkl", pickle, member);
  zip.add(archive + "byteorder", "little", member);
  for (size_t i = 0; i < storages.size(); ++i)
    zip.add(archive + "data/" + std::to_string(i), storages[i], member);
  zip.add(archive + "version", "3\n", member);
  return zip.bytes();
}

}  // namespace spillway
