// SPDX-License-Identifier: Apache-2.0
// The link on which a part of a model receives hidden states from the previous part and sends them
// to the next one.
#pragma once

#include "tensor/tensor_view.h"

namespace spillway {

// The neighbouring parts as a decoder sees them. Each function is called once for each micro-batch
// of a step, in their order, with rows of the residual stream on the decoder's device. Both may
// throw; the step then ends, and its results are invalid.
class HiddenStatesLink {
 public:
  virtual ~HiddenStatesLink() = default;

  // Fills these rows with what the previous part has sent for the same tokens, before it returns.
  virtual void receive(const Activations& rows) = 0;  // [tokens, hidden], F32
  // Sends these rows, which ops queued so far compute. After the return they may change.
  virtual void send(const Activations& rows) = 0;  // [tokens, hidden], F32
};

}  // namespace spillway
