// SPDX-License-Identifier: Apache-2.0
// A range of a network's layers as a model of its own: what one stage of a pipeline runs.
#pragma once

#include "model/model.h"

namespace spillway {

// Layers [first, end) of `whole`, with its embedding where they begin with the first layer, and its
// head where they end with the last. The list that a part lacks has no ops: instead, its steps
// begin by taking hidden states over from the part before, or end by handing them over to the next
// one (plan/block_schedule.h). A head that is the token embedding has a matrix of its own in a part
// without the embedding, with the same bytes.
//
// Kernels are chosen by facts of the whole model, so a decoder of a part is given these
// (DecoderOptions::facts); results then have the same bits.
Model part_of(const Model& whole, int first, int end);

}  // namespace spillway
