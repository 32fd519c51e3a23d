// SPDX-License-Identifier: Apache-2.0
//
// `switchyard check` as a user sees it, and proof that it can fail: SWITCHYARD_WRONG_CHECK is the
// same verb with some cases whose expected values are wrong.

#include "check.h"

#include <cstdlib>
#include <sstream>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "check_report.h"
#include "check_run.h"
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

TEST(CheckTest, RanksPerHostAreThoseOfTheCases) {
  const CommandResult result = check(
      SWITCHYARD_CLI,
      {"--ranks-per-host", "3,1", "--filter", "exchange/local-hosts/*/compact/*", "--json", "-"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  const nlohmann::json json = nlohmann::json::parse(result.output);
  EXPECT_GE(json["cases"].size(), 4u);
  for (const auto& one : json["cases"]) {
    EXPECT_THAT(one["name"].get<std::string>(), HasSubstr("local-hosts/P4/")) << one;
    EXPECT_EQ(one["bit_equal"], true) << one;
  }
  const CommandResult none = check(SWITCHYARD_CLI, {"--ranks-per-host", "3,1", "--engine", "shm"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.error, HasSubstr("leave no case of local-hosts"));
}

// Every case of a machine with GPUs, none equal in every bit, so that cells are at their widest.
TEST(CheckTest, TablesFitAHundredColumns) {
  cli::CheckReport report{{}, conformance::all_cases(), {}};
  for (const conformance::CheckCase& test : report.cases) {
    cli::CheckResult result;
    result.is_done = true;
    result.agreement.is_exact = false;
    result.agreement.max_error = 1.25e-3;
    result.agreement.bound = 6.25e-2;
    result.ns = 1'234'000'000;
    result.agreement.skipped = test.name.size() % 7 == 0 ? "no such thing" : "";
    report.results.push_back(result);
  }
  std::istringstream lines(cli::to_text(report));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
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

TEST(CheckTest, WithoutAGpuItSaysSoBeforeAnythingRuns) {
  // Hides any GPUs from the ranks and the command, which inherit the variable.
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  for (const char* device : {"cuda", "all"}) {
    const CommandResult result = check(SWITCHYARD_CLI, {"--device", device, "--filter", "tables"});
    const bool has_cases = std::string(device) == "all";
    EXPECT_EQ(result.exit_code, has_cases ? 3 : 2);
    EXPECT_EQ(result.output, "");
    EXPECT_THAT(result.error, HasSubstr(has_cases ? "check: --device all, but CUDA cannot be used: "
                                                  : "--device cuda"));
  }
  const CommandResult result = check(SWITCHYARD_CLI, {"--device", "cuda", "--quick"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.error, HasSubstr("switchyard: not_available: check: --device cuda, but CUDA "
                                      "cannot be used: "));
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(CheckTest, CasesOfGpusAreListedWithoutOne) {
  const CommandResult result = check(SWITCHYARD_CLI, {"--list", "--device", "cuda"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("\nexchange/cuda/local/P3/batched/"));
  EXPECT_THAT(result.output, HasSubstr("\nexchange/cuda/shm/P2/compact/"));
  EXPECT_THAT(result.output, HasSubstr("quantize/cuda/nvfp4/"));
  EXPECT_THAT(result.output, Not(HasSubstr("tables/")));
  EXPECT_EQ(check(SWITCHYARD_CLI, {"--device", "tpu"}).exit_code, 2);
}

TEST(CheckTest, AtMostSevenRanksShareAGpu) {
  std::vector<conformance::CheckCase> cases(3);
  for (conformance::CheckCase& test : cases) {
    test.device = "cuda";
    test.engine = "local";
    test.num_ranks = 8;
  }
  cases[1].num_ranks = 7;
  cases[2].device = "cpu";
  std::vector<conformance::CheckCase> over_two = cases;
  cli::skip_crowded(cases, 1);
  EXPECT_EQ(cases[0].skipped, "8 ranks on 1 GPU, at most 7 share one");
  EXPECT_EQ(cases[1].skipped + cases[2].skipped, "");
  cli::skip_crowded(over_two, 2);
  EXPECT_EQ(over_two[0].skipped, "");
}

TEST(CheckTest, WhatIsSkippedOrLeftOutIsCountedWithItsReason) {
  const std::vector<std::string> some{"--filter", "sums/*/part*", "--timeout", "20000"};
  std::vector<std::string> arguments = some;
  const CommandResult text = check(SWITCHYARD_WRONG_CHECK, arguments);
  EXPECT_EQ(text.exit_code, 0) << text.output << text.error;
  EXPECT_THAT(text.output, HasSubstr("skipped\n     3  this machine has no sums\n"));
  EXPECT_THAT(text.output, HasSubstr("left out of cases that agree\n     3  the last sum\n"));
  EXPECT_THAT(text.output, HasSubstr("1 bit-equal, 0 ms, 1 skipped"));
  EXPECT_THAT(text.output, HasSubstr("all 3 cases agree with the oracle: 3 bit-equal; 3 more "
                                     "skipped"));
  arguments.insert(arguments.end(), {"--json", "-"});
  const nlohmann::json json =
      nlohmann::json::parse(check(SWITCHYARD_WRONG_CHECK, arguments).output);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["skipped"], 3);
  ASSERT_EQ(json["cases"].size(), 6u);
  for (const auto& one : json["cases"]) {
    const bool is_skipped = one["name"].get<std::string>().ends_with("none");
    EXPECT_EQ(one.contains("passed"), !is_skipped) << one;
    EXPECT_EQ(one.value("skipped", ""), is_skipped ? "this machine has no sums" : "");
    EXPECT_EQ(one.contains("left_out"), !is_skipped);
  }
}

TEST(CheckTest, ToSkipEverythingProvesNothing) {
  const CommandResult result = check(SWITCHYARD_WRONG_CHECK, {"--filter", "part_none"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("all 3 cases were skipped: nothing is proven"));
}

TEST(CheckTest, AWrongBitIsExitCodeOneWithTheCommandThatShowsItAgain) {
  for (const char* name : {"sums/none/wrong", "sums/local/wrong", "sums/shm/wrong"}) {
    const CommandResult result =
        check(SWITCHYARD_WRONG_CHECK, {"--filter", name, "--seed", "5", "--timeout", "20000"});
    EXPECT_EQ(result.exit_code, 1) << result.output << result.error;
    EXPECT_THAT(result.output, HasSubstr(std::string("FAILED ") + name));
    EXPECT_THAT(result.output, HasSubstr("sum[0, 0] has the bits 3F800000, expected"));
    EXPECT_THAT(result.output,
                HasSubstr(std::string("switchyard check --filter '") + name + "' --seed 5\n"));
  }
}

// After a failure has ended the ranks, they start again for the remaining cases.
TEST(CheckTest, FailuresDoNotHideOtherCases) {
  const CommandResult result = check(SWITCHYARD_WRONG_CHECK, {"--json", "-", "--timeout", "20000"});
  EXPECT_EQ(result.exit_code, 1);
  const nlohmann::json json = nlohmann::json::parse(result.output);
  EXPECT_EQ(json["ok"], false);
  ASSERT_EQ(json["cases"].size(), 15u);
  for (const auto& one : json["cases"]) {
    if (one.contains("skipped")) continue;
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
