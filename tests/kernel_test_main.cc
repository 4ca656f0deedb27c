// SPDX-License-Identifier: Apache-2.0
// main() of tests whose results depend on what the processor can do:
//   --without=amx,avx512   leaves these instructions out, as if the processor lacked them
//   --features             only prints which are left
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "base/error.h"
#include "cpu/features.h"
#include "cpu/processor.h"

int main(int argc, char** argv) {
  // Parse before GoogleTest starts, whose lists of parameters depend on what the processor has.
  std::vector<char*> others{argv[0]};
  bool only_say = false;
  try {
    for (int i = 1; i < argc; ++i) {
      constexpr std::string_view kWithout = "--without=";
      const std::string_view argument = argv[i];
      if (argument == "--features") {
        only_say = true;
      } else if (argument.starts_with(kWithout)) {
        spillway::leave_out_cpu_features(argument.substr(kWithout.size()));
      } else {
        others.push_back(argv[i]);
      }
    }
  } catch (const spillway::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
  if (only_say) {
    fmt::print("{}\n", spillway::processor_features());
    return 0;
  }
  auto count = static_cast<int>(others.size());
  others.push_back(nullptr);
  testing::InitGoogleTest(&count, others.data());
  return RUN_ALL_TESTS();
}
