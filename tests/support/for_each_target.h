// SPDX-License-Identifier: Apache-2.0
//
// for_each_target.h: runs a check once per instruction set that both the build and this machine
// support, widest first.
#pragma once

#include <cstdint>

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
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace switchyard::test
