// SPDX-License-Identifier: Apache-2.0
// Sets state of the interpreter for the lifetime of an object and restores it, also on errors.
#pragma once

#include <cstdint>
#include <utility>

#include "base/error.h"
#include "text/jinja/frame.h"
#include "text/jinja/heap.h"

namespace spillway::jinja {

// Counts the depth of evaluation, which is recursive and therefore limited.
class NestingScope {
 public:
  NestingScope(uint32_t& nesting, const JinjaLimits& limits) : nesting_(nesting) {
    SPW_CHECK(++nesting_ <= limits.nesting, kInvalidArgument,
              "the chat template is nested more than {} deep", limits.nesting);
  }
  ~NestingScope() { --nesting_; }
  NestingScope(const NestingScope&) = delete;
  NestingScope& operator=(const NestingScope&) = delete;

 private:
  uint32_t& nesting_;
};

// Makes a new frame within `parent` the current one.
class FrameScope {
 public:
  FrameScope(FramePool& pool, Frame*& current, Frame* parent)
      : pool_(pool), current_(current), before_(current) {
    current_ = pool_.acquire(parent);
  }
  ~FrameScope() {
    pool_.release(current_);
    current_ = before_;
  }
  FrameScope(const FrameScope&) = delete;
  FrameScope& operator=(const FrameScope&) = delete;

 private:
  FramePool& pool_;
  Frame*& current_;
  Frame* before_;
};

// Redirects output to a text of its own.
class OutputScope {
 public:
  OutputScope(TextBuilder*& current, Heap& heap)
      : current_(current), text_(heap), before_(std::exchange(current, &text_)) {}
  ~OutputScope() { current_ = before_; }
  OutputScope(const OutputScope&) = delete;
  OutputScope& operator=(const OutputScope&) = delete;

  Value take() { return text_.take(); }
  OriginBytes take_bytes() { return text_.take_bytes(); }

 private:
  TextBuilder*& current_;
  TextBuilder text_;
  TextBuilder* before_;
};

}  // namespace spillway::jinja
