// SPDX-License-Identifier: Apache-2.0

#include "engine/reason.h"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

TEST(ReasonTest, LeavesOutTheFunctionAndTheRankThatSpeaks) {
  EXPECT_EQ(
      reason_for_others("group: no sign of rank 2 within 3.0 s (rank 10 of 16); did it start?"),
      "no sign of rank 2 within 3.0 s; did it start?");
  EXPECT_EQ(
      reason_for_others("group: rank 1 gave up: no space (rank 0 of 2 stopped in barrier, call 3)"),
      "rank 1 gave up: no space");
  EXPECT_EQ(reason_for_others("group: a (rank 0 of 2) b (rank 1 of 4)"), "a b");
}

TEST(ReasonTest, KeepsEverythingElse) {
  for (const char* const text :
       {"", "open: /x: no", "barrier: rank 1 was lost (its process is gone)", "a (rank 1)",
        "a (rank  of 4)", "a (rank 1 of )", "a (rank 1 of 4", "size (rank of a)"}) {
    EXPECT_EQ(reason_for_others(text), text);
  }
}

}  // namespace
}  // namespace switchyard
