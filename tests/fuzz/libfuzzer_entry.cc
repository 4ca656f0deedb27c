// SPDX-License-Identifier: Apache-2.0
// The entry point that libFuzzer calls; SPW_FUZZ_TARGET is the target of this program.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/fuzz_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  spillway::SPW_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
