// SPDX-License-Identifier: Apache-2.0
// A vector whose first elements need no allocation.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <vector>

namespace spillway {

// A vector of plain values. Up to `N` of them are stored in the object itself; with more, all are
// on the heap.
template <class T, size_t N>
class SmallVector {
 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  SmallVector() = default;
  SmallVector(std::initializer_list<T> values) {
    for (const T& value : values) push_back(value);
  }

  void push_back(const T& value) {
    if (count_ < N) {
      few_[count_++] = value;
      return;
    }
    if (count_ == N) many_.assign(few_.begin(), few_.end());
    many_.push_back(value);
    ++count_;
  }
  void clear() {
    many_.clear();
    count_ = 0;
  }
  void resize(size_t count) {
    while (count_ < count) push_back(T());
    if (count_ > N) many_.resize(std::max(count, N));
    if (count_ > N && count <= N) {
      std::copy_n(many_.begin(), count, few_.begin());
      many_.clear();
    }
    count_ = count;
  }

  size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  const T* data() const { return count_ <= N ? few_.data() : many_.data(); }
  T* data() { return count_ <= N ? few_.data() : many_.data(); }
  const T* begin() const { return data(); }
  const T* end() const { return data() + count_; }
  T* begin() { return data(); }
  T* end() { return data() + count_; }
  const T& operator[](size_t i) const { return data()[i]; }
  T& operator[](size_t i) { return data()[i]; }
  const T& front() const { return data()[0]; }

  bool operator==(const SmallVector& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }

 private:
  std::array<T, N> few_ = {};
  std::vector<T> many_;
  size_t count_ = 0;
};

}  // namespace spillway
