// SPDX-License-Identifier: Apache-2.0
//
// `switchyard check` as a user sees it, and that it can fail: SWITCHYARD_WRONG_CHECK is the same
// verb with some cases that expect something wrong.

#include "check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/command.h"

namespace switchyard::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

CommandResult check(const char* program, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {program, "check"});
  return run_command(arguments, 100 * SWITCHYARD_SLOWDOWN);
}

TEST(CheckTest, FilterTakesTextAndPatterns) {
  EXPECT_TRUE(cli::matches("", "exchange/shm/P3"));
  EXPECT_TRUE(cli::matches("shm/P3", "exchange/shm/P3/compact"));
  EXPECT_FALSE(cli::matches("shm/P3", "exchange/local/P3"));
  EXPECT_TRUE(cli::matches("exchange/*/P3/*", "exchange/shm/P3/compact"));
  EXPECT_TRUE(cli::matches("*compact", "exchange/shm/P3/compact"));
  EXPECT_FALSE(cli::matches("shm*", "exchange/shm/P3/compact"));
  EXPECT_FALSE(cli::matches("*/P3", "exchange/shm/P3/compact"));
  EXPECT_TRUE(cli::matches("*a*b*", "xaab"));
}

TEST(CheckTest, ListNamesCasesAndRunsNone) {
  const CommandResult result = check(SWITCHYARD_CLI, {"--list", "--filter", "placement/linear/*"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, ::testing::StartsWith("placement/linear/E5_P1\n"));
  EXPECT_THAT(result.output, Not(HasSubstr("exchange")));
}

TEST(CheckTest, CasesOfEveryEngineAgree) {
  const CommandResult result =
      check(SWITCHYARD_CLI, {"--filter", "exchange/*/P2/compact/*", "--json", "-", "--seed", "3"});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.error;
  const nlohmann::json json = nlohmann::json::parse(result.output);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["seed"], 3);
  EXPECT_GE(json["cases"].size(), 4u);
  int num_processes = 0;
  for (const auto& one : json["cases"]) {
    EXPECT_EQ(one["bit_equal"], true) << one;
    const auto name = one["name"].get<std::string>();
    if (name.find("/shm/") != name.npos) ++num_processes;
  }
  EXPECT_GE(num_processes, 2);
}

TEST(CheckTest, AMissingFolderIsSaidBeforeAnythingRuns) {
  const CommandResult result = check(SWITCHYARD_CLI, {"--json", "/no/such/file"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.error, HasSubstr("check: --json is /no/such/file, but there is no folder"));
}

TEST(CheckTest, NothingLeftByTheFilterIsAUsageError) {
  const CommandResult result = check(SWITCHYARD_CLI, {"--filter", "no such case"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.error, HasSubstr("no case is left by --filter \"no such case\""));
  const CommandResult seed = check(SWITCHYARD_CLI, {"--seed", "-1"});
  EXPECT_EQ(seed.exit_code, 2);
  EXPECT_THAT(seed.error + seed.output, HasSubstr("--seed"));
}

TEST(CheckTest, AWrongBitIsExitCodeOneWithTheCommandThatShowsItAgain) {
  for (const char* name : {"sums/none/wrong", "sums/local/wrong", "sums/shm/wrong"}) {
    const CommandResult result =
        check(SWITCHYARD_WRONG_CHECK, {"--filter", name, "--seed", "5", "--timeout", "20000"});
    EXPECT_EQ(result.exit_code, 1) << result.output << result.error;
    EXPECT_THAT(result.output, HasSubstr(std::string("FAILED ") + name));
    EXPECT_THAT(result.output, HasSubstr("sum[0, 0] has the bits 3F800000, want"));
    EXPECT_THAT(result.output,
                HasSubstr(std::string("switchyard check --filter '") + name + "' --seed 5\n"));
  }
}

// What a failure ends is started again for the cases after it.
TEST(CheckTest, FailuresDoNotHideOtherCases) {
  const CommandResult result = check(SWITCHYARD_WRONG_CHECK, {"--json", "-", "--timeout", "20000"});
  EXPECT_EQ(result.exit_code, 1);
  const nlohmann::json json = nlohmann::json::parse(result.output);
  EXPECT_EQ(json["ok"], false);
  ASSERT_EQ(json["cases"].size(), 9u);
  for (const auto& one : json["cases"]) {
    const auto name = one["name"].get<std::string>();
    const bool is_bad = name.ends_with("wrong") || name.ends_with("dies");
    EXPECT_EQ(one["passed"], !is_bad) << one;
  }
  EXPECT_THAT(json["cases"][7]["failure"], HasSubstr("code 7"));
}

TEST(CheckTest, BoundsAreReported) {
  const CommandResult result =
      check(SWITCHYARD_WRONG_CHECK, {"--filter", "right", "--engine", "local", "--seed", "9"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("1 err 0.25/0.5"));
  EXPECT_THAT(result.output, HasSubstr("all 2 cases agree with the oracle: 0 bit-equal, 2 within "
                                       "their bounds (50 % of one at most)"));
}

}  // namespace
}  // namespace switchyard::test
