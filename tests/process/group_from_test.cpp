// SPDX-License-Identifier: Apache-2.0
//
// Groups whose rank, size and store the program says: an address, a file, its own functions. The
// outer group of the test only starts the processes and keeps them in step.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <signal.h>
#include <string>
#include <thread>

#include <gmock/gmock.h>

#include "core/clock.h"
#include "engine/engine.h"
#include "support/observe.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "support/temp_folder.h"
#include "transport/file_store.h"
#include "transport/raw_socket.h"
#include "transport/stream_socket.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

std::string fresh_port() {
  static int number = 0;
  return std::to_string(20'000 + (getpid() * 7 + number++) % 20'000);
}

// What an embedder has: here over a file, and it counts.
struct OwnStore {
  explicit OwnStore(const std::string& path) : file(path, 5000) {}
  StoreFunctions functions() {
    return {[this](const std::string& key, const std::string& value) {
              ++num_calls;
              file.set("mine/" + key, value);
            },
            [this](const std::string& key, std::int64_t timeout_ms) {
              ++num_calls;
              EXPECT_LE(timeout_ms, kSliceMs);
              return file.get("mine/" + key, Deadline::after_ms(timeout_ms));
            }};
  }
  FileStore file;
  int num_calls = 0;
};

void use(const Group& group, int rank, int size) {
  EXPECT_EQ(group.rank(), rank);
  EXPECT_EQ(group.size(), size);
  EXPECT_EQ(group.host_rank(), rank);
  EXPECT_EQ(group.host_size(), size);
  const auto window = group.engine().windows().make_window(4096);
  window->base(0)[rank] = std::byte{1};
  group.barrier();
  for (int peer = 0; peer < size; ++peer) EXPECT_EQ(window->base(0)[peer], std::byte{1});
  const Group part = group.split(rank % 2);
  part.barrier();
  EXPECT_EQ(group.error(), std::nullopt);
}

TEST(GroupFromTest, RanksMeetOverAnAddressAgainAndAgain) {
  for (const int size : {1, 2, 3, 7}) {
    const std::string name = "unix:@switchyard-from-" + std::to_string(getpid()) + fresh_port();
    const std::string port = fresh_port();
    run_processes(size, [&](const Group& outer) {
      for (int repeat = 0; repeat < 3; ++repeat) {
        use(Group::from(outer.rank(), size, "127.0.0.1:" + port, {.secret = "sesame"}),
            outer.rank(), size);
        use(Group::from(outer.rank(), size, name), outer.rank(), size);
      }
      outer.barrier();
    });
  }
}

// A service that makes a group after each recovery, each time at another address.
TEST(GroupFromTest, StoresOfFormerGroupsLeaveNothingBehind) {
  run_processes(2, [&](const Group& outer) {
    const std::string prefix = "unix:@switchyard-former-" + std::to_string(getppid()) + "-";
    const int port = 20'000 + getppid() % 10'000;
    int num_files = 0;
    int num_threads = 0;
    for (int i = 0; i < 24; ++i) {
      const std::string store =
          i % 2 == 0 ? prefix + std::to_string(i) : "127.0.0.1:" + std::to_string(port + i);
      Group::from(outer.rank(), 2, store, {.secret = "sesame"}).barrier();
      if (i == 3) num_files = num_open_files();
      if (i == 3) num_threads = num_entries("/proc/self/task");
    }
    const Deadline deadline = Deadline::after_ms(5000);  // the last store still ends
    while (num_open_files() > num_files + 4 && !deadline.expired())
      std::this_thread::sleep_for(1ms);
    EXPECT_LE(num_open_files(), num_files + 4);
    EXPECT_LE(num_entries("/proc/self/task"), num_threads + 1);
    outer.barrier();
  });
}

// Rank 1 comes last, past more connections of strangers than rank 0 may have descriptors.
TEST(GroupFromTest, StrangersThatHoldConnectionsKeepNobodyOut) {
  const std::string port = fresh_port();
  run_processes(2, [&](const Group& outer) {
    const GroupOptions options{.timeout_ms = 10'000, .secret = "sesame"};
    if (outer.rank() == 0) {
      rlimit limit{};
      ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
      limit.rlim_cur = 96;
      ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
      const Group group = Group::from(0, 2, "127.0.0.1:" + port, options);
      outer.barrier();
      EXPECT_TRUE(Fd(open("/dev/null", O_RDONLY | O_CLOEXEC)).has_value());
      use(group, 0, 2);
      return outer.barrier();
    }
    std::vector<Fd> strangers;
    const Address address = Address::parse("tcp://127.0.0.1:" + port);
    const Deadline deadline = Deadline::after_ms(8000);
    while (strangers.size() < 300 && !deadline.expired()) {
      if (auto one = connect_to(address, deadline)) strangers.push_back(*std::move(one));
    }
    const std::int64_t start = now_ns();
    const Group group = Group::from(1, 2, "127.0.0.1:" + port, options);
    EXPECT_LT(seconds_since(start), 5.0);
    outer.barrier();
    use(group, 1, 2);
    outer.barrier();
  });
}

TEST(GroupFromTest, RanksMeetInAFileThatCanBeDeletedAtOnce) {
  for (const int size : {1, 2, 3, 7}) {
    const TempFolder folder;
    const std::string path = folder.file("store");
    run_processes(size, [&](const Group& outer) {
      const Group first = Group::from(outer.rank(), size, path);
      use(Group::from(outer.rank(), size, path), outer.rank(), size);
      outer.barrier();
      std::filesystem::remove(path);
      use(first, outer.rank(), size);
    });
  }
}

TEST(GroupFromTest, FunctionsAreCalledByFromAlone) {
  const TempFolder folder;
  run_processes(3, [&](const Group& outer) {
    OwnStore store(folder.file("store"));
    const Group group = Group::from(outer.rank(), 3, store.functions());
    const int num_calls = store.num_calls;
    EXPECT_GT(num_calls, 0);
    use(group, outer.rank(), 3);
    EXPECT_EQ(store.num_calls, num_calls);
  });
}

TEST(GroupFromTest, GroupsOfSomeRanksDoNotDisturbEachOther) {
  const TempFolder folder;
  run_processes(4, [&](const Group& outer) {
    const int half = outer.rank() / 2;
    use(Group::from(outer.rank() % 2, 2, folder.file(half == 0 ? "low" : "high")), outer.rank() % 2,
        2);
    if (half == 0) use(Group::from(outer.rank(), 2, folder.file("low")), outer.rank(), 2);
    use(Group::from(3 - outer.rank(), 4, folder.file("all")), 3 - outer.rank(), 4);
  });
}

TEST(GroupFromTest, WrongArgumentsAreNamedAtOnce) {
  const auto message = [](int rank, int size, const std::string& store) {
    const Error error = error_of([&] { Group::from(rank, size, store); });
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    return std::string(error.what());
  };
  EXPECT_EQ(message(4, 4, "localhost:1234"),
            "group: rank is 4, but size is 4; must be from 0 to 3");
  EXPECT_THAT(message(-1, 4, "localhost:1234"), HasSubstr("rank is -1, but size is 4"));
  EXPECT_THAT(message(0, 0, "localhost:1234"), HasSubstr("size is 0, must be from 1 to 4096"));
  for (const char* store : {"", "localhost", "localhost:", ":5", "localhost:0", "a:b", "unix:@"}) {
    EXPECT_THAT(message(0, 2, store),
                HasSubstr("must be host:port, unix:@name or a path with a slash"))
        << store;
  }
  EXPECT_THAT(message(0, 2, "localhost:1234"), HasSubstr("needs a secret"));
  EXPECT_THAT(error_of([] { Group::from(0, 2, StoreFunctions{}); }).what(),
              HasSubstr("has no set"));
  EXPECT_THAT(error_of([] { Group::from(0, 2, "/proc/none/store"); }).what(), HasSubstr("open: "));
}

TEST(GroupFromTest, TwoProcessesWithOneNumberAreNamed) {
  const TempFolder folder;
  run_processes(3, [&](const Group& outer) {
    const int rank = outer.rank() == 2 ? 1 : outer.rank();  // 0, 1, 1 of 3
    const std::int64_t start = now_ns();
    const Error error =
        error_of([&] { Group::from(rank, 3, folder.file("store"), {.timeout_ms = 20'000}); });
    EXPECT_LT(now_ns() - start, 10'000'000'000) << "found at the deadline only";
    EXPECT_EQ(error.code(), Errc::kInvalidArgument) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("two processes say that they are rank 1"));
    EXPECT_THAT(error.what(), HasSubstr("(rank " + std::to_string(rank) + " of 3)"));
    outer.barrier();
  });
}

// Both find the place empty, and the second writes over what the first has written.
TEST(GroupFromTest, TwoProcessesThatTakeANumberTogetherAreNamed) {
  const TempFolder folder;
  run_processes(3, [&](const Group& outer) {
    const int rank = outer.rank() == 2 ? 1 : outer.rank();
    OwnStore store(folder.file("store"));
    StoreFunctions late = store.functions();
    late.set = [&, set = late.set](const std::string& key, const std::string& value) {
      std::this_thread::sleep_for(outer.rank() * 100ms);
      set(key, value);
    };
    expect_invalid("two processes say that they are rank 1",
                   [&] { Group::from(rank, 3, late, {.timeout_ms = 20'000}); });
    outer.barrier();
  });
}

TEST(GroupFromTest, SizesThatDisagreeAreNamedOnBothRanks) {
  const TempFolder folder;
  run_processes(2, [&](const Group& outer) {
    expect_invalid("rank 0 says that there are 2 ranks, but rank 1 says 3", [&] {
      Group::from(outer.rank(), 2 + outer.rank(), folder.file("store"), {.timeout_ms = 5000});
    });
    outer.barrier();
  });
}

TEST(GroupFromTest, FileOfAnEarlierJobIsNamed) {
  const TempFolder folder;
  for (int job = 0; job < 2; ++job) {
    run_processes(2, [&](const Group& outer) {
      const auto join = [&] {
        Group::from(outer.rank(), 2, folder.file("store"), {.timeout_ms = 2000});
      };
      if (job == 0) return join();
      expect_invalid("or the store is of an earlier group", join);
      outer.barrier();
    });
  }
}

TEST(GroupFromTest, RanksThatNeverComeAreNamedAndARetryWorks) {
  const TempFolder folder;
  const std::string port = fresh_port();
  run_processes(3, [&](const Group& outer) {
    const GroupOptions hasty{.timeout_ms = 400, .secret = "sesame"};
    for (const std::string& store : {folder.file("store"), "localhost:" + port}) {
      if (outer.rank() != 2) {
        expect_error(Errc::kTimeout, "no sign of rank 2 within 0.4 s",
                     [&] { Group::from(outer.rank(), 3, store, hasty); });
      }
      outer.barrier();
      use(Group::from(outer.rank(), 3, store, {.secret = "sesame"}), outer.rank(), 3);
    }
  });
}

TEST(GroupFromTest, AddressThatIsInUseIsNamed) {
  const std::vector<Fd> listeners = listen_on(Address::parse("tcp://127.0.0.1:0"));
  const Address taken = bound_address(listeners.at(0), Address::parse("tcp://127.0.0.1:0"));
  expect_error(Errc::kSystem, taken.text() + " is in use, and not by a store",
               [&] { Group::from(0, 2, taken.text(), {.timeout_ms = 300, .secret = "sesame"}); });
}

// Nobody listens there, but a connection of some program has the port for its own end.
class ConnectionFromPort {
 public:
  ConnectionFromPort() : listeners_(listen_on(kAny)), socket_(open_socket(AF_INET, SOCK_STREAM)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    address.sin_port =
        htons(static_cast<std::uint16_t>(bound_address(listeners_.at(0), kAny).port));
    connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
    EXPECT_TRUE(wait_for(socket_, POLLOUT, Deadline::after_ms(5000)));
    text_ = "tcp://127.0.0.1:" + std::to_string(RawAddress::of_own_end(socket_).port());
  }
  const std::string& text() const { return text_; }
  // Without the state in which a port rests after a connection.
  void end() {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    socket_.reset();
  }

 private:
  inline static const Address kAny = Address::parse("tcp://127.0.0.1:0");
  std::vector<Fd> listeners_;
  Fd socket_;
  std::string text_;
};

TEST(GroupFromTest, PortOfAConnectionIsWaitedForAndNamed) {
  ConnectionFromPort connection;
  expect_error(Errc::kSystem, connection.text() + " is in use, though nobody listens there", [&] {
    Group::from(0, 2, connection.text(), {.timeout_ms = 300, .secret = "sesame"});
  });
  test::RankProcesses ranks(2, [&](const Group& outer) {
    connection.end();  // this process's share of it
    use(Group::from(outer.rank(), 2, connection.text(), {.secret = "sesame"}), outer.rank(), 2);
    outer.barrier();
  });
  std::this_thread::sleep_for(300ms);
  connection.end();
  for (const test::RankOutcome& outcome : ranks.wait()) {
    EXPECT_EQ(outcome.exit_code, 0) << test::what(outcome);
  }
}

// What listens there says nothing, or closes each connection without a word, as torch's store does,
// or greets in its own way. None costs the timeout.
TEST(GroupFromTest, AddressThatSomethingElseServesIsNamedLongBeforeTheTimeout) {
  for (const char* greeting : {"silent", "", "SSH-2.0-OpenSSH_9.2\r\n"}) {
    SCOPED_TRACE(greeting);
    const Address any = Address::parse("tcp://127.0.0.1:0");
    const std::vector<Fd> listeners = listen_on(any);
    const Address taken = bound_address(listeners.at(0), any);
    std::atomic<bool> is_over = false;
    std::thread other([&, is_silent = std::string(greeting) == "silent"] {
      std::vector<Fd> held;
      while (!is_over) {
        Fd client(accept(listeners.at(0).get(), nullptr, nullptr));
        if (client.has_value() && !is_silent) {
          send(client.get(), greeting, std::strlen(greeting), MSG_NOSIGNAL);
        } else if (client.has_value()) {
          held.push_back(std::move(client));
        }
        poll(nullptr, 0, 1);
      }
    });
    const std::int64_t start = now_ns();
    const GroupOptions options{.timeout_ms = 30'000, .secret = "sesame"};
    expect_error(
        Errc::kSystem,
        std::strlen(greeting) > 6 ? "does not speak the protocol" : "is in use, and not by a store",
        [&] { Group::from(0, 2, taken.text(), options); });
    EXPECT_LT(now_ns() - start, 8'000'000'000);
    is_over = true;
    other.join();
  }
}

TEST(GroupFromTest, StoreThatNeverAnswersEndsWithTheDeadline) {
  const std::int64_t start = now_ns();
  const StoreFunctions silent{
      [](const std::string&, const std::string&) {},
      [](const std::string&, std::int64_t) { return std::optional<std::string>(); }};
  expect_error(Errc::kTimeout, "the store of this group does not answer (rank 1 of 3",
               [&] { Group::from(1, 3, silent, {.timeout_ms = 300}); });
  expect_error(Errc::kTimeout, "no sign of rank 0, which serves the store (rank 1 of 2)",
               [] { Group::from(1, 2, "127.0.0.1:9", {.timeout_ms = 300, .secret = "sesame"}); });
  EXPECT_LT(now_ns() - start, 2'000'000'000);
}

// Rank 2 dies at its n-th call of the store: before, while and after it introduces itself.
TEST(GroupFromTest, RankThatIsKilledMeanwhileIsNamed) {
  for (int last_call = 1; last_call <= 6; ++last_call) {
    const TempFolder folder;
    test::RankProcesses ranks(3, [&](const Group& outer) {
      OwnStore store(folder.file("store"));
      StoreFunctions functions = store.functions();
      if (outer.rank() == 2) {
        functions.get = [&, get = functions.get](const std::string& key, std::int64_t ms) {
          if (store.num_calls + 1 >= last_call) raise(SIGKILL);
          return get(key, ms);
        };
      }
      const Group group = Group::from(outer.rank(), 3, functions, {.timeout_ms = 700});
      group.barrier();  // it may have died just after
    });
    const auto outcomes = ranks.wait();
    EXPECT_EQ(outcomes[2].signal, SIGKILL) << last_call;
    for (const std::size_t rank : {0u, 1u}) {
      ASSERT_TRUE(outcomes[rank].error) << last_call << outcomes[rank].output;
      EXPECT_THAT(outcomes[rank].error->code(), AnyOf(Errc::kTimeout, Errc::kPeerLost));
      EXPECT_THAT(outcomes[rank].error->what(), HasSubstr("rank 2")) << last_call;
    }
  }
}

// Rank 0 cannot say where its server is: the others have its words, not only that it gave up.
TEST(GroupFromTest, WhyRank0GaveUpIsToldToTheOthers) {
  const TempFolder folder;
  test::ProcessOptions two_hosts;
  two_hosts.engine = "auto";
  two_hosts.host_of = [](int rank) { return rank % 2; };
  test::run_processes(
      3,
      [&](const Group& outer) {
        OwnStore store(folder.file("store"));
        StoreFunctions functions;
        functions.get = [&](const std::string& key, std::int64_t ms) {
          return store.file.get("mine/" + key, Deadline::after_ms(ms));
        };
        functions.set = [set = store.functions().set](const std::string& key,
                                                      const std::string& value) {
          if (key.find("/server/") != key.npos) throw std::runtime_error("no space is left");
          set(key, value);
        };
        const std::int64_t start = now_ns();
        expect_error(Errc::kSystem,
                     outer.rank() == 0 ? "threw: no space is left"
                                       : "group: rank 0 gave up: store: the caller's set(",
                     [&] {
                       Group::from(outer.rank(), 3, functions,
                                   {.engine = "auto", .timeout_ms = 10'000});
                     });
        EXPECT_LT(now_ns() - start, 3'000'000'000);
        outer.barrier();
      },
      two_hosts);
}

// For longer than anybody asks for what is there.
TEST(GroupFromTest, SlowStoreIsNoRankThatGaveUp) {
  const TempFolder folder;
  test::ProcessOptions two_hosts;
  two_hosts.engine = "auto";
  two_hosts.host_of = [](int rank) { return rank; };
  test::run_processes(
      2,
      [&](const Group& outer) {
        OwnStore store(folder.file("store"));
        StoreFunctions functions{store.functions().set, nullptr};
        std::int64_t slow_until_ns = 0;
        functions.get = [&](const std::string& key, std::int64_t ms) -> std::optional<std::string> {
          const bool is_of_rank_0 = key.find("/join/0") != key.npos;
          if (is_of_rank_0 && now_ns() < slow_until_ns) return std::nullopt;
          auto value = store.file.get("mine/" + key, Deadline::after_ms(ms));
          if (is_of_rank_0 && value && slow_until_ns == 0) slow_until_ns = now_ns() + 1'500'000'000;
          return value;
        };
        const Group group =
            Group::from(outer.rank(), 2, functions, {.engine = "auto", .timeout_ms = 10'000});
        group.barrier();
        EXPECT_TRUE(outer.rank() == 0 || slow_until_ns > 0);
      },
      two_hosts);
}

TEST(GroupFromTest, NothingIsLeftBehind) {
  const TempFolder folder;
  test::RankProcesses ranks(2, [&](const Group& outer) {
    const Group group = Group::from(outer.rank(), 2, folder.file("store"));
    const Group part = group.split(0);
    outer.barrier();
    raise(SIGKILL);
  });
  (void)ranks.wait();
  EXPECT_THAT(read_file("/proc/net/unix"),
              ::testing::Not(HasSubstr("@switchyard-test-" + std::to_string(getpid()))));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);  // the file
}

}  // namespace
}  // namespace switchyard
