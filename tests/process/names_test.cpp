// SPDX-License-Identifier: Apache-2.0
//
// Groups that meet at names and routes that come late, or that stand for other addresses on each
// machine. Each test has a network of its own, and each rank its own table of names.

#include <arpa/inet.h>
#include <netinet/in.h>

#include <chrono>
#include <cstdlib>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "engine/engine.h"
#include "support/errors.h"
#include "support/namespaces.h"
#include "support/observe.h"
#include "support/processes.h"
#include "support/temp_folder.h"

namespace switchyard {
namespace {

using namespace test;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr const char* kHosts = "/etc/hosts";
constexpr int kPort = 29'500;

std::string at(const std::string& host) { return host + ":" + std::to_string(kPort); }

Group join(int rank, const std::string& host, std::int64_t timeout_ms = 8000) {
  return Group::from(rank, 2, at(host), {.timeout_ms = timeout_ms, .secret = "sesame"});
}

// Two ranks in a network of their own, whose loopback interface is up.
std::string run_two(const std::function<void(const Group& outer)>& body) {
  return run_in_own_network([&] {
    ASSERT_TRUE(bring_up_loopback());
    run_processes(2, body);
  });
}

void expect_group_with_hosts(const std::string& host, const std::string& of_rank_0,
                             const std::string& of_rank_1) {
  const TempFolder folder;
  const std::string why_not = run_two([&](const Group& outer) {
    const std::string file = folder.file("hosts" + std::to_string(outer.rank()));
    write_text(file, outer.rank() == 0 ? of_rank_0 : of_rank_1);
    ASSERT_TRUE(see_instead(kHosts, file)) << std::strerror(errno);
    outer.barrier();
    join(outer.rank(), host).barrier();
    outer.barrier();
  });
  if (!why_not.empty()) GTEST_SKIP() << why_not;
}

TEST(NamesTest, AnyAddressOfTheMachineIsServed) {
  expect_group_with_hosts("dual", "127.0.0.5 dual\n127.0.0.6 dual\n",
                          "127.0.0.6 dual\n127.0.0.5 dual\n");
}

TEST(NamesTest, LocalhostIsBothLoopbacks) {
  expect_group_with_hosts("localhost", "::1 localhost\n127.0.0.1 localhost\n",
                          "127.0.0.1 localhost\n");
  expect_group_with_hosts("localhost", "127.0.0.1 localhost\n", "::1 localhost\n");
}

TEST(NamesTest, MachineThatKnowsItselfByAnotherAddressIsReached) {
  expect_group_with_hosts("node0", "127.0.0.1 localhost\n127.0.1.1 node0\n", "127.0.0.9 node0\n");
  expect_group_with_hosts("node0", "127.0.1.1 node0\n", "::1 node0\n");
}

TEST(NamesTest, AddressOfAServiceInFrontOfRank0IsReached) {
  expect_group_with_hosts("service", "10.1.2.3 service\n", "127.0.0.1 service\n");
  const std::string why_not = run_two([&](const Group& outer) {
    join(outer.rank(), outer.rank() == 0 ? "10.1.2.3" : "127.0.0.1").barrier();
  });
  if (!why_not.empty()) GTEST_SKIP() << why_not;
}

TEST(NamesTest, AddressThatDoesNotAnswerIsNotTheLast) {
  expect_group_with_hosts("node0", "", "10.1.2.3 node0\n127.0.0.4 node0\n::1 node0\n");
}

// What is written there while `late` waits to begin.
void expect_group_when_names_change(int late, const std::string& before, const std::string& after) {
  const TempFolder folder;
  const std::string hosts = folder.write("hosts", before);
  const std::string why_not = run_two([&](const Group& outer) {
    ASSERT_TRUE(see_instead(kHosts, hosts)) << std::strerror(errno);
    outer.barrier();
    if (outer.rank() == late) {
      std::this_thread::sleep_for(400ms);
      write_text(hosts, after);
    }
    join(outer.rank(), "master-0.headless").barrier();
    outer.barrier();
  });
  if (!why_not.empty()) GTEST_SKIP() << why_not;
}

TEST(NamesTest, NameThatComesLaterIsFound) {
  for (const int late : {0, 1}) {
    expect_group_when_names_change(late, "", "127.0.0.1 master-0.headless\n");
  }
}

TEST(NamesTest, NameThatMovesIsFound) {
  expect_group_when_names_change(0, "127.0.0.7 master-0.headless\n",
                                 "127.0.0.1 master-0.headless\n");
}

TEST(NamesTest, NetworkThatComesUpLaterIsFound) {
  for (const int late : {0, 1}) {
    const std::string why_not = run_in_own_network([&] {
      run_processes(2, [&](const Group& outer) {
        if (outer.rank() == late) {
          std::this_thread::sleep_for(400ms);
          EXPECT_TRUE(bring_up_loopback());
        }
        join(outer.rank(), "127.0.0.1").barrier();
        outer.barrier();
      });
    });
    if (!why_not.empty()) GTEST_SKIP() << why_not;
  }
}

TEST(NamesTest, RouteAndNameAreTriedUntilTheTimeout) {
  const std::string why_not = run_two([&](const Group& outer) {
    const std::int64_t start = now_ns();
    if (outer.rank() == 0) {
      expect_error(Errc::kTimeout, "within 1.0 s (Network is unreachable)",
                   [] { join(1, "10.9.8.7", 1000); });
    } else {
      expect_error(Errc::kTimeout, "no sign of rank 0, which serves the store (rank 1 of 2)",
                   [] { join(1, "nobody.invalid", 1000); });
    }
    EXPECT_GT(seconds_since(start), 0.95);
    EXPECT_LT(seconds_since(start), 3.0);
    outer.barrier();
  });
  if (!why_not.empty()) GTEST_SKIP() << why_not;
}

// The process ends, with its exit handlers, while the system still waits for the name server.
[[noreturn]] void ask_and_exit() {
  const std::int64_t start = now_ns();
  expect_error(Errc::kTimeout, "its name server does not answer",
               [] { join(1, "node0.cluster.test", 700); });
  EXPECT_LT(seconds_since(start), 2.5);
  std::exit(::testing::Test::HasFailure() ? 1 : 0);
}

TEST(NamesTest, SilentNameServerEndsWithTheDeadline) {
  const TempFolder folder;
  const std::string servers = folder.write("resolv.conf", "nameserver 127.0.0.53\n");
  const std::string why_not = run_in_own_network([&] {
    ASSERT_TRUE(bring_up_loopback());
    ASSERT_TRUE(see_instead("/etc/resolv.conf", servers)) << std::strerror(errno);
    const Fd silent(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(53);
    address.sin_addr.s_addr = htonl(0x7F000035);
    ASSERT_EQ(bind(silent.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) ask_and_exit();
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  });
  if (!why_not.empty()) GTEST_SKIP() << why_not;
}

// Adds an address to the loopback interface that does not look like one of it.
bool add_address(const char* text) {
  const Fd any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo:1");
  auto& address = reinterpret_cast<sockaddr_in&>(request.ifr_addr);
  address.sin_family = AF_INET;
  return inet_pton(AF_INET, text, &address.sin_addr) == 1 &&
         ioctl(any.get(), SIOCSIFADDR, &request) == 0;
}

// Of sockets that listen, without ports, as the system shows them.
std::set<std::string> listening_hosts() {
  constexpr const char* kListening = "0A";
  std::set<std::string> hosts;
  for (const char* path : {"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"}) {
    std::istringstream lines(read_file(path));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string number, own, peer, state;
      words >> number >> own >> peer >> state;
      if (state == kListening) hosts.insert(own.substr(0, own.find(':')));
    }
  }
  return hosts;
}

// Rank 1 is on another machine, as far as names say. Nothing listens where no rank came from.
TEST(NamesTest, GroupServerListensWhereRanksHaveMet) {
  const TempFolder folder;
  const std::string hosts = folder.write("hosts", "10.0.0.5 node0\n");
  const std::string why_not = run_two([&](const Group& outer) {
    ASSERT_TRUE(see_instead(kHosts, hosts)) << std::strerror(errno);
    EXPECT_TRUE(outer.rank() != 0 || add_address("10.0.0.5"));
    ASSERT_EQ(unshare(CLONE_NEWUTS), 0);
    const std::string name = outer.rank() == 0 ? "node0" : "node1";
    ASSERT_EQ(sethostname(name.c_str(), name.size()), 0);
    ASSERT_TRUE(see_instead("/proc/sys/kernel/random/boot_id", folder.write(name, name + "\n")));
    outer.barrier();
    for (const char* host : {"10.0.0.5", "node0"}) {
      const Group group = join(outer.rank(), host);
      EXPECT_STREQ(group.engine_name(), "mpi");
      const Group reversed = group.split(0, -group.rank());
      reversed.barrier();
      const Deadline deadline = Deadline::after_ms(5000);  // the store of a name still ends
      while (listening_hosts().size() > 1 && !deadline.expired()) std::this_thread::sleep_for(1ms);
      EXPECT_THAT(listening_hosts(), ::testing::ElementsAre("0500000A"));
      outer.barrier();
    }
  });
  if (!why_not.empty()) GTEST_SKIP() << why_not;
}

// The kernel takes the own ends of connections from a range that the store's port is in. A rank
// that looks for the store, where nobody serves yet, must neither meet itself nor keep rank 0 out.
TEST(NamesTest, RanksThatLookForTheStoreDoNotTakeItsPort) {
  const std::string why_not = run_two([](const Group& outer) {
    write_text("/proc/sys/net/ipv4/ip_local_port_range", fmt::format("{} {}", kPort, kPort + 3));
    outer.barrier();
    if (outer.rank() == 0) std::this_thread::sleep_for(600ms);
    join(outer.rank(), "127.0.0.1").barrier();
    outer.barrier();
  });
  if (!why_not.empty()) GTEST_SKIP() << why_not;
}

// As two containers of one name: they share the kernel, and no memory.
TEST(NamesTest, NetworkNamespacesAreHosts) {
  const TempFolder folder;
  const std::string why_not = run_two([&](const Group& outer) {
    if (outer.rank() == 1 && unshare(CLONE_NEWNET) != 0) FAIL() << std::strerror(errno);
    const std::int64_t start = now_ns();
    expect_error(Errc::kSystem, "several network namespaces", [&] {
      Group::from(outer.rank(), 2, folder.file("auto"), {.engine = "auto", .timeout_ms = 8000});
    });
    expect_error(Errc::kNotSupported, "in different network namespaces", [&] {
      Group::from(outer.rank(), 2, folder.file("shm"), {.engine = "shm", .timeout_ms = 8000});
    });
    EXPECT_LT(seconds_since(start), 5.0);
    outer.barrier();
  });
  if (!why_not.empty()) GTEST_SKIP() << why_not;
}

}  // namespace
}  // namespace switchyard
