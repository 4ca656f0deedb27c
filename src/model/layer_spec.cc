// SPDX-License-Identifier: Apache-2.0
#include "model/layer_spec.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"

namespace spillway {
namespace {

// Walks through a list and tracks what each place holds.
class LayerWalk {
 public:
  LayerWalk(const LayerSpec& layer, int64_t residual_columns, std::string where)
      : layer_(layer), where_(std::move(where)), places_(layer.scratches.size() + 1) {
    widest_.resize(layer.scratches.size());
    if (residual_columns > 0) at(kResidual) = {.columns = residual_columns};
  }

  void run() {
    for (const OpSpec& op : layer_.ops) {
      op_ = &op;
      check_names();
      walk();
    }
  }
  std::vector<int64_t> widest() const { return widest_; }

 private:
  struct Content {
    int64_t columns = 0;  // 0: nothing was written
    int version = 0;
    // The input of the norm or gather that made it: it may be read only while that place is
    // unchanged.
    std::optional<Place> made_of = {};
    int made_of_version = 0;
  };

  template <class... Args>
  void check(bool good, fmt::format_string<Args...> text, Args&&... args) const {
    SPW_CHECK(good, kInternal, "internal error: {}, op '{}': {}", where_, op_->name,
              fmt::format(text, std::forward<Args>(args)...));
  }

  Content& at(Place place) { return places_[static_cast<size_t>(place + 1)]; }
  void check_place(Place place) const {
    check(place >= kResidual && place < std::ssize(layer_.scratches), "no scratch {}", place);
  }

  void check_names() {
    check(!op_->name.empty() && op_names_.insert(op_->name).second, "its name is not its own");
    for (const MatrixSpec& matrix : op_->matrices) {
      check(!matrix.name.empty() && matrix_names_.insert(matrix.name).second,
            "the name of matrix '{}' is not its own", matrix.name);
      check(matrix.rows > 0 && matrix.cols > 0, "matrix '{}' is empty", matrix.name);
    }
    check_place(op_->input);
    check_place(op_->output);
  }

  int64_t read(Place place) {
    const Content& content = at(place);
    check(content.columns > 0, "its input was not written");
    check(!content.made_of || at(*content.made_of).version == content.made_of_version,
          "what it reads was made of something that has changed since");
    return content.columns;
  }
  void write(Place place, int64_t columns, std::optional<Place> made_of = {}) {
    const int version = made_of ? at(*made_of).version : 0;
    Content& content = at(place);
    // An op in place leaves no other input that could change.
    if (made_of == place) made_of.reset();
    content = {columns, content.version + 1, made_of, version};
    if (place != kResidual) {
      int64_t& widest = widest_[static_cast<size_t>(place)];
      widest = std::max(widest, columns);
    }
  }

  void walk() {
    const size_t matrices = op_->matrices.size();
    switch (op_->kind) {
      case OpKind::kEmbedding: {
        check(matrices == 1, "it has {} tables", matrices);
        const int64_t columns = op_->matrices[0].cols;
        // A position table's row is added to the content of the output.
        check(!op_->embedding.by_position || read(op_->output) == columns, "its row does not fit");
        return write(op_->output, columns);
      }
      case OpKind::kGather:
        check(op_->output != op_->input, "it cannot be in place");
        return write(op_->output, read(op_->input), op_->input);
      case OpKind::kNorm:
        return walk_norm();
      case OpKind::kLinear:
        return walk_linear();
      case OpKind::kRope:
        check(op_->rope >= 0, "it names no rope");
        check(op_->input == op_->output, "it is not in place");
        return write(op_->output, read(op_->input));
      case OpKind::kAttention: {
        const AttentionSpec& of = op_->attention;
        check(read(op_->input) == of.input_columns(), "its input is not {}",
              of.owns_state() ? "q, k and v" : "q alone");
        check(op_->output != op_->input, "it cannot be in place");
        return write(op_->output, of.q_dim());
      }
      case OpKind::kActivation: {
        const int64_t columns = read(op_->input);
        check(op_->input == op_->output, "it is not in place");
        check(!op_->activation.gated || columns % 2 == 0, "gate and up differ");
        return write(op_->output, op_->activation.gated ? columns / 2 : columns);
      }
      case OpKind::kAdd: {
        const int64_t columns = read(op_->input);
        check(op_->input != op_->output && read(op_->output) == columns, "it cannot be added");
        return write(op_->output, columns);
      }
    }
  }
  void walk_norm() {
    const int64_t columns = read(op_->input), of_heads = op_->norm.columns;
    check(op_->matrices.size() <= 1, "it has several weights");
    for (const MatrixSpec& weight : op_->matrices) {
      check(weight.rows == 1, "its weight has several rows");
      check(of_heads > 0 ? of_heads % weight.cols == 0 : weight.cols == columns,
            "its weight has {} columns", weight.cols);
    }
    if (of_heads > 0) {
      check(op_->input == op_->output && op_->matrices.size() == 1 &&
                op_->norm.first_column + of_heads <= columns,
            "a norm of heads has a weight and is in place");
      return write(op_->output, columns);
    }
    write(op_->output, columns, op_->input);
  }
  void walk_linear() {
    const int64_t columns = read(op_->input);
    check(!op_->matrices.empty() && op_->output != op_->input, "it has nothing to multiply with");
    int64_t rows = 0;
    for (const MatrixSpec& matrix : op_->matrices) {
      check(matrix.cols == columns, "matrix '{}' has {} columns, its input {}", matrix.name,
            matrix.cols, columns);
      rows += matrix.rows;
    }
    write(op_->output, rows);
  }

  const LayerSpec& layer_;
  const std::string where_;
  std::vector<Content> places_;  // the residual stream, then the scratches
  std::vector<int64_t> widest_;  // the scratches' columns
  std::set<std::string_view> op_names_, matrix_names_;
  const OpSpec* op_ = nullptr;
};

}  // namespace

const OpSpec* LayerSpec::find(std::string_view op) const {
  const auto found = std::ranges::find(ops, op, &OpSpec::name);
  return found == ops.end() ? nullptr : &*found;
}

Place LayerSpec::place(std::string_view scratch, bool f32) {
  const auto found = std::ranges::find(scratches, scratch, &Scratch::name);
  if (found != scratches.end()) return static_cast<Place>(found - scratches.begin());
  scratches.push_back({scratch, f32});
  return static_cast<Place>(std::ssize(scratches) - 1);
}

void validate(const LayerSpec& layer, int64_t residual_columns, const std::string& where) {
  LayerWalk(layer, residual_columns, where).run();
}

std::vector<int64_t> scratch_columns(const LayerSpec& layer, int64_t residual_columns) {
  LayerWalk walk(layer, residual_columns, "a layer");
  walk.run();
  return walk.widest();
}

}  // namespace spillway
