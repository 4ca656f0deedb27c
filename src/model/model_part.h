// SPDX-License-Identifier: Apache-2.0
// Makes a range of a network's layers a model of its own, which one stage of a pipeline runs.
#pragma once

#include "model/model.h"

namespace spillway {

// Returns layers [first, end) of `whole`, with its embedding if they begin with the first layer,
// and its head if they end with the last. A list that a part lacks has no ops: its steps instead
// begin by receiving hidden states from the part before, or end by sending them to the next one
// (plan/block_schedule.h). A head that is the token embedding gets a matrix of its own, with the
// same bytes, in a part without the embedding.
//
// Kernels are chosen by facts of the whole model, so a part's decoder is given those facts
// (DecoderOptions::facts); results then have the same bits.
Model part_of(const Model& whole, int first, int end);

}  // namespace spillway
