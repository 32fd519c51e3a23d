// SPDX-License-Identifier: Apache-2.0
//
// for_each_target.h: runs a check once per instruction set that both the build and this machine
// support, widest first; and whether tests are to try all inputs.
#pragma once

#include <cstdint>
#include <cstdlib>

#include <gtest/gtest.h>
#include <hwy/targets.h>

namespace switchyard::test {

template <typename Check>
void for_each_target(const Check& check) {
  hwy::SetSupportedTargetsForTest(0);
  std::int64_t left = hwy::SupportedTargets();
  while (left != 0) {
    const std::int64_t target = left & -left;
    left &= left - 1;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(hwy::TargetName(target));
    check();
    if (::testing::Test::HasFatalFailure()) break;
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

/// SWITCHYARD_TEST_EXHAUSTIVE=1 tests all 2^32 inputs, which takes minutes.
inline bool is_exhaustive() { return std::getenv("SWITCHYARD_TEST_EXHAUSTIVE") != nullptr; }

}  // namespace switchyard::test
