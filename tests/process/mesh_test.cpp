// SPDX-License-Identifier: Apache-2.0
//
// Mesh set-up against peers that are gone, silent or owned by another user. Which rank is blamed
// must not depend on which rank serves the store.

#include "engine/mesh.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <signal.h>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "core/fail.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using test::error_of;
using test::expect_invalid;
using ::testing::HasSubstr;

// Connects as rank 1 of 2 to rank 0, which listens on `socket`.
void connect_as_rank_1(const std::string& socket) {
  const auto [listener, own_socket] = listen_for_packets();
  const std::vector<Introduction> ranks{Introduction::of_this_process(2, socket),
                                        Introduction::of_this_process(2, own_socket)};
  connect_mesh(1, ranks, listener, Deadline::after_ms(5000), [] {});
}

TEST(MeshTest, PeerThatIsGoneIsNamed) {
  const Error error = error_of([] { connect_as_rank_1("switchyard-nobody"); });
  EXPECT_EQ(error.code(), Errc::kPeerLost);
  EXPECT_STREQ(error.what(),
               "group: rank 0 was lost (nobody listens on its socket) while rank 1 waited in "
               "set-up");
}

TEST(MeshTest, PeerOfTheSameUserIsConnected) {
  const auto [listener, socket] = listen_for_packets();
  connect_as_rank_1(socket);
  EXPECT_TRUE(accept_one(listener, Deadline::after_ms(5000)).has_value());
}

// A socket of another user, made by a process that has given up its privileges.
class StrangersSocket {
 public:
  StrangersSocket() {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) serve(ends[1]);
    close(ends[1]);
    char bytes[64];
    for (ssize_t size = 0; (size = read(ends[0], bytes, sizeof(bytes))) > 0;) {
      name_.append(bytes, static_cast<std::size_t>(size));
      if (name_.back() == '\n') break;
    }
    if (!name_.empty()) name_.pop_back();
    close(ends[0]);
  }
  ~StrangersSocket() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  const std::string& name() const { return name_; }

 private:
  [[noreturn]] static void serve(int report) {
    constexpr uid_t kNobody = 65534;
    if (setuid(kNobody) != 0) _exit(1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto [listener, name] = listen_for_packets();
    const std::string line = name + "\n";
    if (write(report, line.data(), line.size()) < 0) _exit(1);
    for (;;) pause();
  }

  pid_t pid_ = -1;
  std::string name_;
};

TEST(MeshTest, NothingIsSentToAnotherUsersSocket) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to make a process of another user";
  const StrangersSocket stranger;
  ASSERT_FALSE(stranger.name().empty());
  expect_invalid("the socket of rank 0 is of user 65534, but rank 1 is of user 0",
                 [&] { connect_as_rank_1(stranger.name()); });
}

TEST(MeshTest, ErrorsWithAPeerNameThatPeer) {
  const auto error_with = [](Errc code) {
    return error_of([&] {
      with_peer(2, 5, [&] { fail(code, "socket: the other end closed the connection"); });
    });
  };
  const Error lost = error_with(Errc::kPeerLost);
  EXPECT_EQ(lost.code(), Errc::kPeerLost);
  EXPECT_STREQ(lost.what(),
               "group: rank 5 was lost (socket: the other end closed the connection) while rank 2 "
               "waited in set-up");
  const Error late = error_with(Errc::kTimeout);
  EXPECT_EQ(late.code(), Errc::kTimeout);
  EXPECT_THAT(late.what(), HasSubstr("group: rank 5 does not answer (socket: "));
  EXPECT_STREQ(error_with(Errc::kSystem).what(), "socket: the other end closed the connection");
  EXPECT_EQ(with_peer(2, 5, [] { return 7; }), 7);
}

}  // namespace
}  // namespace switchyard
