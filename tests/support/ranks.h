// SPDX-License-Identifier: Apache-2.0
//
// ranks.h: ranks as threads of a test, with a deadline suited to tests.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>

#include "switchyard/group.h"

#include "support/errors.h"

namespace switchyard::test {

/// Long enough for sanitizers on a busy machine, short enough for ctest.
inline constexpr std::int64_t kRanksTimeoutMs = 30'000;

/// Engine "local", or what ctest has chosen for another run of the same tests.
inline std::string threads_engine() {
  const char* const chosen = std::getenv("SWITCHYARD_TEST_ENGINE");
  return chosen == nullptr ? "local" : chosen;
}
inline bool sends_messages() { return threads_engine() != "local"; }

/// Runs `body` on each rank, a thread each, and rethrows the first failure.
inline void run_ranks(int num_ranks, const std::function<void(const Group&)>& body,
                      std::int64_t timeout_ms = kRanksTimeoutMs) {
  run_local_ranks(num_ranks, body, {.engine = threads_engine(), .timeout_ms = timeout_ms});
}

}  // namespace switchyard::test
