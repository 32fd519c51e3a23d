// SPDX-License-Identifier: Apache-2.0
//
// The cases of `switchyard check` for functions of tensors on CPUs, in this process: quantize,
// batched, permute, placement, reduce and tables.

#include <gtest/gtest.h>

#include "conformance/check_case.h"

namespace switchyard::conformance {
namespace {

TEST(FunctionsTest, AgreeWithTheOracle) {
  int num_cases = 0;
  for (const CheckCase& test : all_cases()) {
    if (!test.engine.empty() || test.device != "cpu" || !test.is_quick) continue;
    EXPECT_NO_THROW(test.body(Group(), 7)) << test.name;
    ++num_cases;
  }
  EXPECT_GE(num_cases, 400);
}

}  // namespace
}  // namespace switchyard::conformance
