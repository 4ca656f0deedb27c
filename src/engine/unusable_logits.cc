// SPDX-License-Identifier: Apache-2.0
#include "engine/unusable_logits.h"

#include <fmt/core.h>

#include <optional>

namespace spillway {

std::string explain_unusable_logits(Decoder& decoder, KvType type) {
  const std::optional<KvFault> fault = decoder.find_kv_fault();
  if (!fault) {
    return "the model's logits are not numbers; its file is damaged, or it computes beyond the "
           "range of floating point";
  }
  const char* what = fault->part == KvPart::kKeys ? "key" : "value";
  if (fault->in_activations) {
    return fmt::format(
        "the model's logits are not numbers: layer {} (the first is 0) computes a {} beyond the "
        "range of f16, which this device computes in; take --device cpu --kv-type f32",
        fault->layer, what);
  }
  return fmt::format(
      "the model's logits are not numbers: layer {} (the first is 0) computes a {} beyond the "
      "range of {} KV; take --kv-type {}",
      fault->layer, what, kv_type_name(type), type == KvType::kBf16 ? "f32" : "bf16 or f32");
}

}  // namespace spillway
