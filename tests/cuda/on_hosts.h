// SPDX-License-Identifier: Apache-2.0
//
// on_hosts.h: ranks as processes that say that they are of several hosts, to this library and to
// NCCL, which then takes sockets even between ranks that share a GPU. The test itself never uses
// CUDA, because it forks the ranks.
#pragma once

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/base/memory.h"
#include "gpu.h"
#include "heap/nccl_heap.h"
#include "run_in_child.h"
#include "support/processes.h"

namespace switchyard::test {

using Hosts = std::vector<int>;  // by rank
inline const Hosts kTwo{0, 1};
inline const Hosts kTwoTimesTwo{0, 1, 0, 1};
inline const Hosts kThreeAndOne{0, 0, 0, 1};
inline const Hosts kThree{2, 0, 1};

inline std::string text_of(const Hosts& hosts) {
  std::string text;
  for (const int host : hosts) text += std::to_string(host);
  return text;
}

// For NCCL, in the process of a rank: every host is a machine of its own, reached over loopback.
inline void set_host(int host) {
  setenv("NCCL_HOSTID", ("switchyard-" + std::to_string(host)).c_str(), 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("NCCL_NET", "Socket", 1);
  setenv("NCCL_IB_DISABLE", "1", 1);
}

inline ProcessOptions options_of(const Hosts& hosts, std::int64_t timeout_ms = 60'000) {
  ProcessOptions options{.timeout_ms = timeout_ms, .deadline_ms = 280'000, .engine = "auto"};
  options.host_of = [hosts](int rank) { return hosts[static_cast<std::size_t>(rank)]; };
  return options;
}

// Runs `body` on processes that form a group over `hosts`.
inline void run_on_hosts(const Hosts& hosts, const std::function<void(const Group&)>& body) {
  run_processes(
      static_cast<int>(hosts.size()),
      [&](const Group& group) {
        set_host(hosts[static_cast<std::size_t>(group.rank())]);
        const cuda::DeviceGuard guard(gpu_of(group.rank()).index);
        body(group);
      },
      options_of(hosts));
}

class HostsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    REQUIRE_GPU_IN_CHILD();
    const std::string why = run_in_child(nccl_links_obstacle);
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

}  // namespace switchyard::test
