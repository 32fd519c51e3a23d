// SPDX-License-Identifier: Apache-2.0
//
// Rank 0 serves the store and stops during the set-up: the others end within the timeout and less
// than a second, though what they still want to say there is never answered.

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/clock.h"
#include "engine/mesh.h"
#include "support/ranks.h"
#include "transport/socket_store.h"
#include "transport/store_server.h"

namespace switchyard {
namespace {

using test::error_of;
using ::testing::HasSubstr;

constexpr std::int64_t kTimeoutMs = 1000;
constexpr std::int64_t kSlackMs = 900;

/// A process that serves the store at `name`, does `work` there and stops.
class StoppingServer {
 public:
  StoppingServer(const std::string& name, const std::function<void(Store&)>& work) : pid_(fork()) {
    if (pid_ != 0) return;
    const Address address = Address::parse(name);
    const auto server = StoreServer::start(address, "");
    SocketStore store(address, "", kTimeoutMs);
    work(store);
    raise(SIGSTOP);
    _exit(0);
  }
  StoppingServer(const StoppingServer&) = delete;
  StoppingServer& operator=(const StoppingServer&) = delete;
  ~StoppingServer() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
};

void wait_for_rank_1(Store& store) {
  (void)store.get("group/0/join/1", Deadline::after_ms(10 * kTimeoutMs));
}

void expect_timeout_within_a_second(const std::string& name, const char* phrase) {
  const std::int64_t start = now_ns();
  const Error error =
      error_of([&] { Group::from(1, 2, name, {.engine = "shm", .timeout_ms = kTimeoutMs}); });
  EXPECT_LT((now_ns() - start) / 1'000'000, kTimeoutMs + kSlackMs);
  EXPECT_EQ(error.code(), Errc::kTimeout);
  EXPECT_THAT(error.what(), HasSubstr(phrase));
}

TEST(SilentStoreTest, StopsBeforeRank0IntroducesItself) {
  const std::string name = "unix:@switchyard-silent-" + std::to_string(getpid());
  const StoppingServer server(name, wait_for_rank_1);
  expect_timeout_within_a_second(name, "the store of this group does not answer");
}

TEST(SilentStoreTest, StopsBeforeItGivesOutTheControlBlock) {
  const std::string name = "unix:@switchyard-silent-" + std::to_string(getpid());
  const StoppingServer server(name, [](Store& store) {
    const auto [listener, socket] = listen_for_packets();
    store.set("group/0/join/0", Introduction::of_this_process(2, socket).text());
    wait_for_rank_1(store);
    const auto link = accept_one(listener, Deadline::after_ms(10 * kTimeoutMs));
    raise(SIGSTOP);  // with the socket open
  });
  expect_timeout_within_a_second(name, "no control block from rank 0 within 1.0 s");
}

}  // namespace
}  // namespace switchyard
