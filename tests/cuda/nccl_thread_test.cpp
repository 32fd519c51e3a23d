// SPDX-License-Identifier: Apache-2.0
//
// A thread for calls that may never return: whoever no longer waits for it goes on. Needs no GPU.

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "core/clock.h"
#include "core/fail.h"
#include "heap/nccl_call.h"
#include "support/errors.h"
#include "support/observe.h"

namespace switchyard {
namespace {

template <typename IsThere>
bool comes_in_time(const IsThere& is_there) {
  for (const std::int64_t start = now_ns(); test::seconds_since(start) < 10;) {
    if (is_there()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

TEST(NcclThreadTest, WhatItsWorkThrowsIsThrownByCheck) {
  const NcclThread thread([] { fail(Errc::kSystem, "nccl: it broke"); });
  ASSERT_TRUE(comes_in_time([&] { return thread.is_done(); }));
  EXPECT_STREQ(test::error_of([&] { thread.check(); }).what(), "nccl: it broke");
}

TEST(NcclThreadTest, OneThatWorksIsLeftAndReleasesWhatItHas) {
  const auto may_end = std::make_shared<std::atomic<bool>>(false);
  {
    const NcclThread thread([may_end] {
      while (!*may_end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    EXPECT_FALSE(thread.is_done());
  }
  EXPECT_EQ(may_end.use_count(), 2) << "it keeps what it works on";
  *may_end = true;
  EXPECT_TRUE(comes_in_time([&] { return may_end.use_count() == 1; }));
}

}  // namespace
}  // namespace switchyard
