// SPDX-License-Identifier: Apache-2.0
//
// Two hosts as the kernel makes them: network namespaces with names of their own, joined by a cable
// (veth) alone. Nothing tells the library that they are on one machine, and abstract Unix sockets
// do not reach from one to the other. mpirun starts two ranks in each.

#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "support/command.h"
#include "support/temp_folder.h"

namespace switchyard {
namespace {

using namespace test;

// 0, or the errno with which this user may not have namespaces.
int namespace_errno() {
  const pid_t child = fork();
  if (child == 0) _exit(unshare(CLONE_NEWNET | CLONE_NEWUTS) == 0 ? 0 : errno);
  int status = 0;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

// A namespace lives as long as the process in it.
class Host {
 public:
  Host() : sleeper_({"unshare", "--net", "--uts", "sleep", "300"}) {
    for (int i = 0; i < 1000 && !is_apart(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  // Else what is done there would be done to this machine.
  bool is_apart() const {
    const auto differs = [&](const std::string& kind) {
      std::error_code error;
      const auto own = std::filesystem::read_symlink("/proc/self/ns/" + kind, error);
      const auto other = std::filesystem::read_symlink("/proc/" + pid() + "/ns/" + kind, error);
      return !error && own != other;
    };
    return differs("net") && differs("uts");
  }
  std::string pid() const { return std::to_string(sleeper_.pid()); }
  // What comes before a command that is to run there.
  std::string enter() const { return "nsenter --target " + pid() + " --net --uts "; }

 private:
  Command sleeper_;
};

class NamespacesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* program : {"mpirun", "ip", "unshare", "nsenter", "hostname"}) {
      if (run_command({"sh", "-c", std::string("command -v ") + program}).exit_code != 0) {
        GTEST_SKIP() << "no " << program << " here";
      }
    }
    if (const int error = namespace_errno(); error != 0) {
      GTEST_SKIP() << "unshare: errno " << error << ", " << std::strerror(error);
    }
    hosts_[0] = std::make_unique<Host>();
    hosts_[1] = std::make_unique<Host>();
    ASSERT_TRUE(hosts_[0]->is_apart() && hosts_[1]->is_apart());
    const CommandResult made = join();
    if (made.exit_code == kNoVeth) GTEST_SKIP() << "no veth between namespaces: " << made.error;
    ASSERT_EQ(made.exit_code, 0) << made.error;
    // mpirun calls it as "agent HOST COMMAND...", for the other host alone.
    folder_.write("agent", "#!/bin/sh\nshift\nexec " + hosts_[1]->enter() + "sh -c \"$*\"\n");
    ASSERT_EQ(chmod(folder_.file("agent").c_str(), S_IRWXU), 0);
    setenv("SWITCHYARD_TIMEOUT_MS", "20000", 1);
  }

  // The command, as 4 ranks on the two hosts.
  CommandResult run_on_both(const std::string& arguments) const {
    return run_command({"sh", "-c",
                        "exec " + hosts_[0]->enter() +
                            "mpirun --allow-run-as-root --oversubscribe --mca plm_rsh_agent " +
                            folder_.file("agent") +
                            " --host 192.0.2.1:2,192.0.2.2:2 -n 4 -x SWITCHYARD_TIMEOUT_MS "
                            "" SWITCHYARD_CLI " " +
                            arguments},
                       100);
  }
  const TempFolder& folder() const { return folder_; }

 private:
  static constexpr int kNoVeth = 77;

  CommandResult join() const {
    const std::string a = hosts_[0]->enter();
    const std::string b = hosts_[1]->enter();
    return run_command(
        {"sh", "-ec",
         a + "hostname switchyard-a\n" + b + "hostname switchyard-b\n" + a +
             "ip link add sy0 type veth peer name sy0 netns " + hosts_[1]->pid() + " || exit " +
             std::to_string(kNoVeth) + "\n" + a + "ip address add 192.0.2.1/24 dev sy0\n" + b +
             "ip address add 192.0.2.2/24 dev sy0\n" + a + "ip link set sy0 up\n" + b +
             "ip link set sy0 up\n" + a + "ip link set lo up\n" + b + "ip link set lo up\n"});
  }

  TempFolder folder_;
  std::unique_ptr<Host> hosts_[2];
};

TEST_F(NamespacesTest, LayerGivesTheBytesOfOneHost) {
  const std::string layer =
      "run --model " SWITCHYARD_DATA_DIR "/tiny-moe --tokens 24 --json - --output ";
  const CommandResult far = run_on_both(layer + folder().file("far"));
  ASSERT_EQ(far.exit_code, 0) << far.error;
  const auto json = nlohmann::json::parse(far.output);
  EXPECT_EQ(json["engine"], "mpi");
  EXPECT_EQ(json["hosts"], 2);
  const CommandResult near =
      run_command({"sh", "-c", SWITCHYARD_CLI " " + layer + folder().file("near") + " --ranks 4"});
  ASSERT_EQ(near.exit_code, 0) << near.error;
  EXPECT_EQ(run_command({"cmp", folder().file("far"), folder().file("near")}).exit_code, 0);
}

TEST_F(NamespacesTest, ExchangeEqualsTheOracle) {
  const CommandResult result = run_on_both("check --quick --filter '*per_host*' --json -");
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const auto json = nlohmann::json::parse(result.output);
  EXPECT_EQ(json["ok"], true);
  EXPECT_GE(json["cases"].size(), 5u);
}

}  // namespace
}  // namespace switchyard
