// SPDX-License-Identifier: Apache-2.0
//
// `switchyard plan` as a user runs it: what it answers, how soon, and what it refuses.

#include "plan.h"

#include <sys/resource.h>

#include <algorithm>

#include "plan_command.h"
#include "support/errors.h"
#include "support/temp_folder.h"

namespace switchyard::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(PlanTest, HostsMayBeGivenWithDots) {
  EXPECT_THAT(cli::parse_hosts("1,2,4,...,32", 8), ElementsAre(1, 2, 4, 8, 16, 32));
  EXPECT_THAT(cli::parse_hosts("1,3,...,20,21", 8), ElementsAre(1, 3, 9, 20, 21));
  EXPECT_THAT(cli::parse_hosts("7", 8), ElementsAre(7));
  for (const char* text : {"", "2,1", "1,1", "1,...,8", "1,2,...", "...", "0", "-1", "1,x", "1,,2",
                           "2,3,...,8", "513", "1000000000", "99999999999999999999"}) {
    expect_invalid("must be ascending numbers", [&] { (void)cli::parse_hosts(text, 8); });
  }
}

TEST(PlanTest, NonsenseIsOneSentence) {
  expect_refused({"--nic", "0"}, "--nic is 0, must be above 0");
  expect_refused({"--nvlink", "-3"}, "--nvlink is -3, must be above 0");
  expect_refused({"--nic", "nan"}, "--nic is nan, must be above 0");
  expect_refused({"--nvlink", "inf"}, "--nvlink is inf, must be above 0");
  expect_refused({"--memory", "nan"}, "--memory is nan, must be from 0");
  expect_refused({"--memory", "-1"}, "--memory is -1, must be from 0");
  expect_refused({"--memory", "inf"}, "--memory is inf, must be from 0");
  expect_refused({"--tflops", "0"}, "--tflops is 0, must be above 0");
  expect_refused({"--memory-bandwidth", "0"}, "--memory-bandwidth is 0");
  expect_refused({"--hosts", "1000000000"}, "--hosts is \"1000000000\", must be ascending numbers");
  expect_refused({"--hosts", "64", "--redundant", "0"},
                 "256 experts on 512 ranks, must be at least one for each; add copies with "
                 "--redundant 256");
  expect_refused({"--tokens", "0"}, "--tokens");
  expect_refused({"--tokens", "1000000", "--hosts", "512"}, "choices, must be at most");
  expect_refused({"--tokens", "2", "--micro-batches", "4"}, "4 micro-batches of 2 tokens");
  expect_refused({"--constants", "cpu", "--sms", "8"}, "--sms 8 with constants of CPUs");
  expect_refused({"--sms", "133"}, "--sms is 133, must be at most 132, as many as h200 has");
  expect_refused({"--sms", "132", "--micro-batches", "2"}, "leaves no SM for experts");
  expect_refused({"--constants", "cpu", "--nvlink", "8"}, "--nvlink with constants of CPUs");
  expect_refused({"--gpus-per-host", "72"}, "--gpus-per-host is 72, must be at most 64");
  expect_refused({"--constants", "/nothing/here.json"}, "constants are \"/nothing/here.json\"");
  expect_refused({"--workload", "deepseek-v9"}, "glm-4.5; nearest: \"deepseek-v3\"");
  expect_refused({"--routing", "limited:8:9"}, "limited:G:M");
  expect_refused({"--measured", "/nothing/here.json"}, "/nothing/here.json");
  expect_refused({"--html", "/nothing/here/plan.html", "--hosts", "1"}, "--html");
}

// What is computed and what is reported are the same number.
TEST(PlanTest, ReportsShowTheRatesThatWereGiven) {
  const TempFolder folder;
  const std::string page = folder.file("plan.html");
  const nlohmann::json json = json_of({"--hosts", "2", "--tokens", "8", "--nic", "123", "--nvlink",
                                       "777", "--tflops", "456", "--html", page});
  const std::string html = text_of(page);
  const auto expect_shown = [&](const std::string& name, const std::string& value,
                                const std::string& source) {
    for (const nlohmann::json& one : json["machine"]["constants"]) {
      if (one["name"] != name) continue;
      EXPECT_THAT(one["value"].get<std::string>(), HasSubstr(value));
      EXPECT_THAT(one["source"].get<std::string>(), StartsWith(source));
    }
    EXPECT_THAT(html, HasSubstr("<td class=\"text\">" + name + "</td><td class=\"text\">" + value));
  };
  expect_shown("network_gb_per_second", "123", "--nic");
  expect_shown("tflops", "456", "--tflops");
  for (const nlohmann::json& one : json["machine"]["constants"]) {
    if (one["name"] != "wire") continue;
    const std::string value = one["value"];
    EXPECT_THAT(value, HasSubstr(", 777 at 264"));
    EXPECT_THAT(one["source"].get<std::string>(), StartsWith("--nvlink; fewer CTAs"));
    EXPECT_THAT(html, HasSubstr(value));
  }
}

TEST(PlanTest, AnAnswerHasTimesBytesAndMemoryOfEveryChoice) {
  const nlohmann::json json = json_of({"--hosts", "1,2", "--tokens", "32"});
  ASSERT_EQ(json["forecasts"].size(), 2u);
  const nlohmann::json& two = json["forecasts"][1];
  EXPECT_EQ(two["ranks"], 16);
  EXPECT_GT(two["combine"]["between_bytes"], 0);
  EXPECT_GT(two["dispatch"]["busiest_inside_bytes"], 0);
  EXPECT_EQ(two["choices"].size(), 10u);
  for (const nlohmann::json& choice : two["choices"]) {
    EXPECT_EQ(choice["backend"], "hosts");
    EXPECT_GT(choice["dispatch"]["us"], 0);
    EXPECT_GT(choice["window_bytes"], 0);
  }
  const nlohmann::json& best = two["choices"][two["best"].get<std::size_t>()];
  for (const nlohmann::json& choice : two["choices"]) {
    const std::string layout = choice["layout"];
    if (layout != "expanded" && layout != "batched") continue;
    EXPECT_LE(best["layer_us"].get<double>(), 1.02 * choice["layer_us"].get<double>());
  }
  EXPECT_THAT(two["why"].get<std::string>(), HasSubstr("per_rank"));
  EXPECT_EQ(two["shown"], two["best"]);
  EXPECT_GT(json["machine"]["constants"].size(), 20u);
}

/// Whether every form shows `words`.
void expect_shown(const std::vector<std::string>& arguments,
                  const std::vector<std::string>& words) {
  const TempFolder folder;
  const std::string page = folder.file("plan.html");
  std::vector<std::string> with_page = arguments;
  with_page.insert(with_page.end(), {"--html", page});
  const std::string text = plan(with_page).output;
  const std::string html = text_of(page);
  for (const std::string& word : words) {
    EXPECT_THAT(text, HasSubstr(word));
    EXPECT_THAT(html, HasSubstr(word));
  }
}

TEST(PlanTest, EveryFormShowsWhatWasAsked) {
  const std::vector<std::string> asked{
      "--hosts", "1",      "--tokens", "8",          "--redundant", "32", "--memory",
      "0.25",    "--seed", "7",        "--balanced", "--sms",       "24", "--micro-batches",
      "2"};
  expect_shown(asked,
               {"32 redundant copies; placed by balance_experts", "may take 0.25 GB per rank",
                "routing uniform, seed 7", "24 SMs for an operation", "2 micro-batches", "288",
                "over all ranks", "are never the best"});
  const nlohmann::json json = json_of(asked);
  const nlohmann::json& settings = json["settings"];
  EXPECT_EQ(settings["redundant"], 32);
  EXPECT_EQ(settings["balanced"], true);
  EXPECT_EQ(settings["max_memory_bytes"], 0.25e9);
  EXPECT_EQ(settings["micro_batches"], 2);
  EXPECT_EQ(json["forecasts"][0]["physical_experts"], 288);
  expect_shown({"--hosts", "1", "--tokens", "8"},
               {"as few copies as give every rank equally many experts; in order"});
  EXPECT_TRUE(json_of({"--hosts", "1", "--tokens", "8"})["settings"]["redundant"].is_null());
}

TEST(PlanTest, WithoutAPossibleChoiceEveryFormSaysWhy) {
  const std::vector<std::string> tight{"--hosts", "2", "--memory", "0.001"};
  const nlohmann::json json = json_of(tight);
  const nlohmann::json& one = json["forecasts"][0];
  EXPECT_TRUE(one["best"].is_null());
  for (const nlohmann::json& choice : one["choices"]) {
    EXPECT_THAT(choice["why_not"].get<std::string>(),
                AllOf(StartsWith("takes 0."), HasSubstr(" GB, must be at most 0.001 GB")));
    EXPECT_GT(choice["layer_us"], 0);
  }
  const std::string why = one["why"];
  EXPECT_THAT(why, AllOf(StartsWith("no choice is possible: expanded over hosts (per_rank, "
                                    "per_expert): takes 0."),
                         HasSubstr("; expanded over hosts (per_host): takes 0."),
                         HasSubstr("; batched over hosts (per_rank, per_expert): takes 0.")));
  const nlohmann::json& shown = one["choices"][one["shown"].get<std::size_t>()];
  EXPECT_EQ(shown["layout"], "expanded");  // takes less than batched
  expect_shown(tight, {why, "none is possible; expanded, per_host: takes 0."});
  // A limit that only some choices keep to.
  const nlohmann::json some = json_of({"--hosts", "1", "--memory", "0.2"});
  const nlohmann::json& choices = some["forecasts"][0]["choices"];
  EXPECT_TRUE(choices[0]["why_not"].is_null());
  EXPECT_THAT(choices[2]["why_not"].get<std::string>(), HasSubstr("must be at most 0.2 GB"));
}

TEST(PlanTest, MoreGpusThanAnExchangeHasAreCountedButNotPossible) {
  const nlohmann::json json = json_of({"--hosts", "8,16", "--tokens", "8"});
  EXPECT_FALSE(json["forecasts"][0]["best"].is_null());
  const nlohmann::json& many = json["forecasts"][1];
  EXPECT_TRUE(many["best"].is_null());
  EXPECT_GT(many["dispatch"]["between_bytes"], json["forecasts"][0]["dispatch"]["between_bytes"]);
  for (const nlohmann::json& choice : many["choices"]) {
    EXPECT_THAT(choice["why_not"].get<std::string>(), HasSubstr("128 ranks, must be at most 64"));
    EXPECT_GT(choice["window_bytes"], 0);
    EXPECT_GT(choice["dispatch"]["us"], 0);
  }
  EXPECT_EQ(many["best_without_limit"], many["shown"]);
  expect_shown({"--hosts", "16", "--tokens", "8"},
               {"128 ranks, must be at most 64",
                "none is possible; without the limit of 64 ranks: batched, per_host"});
  // A limit of memory holds there, too.
  const nlohmann::json tight = json_of({"--hosts", "16", "--tokens", "8", "--memory", "0.001"});
  EXPECT_TRUE(tight["forecasts"][0]["best_without_limit"].is_null());
  EXPECT_THAT(tight["forecasts"][0]["choices"][0]["why_not"].get<std::string>(),
              AllOf(HasSubstr("128 ranks"), HasSubstr("must be at most 0.001 GB")));
}

TEST(PlanTest, CpuRanksThatShareNoHostHaveMessagesAlone) {
  const std::vector<std::string> apart{"--constants", "cpu", "--gpus-per-host", "1",
                                       "--hosts",     "2",   "--tokens",        "8"};
  const nlohmann::json json = json_of(apart);
  const nlohmann::json& one = json["forecasts"][0];
  EXPECT_TRUE(one["shown"].is_null());
  for (const nlohmann::json& choice : one["choices"]) EXPECT_EQ(choice["backend"], "messages");
  expect_shown(apart, {"expanded over messages (per_rank, per_expert): its time is not predicted"});
}

TEST(PlanTest, FasterLinksAndMoreSmsTakeNoLonger) {
  const auto us = [](std::vector<std::string> more, const char* call) {
    more.insert(more.end(), {"--hosts", "2", "--tokens", "512"});
    const nlohmann::json json = json_of(more);
    const nlohmann::json& one = json["forecasts"][0];
    return one["choices"][one["best"].get<std::size_t>()][call]["us"].get<double>();
  };
  EXPECT_LT(us({"--nic", "100"}, "dispatch"), us({"--nic", "25"}, "dispatch"));
  EXPECT_LT(us({"--nvlink", "900", "--nic", "1000"}, "combine"),
            us({"--nvlink", "100", "--nic", "1000"}, "combine"));
  EXPECT_LT(us({"--sms", "64", "--nic", "1000"}, "combine"),
            us({"--sms", "8", "--nic", "1000"}, "combine"));
}

TEST(PlanTest, ATraceIsReplayed) {
  const nlohmann::json json =
      json_of({"--workload", SWITCHYARD_SOURCE_DIR "/data/tiny-moe", "--routing",
               "trace:" SWITCHYARD_SOURCE_DIR "/data/tiny-moe/routing.safetensors",
               "--gpus-per-host", "2", "--hosts", "2", "--tokens", "16"});
  EXPECT_LT(json["forecasts"][0]["balance"], 1);
  EXPECT_GT(json["forecasts"][0]["crossings_per_token"], 0);
}

TEST(PlanTest, ThePageIsWholeAndNeedsNothing) {
  const TempFolder folder;
  const std::string page = folder.file("plan.html");
  ASSERT_EQ(plan({"--hosts", "1,2,4", "--tokens", "8", "--html", page}).exit_code, 0);
  const std::string html = text_of(page);
  EXPECT_THAT(html,
              AllOf(StartsWith("<!doctype html>"), HasSubstr("</html>"), Not(HasSubstr("http")),
                    Not(HasSubstr("<script")), Not(HasSubstr("nan"))));
  EXPECT_GE(std::ranges::count(html, '\n'), 30);
  std::size_t charts = 0;
  for (std::size_t at = html.find("<svg"); at != html.npos; at = html.find("<svg", at + 1)) {
    ++charts;
  }
  EXPECT_EQ(charts, 3u);
}

/// A command in docs/plan.md with the lines of its output that stand below it.
struct DocumentedOutput {
  std::vector<std::string> arguments;
  std::string lines;
};

std::vector<DocumentedOutput> documented_outputs() {
  std::vector<DocumentedOutput> outputs;
  std::istringstream page(text_of(SWITCHYARD_SOURCE_DIR "/docs/plan.md"));
  const std::string begin = "    $ switchyard plan ";
  bool is_inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind(begin, 0) == 0) {
      std::istringstream words(line.substr(begin.size()));
      DocumentedOutput& output = outputs.emplace_back();
      for (std::string word; words >> word;) output.arguments.push_back(word);
      is_inside = true;
    } else if (is_inside) {
      is_inside = line.rfind("    ", 0) == 0;
      if (is_inside) outputs.back().lines += line.substr(4) + "\n";
    }
  }
  return outputs;
}

TEST(PlanTest, OutputsOfThePageAreWhatTheCommandPrints) {
  const std::vector<DocumentedOutput> outputs = documented_outputs();
  EXPECT_GE(outputs.size(), 2u);
  for (const DocumentedOutput& one : outputs) {
    const CommandResult result = plan(one.arguments);
    ASSERT_EQ(result.exit_code, 0) << result.error;
    EXPECT_GT(one.lines.size(), 100u);
    EXPECT_THAT(result.output, HasSubstr(one.lines));
  }
}

// 2048 ranks of 128 tokens are 2 million choices. The machines of tests may be busy.
TEST(PlanTest, TwoThousandRanksAnswerSoonInLittleMemory) {
  const CommandResult result = plan({"--hosts", "256"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr("2048"));
  EXPECT_LT(result.seconds, 10 * SWITCHYARD_SLOWDOWN);
  rusage usage{};  // of the largest of this test's children so far
  ASSERT_EQ(getrusage(RUSAGE_CHILDREN, &usage), 0);
  EXPECT_GT(usage.ru_maxrss, 1024);  // KiB
  EXPECT_LT(usage.ru_maxrss, 2 * 1024 * 1024);
}

}  // namespace
}  // namespace switchyard::test
