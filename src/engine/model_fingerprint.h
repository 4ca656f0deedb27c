// SPDX-License-Identifier: Apache-2.0
// Whether a model is still the one it was, without reading all of it.
#pragma once

#include <string>

namespace spillway {

// Of a path or dummy:NAME, as resolve_model() gives it: sizes of its files and samples of what is
// in them, headers included. Where the files lie does not matter. Two models with the same
// fingerprint could only differ between the samples. Throws what open_model() throws.
std::string model_fingerprint(const std::string& reference);

}  // namespace spillway
