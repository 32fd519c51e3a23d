// SPDX-License-Identifier: Apache-2.0
//
// ranks.h: ranks as threads of a test, with a deadline suited to tests.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "switchyard/group.h"

#include "engine/local_engine.h"
#include "support/errors.h"

namespace switchyard::test {

/// Long enough for sanitizers on a busy machine, short enough for ctest.
inline constexpr std::int64_t kRanksTimeoutMs = 30'000;

/// Ranks of several hosts, numbered by rank, a thread each: windows only within a host. Rethrows
/// the first failure.
inline void run_ranks_on_hosts(const std::vector<int>& hosts,
                               const std::function<void(const Group&)>& body,
                               std::int64_t timeout_ms = kRanksTimeoutMs) {
  run_engines(make_local_engines(static_cast<int>(hosts.size()), timeout_ms, kLocalEngine, hosts),
              body);
}

/// Runs `body` on each rank, a thread each, and rethrows the first failure. Over engine "local", or
/// over what ctest has chosen for another run of the same tests: "local-messages", or "hosts" of
/// two ranks.
inline void run_ranks(int num_ranks, const std::function<void(const Group&)>& body,
                      std::int64_t timeout_ms = kRanksTimeoutMs) {
  const char* const chosen = std::getenv("SWITCHYARD_TEST_ENGINE");
  const std::string engine = chosen == nullptr ? "local" : chosen;
  if (engine != "hosts") {
    return run_local_ranks(num_ranks, body, {.engine = engine, .timeout_ms = timeout_ms});
  }
  std::vector<int> hosts;
  for (int rank = 0; rank < num_ranks; ++rank) hosts.push_back(rank / 2);
  run_ranks_on_hosts(hosts, body, timeout_ms);
}

}  // namespace switchyard::test
