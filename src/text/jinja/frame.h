// SPDX-License-Identifier: Apache-2.0
// Holds the variables of a template in frames, each with a parent frame.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "text/jinja/heap.h"
#include "text/jinja/syntax_tree.h"

namespace spillway::jinja {

struct Frame {
  std::map<NameId, Value> variables;
  Frame* parent = nullptr;
  bool is_captured = false;  // by a macro, which may be called after the block has ended
};

[[nodiscard]] inline std::optional<Value> try_find_variable(const Frame* frame, NameId name) {
  for (; frame != nullptr; frame = frame->parent) {
    const auto found = frame->variables.find(name);
    if (found != frame->variables.end()) return found->second;
  }
  return std::nullopt;
}

inline void capture(Frame* frame) {
  for (; frame != nullptr && !frame->is_captured; frame = frame->parent) frame->is_captured = true;
}

// Owns the frames of a rendering, and reuses those that no macro has captured.
class FramePool {
 public:
  explicit FramePool(Heap& heap) : heap_(heap) {}

  Frame* acquire(Frame* parent) {
    if (free_.empty()) {
      heap_.charge_bytes(sizeof(Frame));
      free_.push_back(frames_.emplace_back(std::make_unique<Frame>()).get());
    }
    Frame* frame = free_.back();
    free_.pop_back();
    frame->parent = parent;
    return frame;
  }

  void release(Frame* frame) {
    if (frame->is_captured) return;
    frame->variables.clear();
    free_.push_back(frame);
  }

 private:
  Heap& heap_;
  std::vector<std::unique_ptr<Frame>> frames_;
  std::vector<Frame*> free_;
};

}  // namespace spillway::jinja
