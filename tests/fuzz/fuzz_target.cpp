// SPDX-License-Identifier: Apache-2.0

#include "fuzz/entries.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  switchyard::fuzz::SWITCHYARD_FUZZ_ENTRY(data, size);
  return 0;
}
