// SPDX-License-Identifier: Apache-2.0
//
// What `bench` refuses where ranks are on several hosts, before it asks for a GPU.

#include <gtest/gtest.h>

#include "bench_run.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

TEST(BenchHostsTest, CallsOneByOneAreOfOneHost) {
  test::run_ranks_on_hosts({0, 0, 1}, [](const Group& group) {
    cli::BenchOptions options;
    options.device = "cuda";
    options.skew = true;
    test::expect_error(Errc::kNotSupported,
                       "--cold-code or --skew with ranks on 2 hosts, must be on one",
                       [&] { cli::run_bench(group, options, [](const std::string&) {}); });
  });
}

}  // namespace
}  // namespace switchyard
