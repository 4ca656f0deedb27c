// SPDX-License-Identifier: Apache-2.0
#include "engine/compute_options.h"

#include "base/error.h"
#include "base/printable.h"

namespace spillway {

void ComputeOptions::take_from(const Plan& plan) {
  if (plan.compress_weights.value_or(false)) compress_weights = true;
  if (plan.kv_type && kv_type == "auto" && !compress_kv) kv_type = kv_type_name(*plan.kv_type);
  if (plan.attention_topk && attention_topk == 0) attention_topk = *plan.attention_topk;
  if (plan.chunk && chunk == 0) chunk = *plan.chunk;
}

std::optional<KvType> ComputeOptions::try_kv_type() const {
  const auto type = compress_kv ? KvType::kInt4 : try_kv_type_from_name(kv_type);
  SPW_CHECK(type || kv_type == "auto", kInvalidArgument,
            "--kv-type is '{}'; give f32, f16, bf16, int8, int4 or auto", printable(kv_type));
  SPW_CHECK(!compress_kv || kv_type == "auto" || kv_type == "int4", kInvalidArgument,
            "--compress-kv means --kv-type int4, not {}", printable(kv_type));
  return type;
}

float ComputeOptions::checked_topk() const {
  SPW_CHECK(attention_topk >= 0 && attention_topk <= 1, kInvalidArgument,
            "--attention-topk is {}; give a share of the context up to 1, such as 0.1",
            attention_topk);
  return attention_topk > 0 ? attention_topk : 0;  // never -0
}

}  // namespace spillway
