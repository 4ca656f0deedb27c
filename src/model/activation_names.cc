// SPDX-License-Identifier: Apache-2.0
#include "model/activation_names.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "model/metadata_fields.h"

namespace spillway {
namespace {

// GPT-2's variants of gelu, some of them with a faster formula, are the same function.
constexpr std::pair<std::string_view, ActivationKind> kNames[] = {
    {"relu", ActivationKind::kRelu},
    {"gelu", ActivationKind::kGelu},
    {"gelu_new", ActivationKind::kGeluTanh},
    {"gelu_fast", ActivationKind::kGeluTanh},
    {"gelu_pytorch_tanh", ActivationKind::kGeluTanh},
    {"silu", ActivationKind::kSilu},
};

}  // namespace

ActivationKind read_activation(const ModelFiles& files, std::string_view key,
                               std::string_view otherwise) {
  const std::string name = read_string_or(files.metadata, key, otherwise);
  const auto* const found =
      std::ranges::find(kNames, name, [](const auto& it) { return it.first; });
  SPW_CHECK(found != std::end(kNames), kUnsupported,
            "{}: {} '{}' is not supported; relu, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh and "
            "silu are",
            files.name, key, printable(name));
  return found->second;
}

std::string_view activation_name(ActivationKind kind) {
  return std::ranges::find(kNames, kind, [](const auto& it) { return it.second; })->first;
}

}  // namespace spillway
