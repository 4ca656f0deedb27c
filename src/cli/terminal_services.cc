// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal_services.h"

#include <fmt/core.h>

#include <memory>

#include "cli/interrupt.h"
#include "cli/local_devices.h"
#include "cli/terminal.h"

namespace spillway {

SessionServices terminal_services() {
  SessionServices services{.devices = local_devices(), .cancel = &interrupted()};
  services.progress = [](std::string_view title) { return std::make_unique<ProgressBar>(title); };
  if (stderr_is_terminal())
    services.notice = [](std::string_view text) { fmt::print(stderr, "{}\n", text); };
  return services;
}

}  // namespace spillway
