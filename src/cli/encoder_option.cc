// SPDX-License-Identifier: Apache-2.0
#include "cli/encoder_option.h"

#include "cli/local_devices.h"

namespace spillway {

std::shared_ptr<const TransformerEncoder> open_encoder(const std::filesystem::path& folder,
                                                       EncoderPrecision precision) {
  return std::make_shared<TransformerEncoder>(local_devices().make({.name = "cpu"}), folder,
                                              precision);
}

std::shared_ptr<const PromptEncoder> open_any_encoder(const std::filesystem::path& folder) {
  return open_encoder(folder);
}

}  // namespace spillway
