// SPDX-License-Identifier: Apache-2.0
//
// targets.h: runs a test once per Highway target of this build and processor, and says whether
// exhaustive tests were requested.
#pragma once

#include <cstdint>
#include <cstdlib>

#include <gtest/gtest.h>
#include <hwy/highway.h>

namespace switchyard::test {

template <typename Body>
void for_each_target(const Body& body) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    body();
    hwy::SetSupportedTargetsForTest(0);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

/// SWITCHYARD_TEST_EXHAUSTIVE=1 tests all 2^32 inputs, which takes minutes.
inline bool is_exhaustive() { return std::getenv("SWITCHYARD_TEST_EXHAUSTIVE") != nullptr; }

}  // namespace switchyard::test
