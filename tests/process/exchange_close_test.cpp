// SPDX-License-Identifier: Apache-2.0
//
// The begin and the end of an exchange between processes: a rank that cannot take part is named and
// tried again with; after close() rows stay, windows do not, and nobody waits.

#include <atomic>
#include <fstream>
#include <optional>
#include <string>

#include <gmock/gmock.h>

#include "support/few_descriptors.h"
#include "support/processes.h"
#include "support/shared.h"
#include "unit/exchange/small_exchange.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

// Memory that windows are made of, mapped in this process.
int num_windows() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:") != line.npos;
  return count;
}

TEST(ExchangeCloseProcessTest, WindowsEndAndRowsStay) {
  test::Shared<std::atomic<int>> num_closed;
  run_processes(2, [&](const Group& group) {
    const int before = num_windows();
    Exchange exchange(group, small_config());
    Inputs in;
    in.token_values.fill(0x3F80);
    const Dispatched got = dispatch_inputs(exchange, in);
    EXPECT_GT(num_windows(), before);
    if (group.rank() == 1) wait_until(*num_closed, 1);  // rank 0 has ended its exchange
    exchange.close();
    ++*num_closed;
    EXPECT_EQ(num_windows(), before);
    const auto* rows = got.experts.rows.as<std::uint16_t>();
    for (std::int64_t i = 0; i < got.host->num_rows * kHidden; ++i) ASSERT_EQ(rows[i], 0x3F80);
    Exchange next(group, small_config());
    const Dispatched again = dispatch_inputs(next, in);
    next.release(again.handle);
  });
}

// At any descriptor that the windows of rank 1 need.
TEST(ExchangeBeginProcessTest, RankWithoutDescriptorsIsNamedOnAllAndTheGroupGoesOn) {
#ifdef SWITCHYARD_CHECKS_TAKE_DESCRIPTORS
  GTEST_SKIP() << "UndefinedBehaviorSanitizer needs descriptors of its own";
#endif
  run_processes(3, [](const Group& group) {
    int num_failures = 0;
    for (int num_free = 0;; ++num_free) {
      std::optional<Exchange> exchange;
      std::optional<Error> error;
      {
        std::optional<FewDescriptors> few;
        if (group.rank() == 1) few.emplace(num_free);
        try {
          exchange.emplace(group, small_config());
        } catch (const Error& failure) {
          error = failure;
        }
      }
      if (!error) {
        expect_works(*exchange);
        break;
      }
      ++num_failures;
      EXPECT_EQ(error->code(), Errc::kOutOfMemory) << error->what();
      EXPECT_THAT(error->what(), HasSubstr("window: rank 1 of 3: "));
      EXPECT_THAT(error->what(), HasSubstr("Too many open files"));
      if (::testing::Test::HasFailure()) break;
    }
    EXPECT_EQ(num_failures, 3);  // its own window, and those of two peers
  });
}

}  // namespace
}  // namespace switchyard
