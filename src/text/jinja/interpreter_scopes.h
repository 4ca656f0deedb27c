// SPDX-License-Identifier: Apache-2.0
// What the interpreter sets for a while and puts back, also when an error passes.
#pragma once

#include <utility>

#include "base/error.h"
#include "text/jinja/interpreter.h"

namespace spillway::jinja {

// Evaluation is recursive, so its depth is limited.
class Interpreter::Deeper {
 public:
  explicit Deeper(Interpreter& interpreter) : interpreter_(interpreter) {
    SPW_CHECK(++interpreter_.nesting_ <= interpreter_.heap_.limits().nesting, kInvalidArgument,
              "the chat template is nested more than {} deep", interpreter_.heap_.limits().nesting);
  }
  ~Deeper() { --interpreter_.nesting_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  Interpreter& interpreter_;
};

// A new frame within `parent`.
class Interpreter::FrameScope {
 public:
  FrameScope(Interpreter& interpreter, Frame* parent)
      : pool_(interpreter.frames_), current_(interpreter.frame_), before_(interpreter.frame_) {
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

// Output goes to a text of its own.
class Interpreter::OutputScope {
 public:
  explicit OutputScope(Interpreter& interpreter)
      : interpreter_(interpreter),
        text_(interpreter.heap_),
        before_(std::exchange(interpreter.out_, &text_)) {}
  ~OutputScope() { interpreter_.out_ = before_; }
  OutputScope(const OutputScope&) = delete;
  OutputScope& operator=(const OutputScope&) = delete;

  Value take() { return text_.take(); }
  OriginBytes take_bytes() { return text_.take_bytes(); }

 private:
  Interpreter& interpreter_;
  TextBuilder text_;
  TextBuilder* before_;
};

}  // namespace spillway::jinja
