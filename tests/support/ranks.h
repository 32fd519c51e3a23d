// SPDX-License-Identifier: Apache-2.0
//
// ranks.h: ranks as threads of a test, with a deadline suited to tests.
#pragma once

#include <cstdint>
#include <functional>

#include "switchyard/group.h"

#include "support/errors.h"

namespace switchyard::test {

/// Long enough for sanitizers on a busy machine, short enough for ctest.
inline constexpr std::int64_t kRanksTimeoutMs = 30'000;

/// Runs `body` on each rank over engine "local" and rethrows the first failure.
inline void run_ranks(int num_ranks, const std::function<void(const Group&)>& body,
                      std::int64_t timeout_ms = kRanksTimeoutMs) {
  run_local_ranks(num_ranks, body, {.engine = "local", .timeout_ms = timeout_ms});
}

}  // namespace switchyard::test
