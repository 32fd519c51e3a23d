// SPDX-License-Identifier: Apache-2.0
//
// close() of an exchange between processes: rows stay, windows do not, and nobody waits.

#include <atomic>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "support/processes.h"
#include "support/shared.h"
#include "unit/exchange/small_exchange.h"

namespace switchyard {
namespace {

using namespace test;

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

}  // namespace
}  // namespace switchyard
