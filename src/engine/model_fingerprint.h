// SPDX-License-Identifier: Apache-2.0
// Tells whether a model is still the same one, without reading all of it.
#pragma once

#include <string>

namespace spillway {

// Returns the fingerprint of a path or dummy:NAME, as resolve_model() gives it: from the sizes of
// its files and samples of their contents, headers included. The folder of the files does not
// matter. Two models with the same fingerprint could only differ between the samples. Throws what
// open_model() throws.
std::string model_fingerprint(const std::string& reference);

}  // namespace spillway
