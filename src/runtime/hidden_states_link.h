// SPDX-License-Identifier: Apache-2.0
// Where a part of a model takes hidden states over from, and where it hands them over to.
#pragma once

#include "tensor/tensor_view.h"

namespace spillway {

// The parts beside this one, as its decoder sees them: one call for each micro-batch of a step, in
// their order, with rows of the residual stream on the decoder's device. Both may throw; the step
// ends then, and nothing of it counts.
class HiddenStatesLink {
 public:
  virtual ~HiddenStatesLink() = default;

  // What the part before has sent for the same tokens is in these rows on return.
  virtual void receive(const Activations& rows) = 0;  // [tokens, hidden], F32
  // Ops that were called so far compute these rows; on return they may change.
  virtual void send(const Activations& rows) = 0;  // [tokens, hidden], F32
};

}  // namespace spillway
