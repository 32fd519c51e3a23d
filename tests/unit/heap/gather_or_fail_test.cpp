// SPDX-License-Identifier: Apache-2.0
//
// The ranks of a group continue together or fail with the same message. Needs no GPU.

#include "heap/gather_or_fail.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using test::expect_error;
using test::run_ranks;

TEST(GatherOrFailTest, ReturnsWhatEveryRankSays) {
  run_ranks(3, [](const Group& group) {
    const auto texts = gather_or_fail(group.control(), {Phase::kSetup, "test"},
                                      [&] { return "rank " + std::to_string(group.rank()); });
    EXPECT_EQ(texts, (std::vector<std::string>{"rank 0", "rank 1", "rank 2"}));
  });
}

TEST(GatherOrFailTest, FirstFailureIsThrownOnEveryRankAndTheGroupGoesOn) {
  run_ranks(4, [](const Group& group) {
    for (int round = 0; round < 3; ++round) {
      expect_error(Errc::kOutOfMemory, "device window: rank 2 of 4: 64 GiB are not there", [&] {
        gather_or_fail(group.control(), {Phase::kSetup, "test"}, [&]() -> std::string {
          if (group.rank() == 2) throw Error(Errc::kOutOfMemory, "64 GiB are not there");
          if (group.rank() == 3) throw Error(Errc::kSystem, "a later rank");
          return "fine";
        });
      });
    }
    group.barrier();
  });
}

TEST(GatherOrFailTest, ErrorsOfTheGroupPass) {
  run_ranks(2, [](const Group& group) {
    if (group.rank() == 0) group.abort("enough");
    expect_error(Errc::kAborted, "enough", [&] {
      gather_or_fail(group.control(), {Phase::kSetup, "test"}, [&]() -> std::string {
        group.control().barrier();
        return {};
      });
    });
  });
}

}  // namespace
}  // namespace switchyard
