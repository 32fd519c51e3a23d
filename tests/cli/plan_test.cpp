// SPDX-License-Identifier: Apache-2.0
//
// `switchyard plan` as a user runs it: what it answers, how soon, and what it refuses.

#include "plan.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "support/command.h"
#include "support/errors.h"
#include "support/temp_folder.h"

namespace switchyard::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

CommandResult plan(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {SWITCHYARD_CLI, "plan"});
  return run_command(arguments);
}

nlohmann::json json_of(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--json", "-"});
  const CommandResult result = plan(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.error;
  return nlohmann::json::parse(result.output);
}

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void expect_refused(std::vector<std::string> arguments, const std::string& words) {
  const CommandResult result = plan(std::move(arguments));
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_EQ(std::ranges::count(result.error, '\n'), 1) << result.error;
  EXPECT_THAT(result.error, AllOf(StartsWith("switchyard: "), HasSubstr(words)));
}

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
  expect_refused({"--constants", "/nothing/here.json"}, "constants are \"/nothing/here.json\"");
  expect_refused({"--workload", "deepseek-v9"}, "workload is \"deepseek-v9\"");
  expect_refused({"--routing", "limited:8:9"}, "limited:G:M");
  expect_refused({"--measured", "/nothing/here.json"}, "/nothing/here.json");
  expect_refused({"--html", "/nothing/here/plan.html", "--hosts", "1"}, "--html");
}

TEST(PlanTest, WhatIsNotABenchFileIsRefused) {
  const TempFolder folder;
  expect_refused({"--measured", folder.write("a.json", "{\"rows\": []}")},
                 "must be a file of `bench --json`");
  expect_refused({"--measured", folder.write("b.json", "[1")}, "b.json");
  const std::string measured =
      SWITCHYARD_SOURCE_DIR "/bench/results/2026-11-23-h200x2-pair-prefill.json";
  expect_refused({"--constants", "cpu", "--measured", measured},
                 "was measured on GPUs, but constants cpu are of CPUs");
}

TEST(PlanTest, MeasuredFilesSayAllButConstants) {
  const std::string file =
      SWITCHYARD_SOURCE_DIR "/bench/results/2026-11-23-h200x2-pair-prefill.json";
  const TempFolder folder;
  const std::vector<std::vector<std::string>> ignored{{"--workload", "kimi-k2"},
                                                      {"--tokens", "8"},
                                                      {"--gpus-per-host", "4"},
                                                      {"--hosts", "1"},
                                                      {"--routing", "uniform"},
                                                      {"--redundant", "32"},
                                                      {"--balanced"},
                                                      {"--scheme", "none"},
                                                      {"--micro-batches", "2"},
                                                      {"--memory", "1"},
                                                      {"--weight-bits", "4"},
                                                      {"--sms", "24"},
                                                      {"--seed", "2"},
                                                      {"--html", folder.file("plan.html")}};
  for (std::vector<std::string> arguments : ignored) {
    const std::string option = arguments[0];
    arguments.insert(arguments.end(), {"--measured", file});
    expect_refused(arguments, "plan: " + option + " beside --measured");
  }
  for (const char* rate : {"--nic", "--tflops", "--memory-bandwidth"}) {
    expect_refused({rate, "100", "--measured", file},
                   std::string("plan: ") + rate + " beside --measured without a file of");
  }
  expect_refused({"--fixed-roles"}, "--fixed-roles without --measured");
  EXPECT_EQ(plan({"--constants", "h200", "--measured", file}).exit_code, 0);
}

/// A file of the project's results.
nlohmann::json result_file(const std::string& name) {
  return nlohmann::json::parse(text_of(SWITCHYARD_SOURCE_DIR "/bench/results/" + name));
}

nlohmann::json measured_of(const TempFolder& folder, const nlohmann::json& document,
                           std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"--measured", folder.write("measured.json", document.dump())});
  return json_of(more)["measured"];
}

void expect_unmeasured(const nlohmann::json& document, const std::string& words) {
  const TempFolder folder;
  const CommandResult result = plan({"--measured", folder.write("measured.json", document.dump())});
  EXPECT_NE(result.exit_code, 0) << result.output;
  EXPECT_EQ(std::ranges::count(result.error, '\n'), 1) << result.error;
  EXPECT_THAT(result.error, HasSubstr(words));
}

/// As mpirun's ranks on several hosts write it.
nlohmann::json on_hosts(nlohmann::json document, int num_ranks, int num_hosts) {
  document["engine"] = "mpi";
  document["ranks"] = num_ranks;
  document["settings"]["hosts"] = num_hosts;
  for (nlohmann::json& row : document["rows"]) row["host_bytes_per_token"] = 1000.0;
  return document;
}

TEST(PlanTest, MeasuredRowsOfSeveralHostsArePredictedWithTheirNetwork) {
  const TempFolder folder;
  const nlohmann::json one_host = result_file("2026-11-23-cpu-bench-pair.json");
  nlohmann::json only_counted = one_host;
  only_counted["settings"]["hosts"] = 2;
  const nlohmann::json inside = measured_of(folder, only_counted);
  EXPECT_EQ(inside, measured_of(folder, one_host));
  EXPECT_EQ(inside[0]["hosts"], 1);

  const nlohmann::json several = on_hosts(one_host, 4, 2);
  const nlohmann::json across = measured_of(folder, several);
  EXPECT_EQ(across[0]["hosts"], 2);
  // Of one token each, a message between hosts starts in 18 us.
  EXPECT_GT(across[0]["predicted_us"].get<double>(), 18 + inside[0]["predicted_us"].get<double>());
  const nlohmann::json slow = measured_of(folder, several, {"--nic", "0.1"});
  EXPECT_GT(slow.back()["predicted_us"].get<double>(),
            2 * across.back()["predicted_us"].get<double>());
  EXPECT_THAT(plan({"--measured", folder.file("measured.json")}).output,
              HasSubstr("| pair, 2 hosts |"));
}

TEST(PlanTest, MeasuredRanksWithMessagesAloneAreRefused) {
  const nlohmann::json file = result_file("2026-11-23-cpu-bench-pair.json");
  expect_unmeasured(on_hosts(file, 2, 2),
                    "2 ranks of engine mpi on 2 hosts exchange messages alone");
  nlohmann::json one_host = file;
  one_host["engine"] = "mpi";
  expect_unmeasured(one_host, "2 ranks of engine mpi on 1 host exchange messages alone");
  expect_unmeasured(on_hosts(file, 5, 2), "5 ranks on 2 hosts, must be as many ranks on each");
}

TEST(PlanTest, MeasuredFilesChooseTheConstantsOfTheirMachine) {
  const TempFolder folder;
  nlohmann::json file = result_file("2026-11-23-h200x2-pair-prefill.json");
  const nlohmann::json h200 = measured_of(folder, file);
  EXPECT_EQ(h200[0]["constants"], "h200");
  file["machine"]["gpu"] = "2x NVIDIA H100 80GB HBM3";
  const nlohmann::json h100 = measured_of(folder, file);
  EXPECT_EQ(h100[0]["constants"], "h100");
  EXPECT_EQ(h100, measured_of(folder, file, {"--constants", "h100"}));
  EXPECT_NE(h100[0]["predicted_us"], h200[0]["predicted_us"]);
  file["machine"]["gpu"] = "2x NVIDIA B200";
  expect_unmeasured(file, "machine.gpu is \"2x NVIDIA B200\", must name an H100 or H200");
  EXPECT_EQ(measured_of(folder, file, {"--constants", "h200"})[0]["constants"], "h200");
}

TEST(PlanTest, MeasuredFilesMayHaveAnySeed) {
  const TempFolder folder;
  nlohmann::json file = result_file("2026-11-23-cpu-bench-pair.json");
  const nlohmann::json first = measured_of(folder, file);
  file["settings"]["seed"] = (std::uint64_t{1} << 63) - 1;
  const nlohmann::json other = measured_of(folder, file);
  EXPECT_NE(other.back()["predicted_us"], first.back()["predicted_us"]);
  file["settings"]["seed"] = std::uint64_t{1} << 63;
  expect_unmeasured(file, "seed is 9223372036854775808, want a whole number from 0 to");
}

TEST(PlanTest, MeasuredLayersArePredictedWithTheirExperts) {
  const TempFolder folder;
  nlohmann::json file = result_file("2026-11-23-cpu-bench-layer.json");
  const nlohmann::json layer = measured_of(folder, file);
  EXPECT_EQ(layer[1]["op"], "layer");
  EXPECT_EQ(layer[1]["experts"], "exact");
  EXPECT_NEAR(layer[1]["ratio"].get<double>(), 1, 0.3);
  const nlohmann::json slow = measured_of(folder, file, {"--tflops", "0.017"});
  EXPECT_GT(slow[1]["predicted_us"].get<double>(), 8 * layer[1]["predicted_us"].get<double>());
  file["settings"]["micro_batches"] = 2;
  EXPECT_EQ(measured_of(folder, file)[0]["micro_batches"], 2);
  EXPECT_THAT(plan({"--measured", folder.file("measured.json")}).output,
              HasSubstr("| layer, exact, 2 micro-batches |"));
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
  EXPECT_THAT(two["why"].get<std::string>(), HasSubstr("combine for"));
  EXPECT_GT(json["machine"]["constants"].size(), 20u);
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

// 2048 ranks of 128 tokens are 2 million choices. The machines of tests may be busy.
TEST(PlanTest, TwoThousandRanksAnswerSoon) {
  const CommandResult result = plan({"--hosts", "256"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr("2048"));
  EXPECT_LT(result.seconds, 10 * SWITCHYARD_SLOWDOWN);
}

/// The files and options of a table's comment in docs/plan.md, and what follows up to the sum of
/// its rows.
struct DocumentedTable {
  std::vector<std::string> arguments;
  std::string lines;
};

std::vector<DocumentedTable> documented_tables() {
  std::vector<DocumentedTable> tables;
  std::istringstream page(text_of(SWITCHYARD_SOURCE_DIR "/docs/plan.md"));
  const std::string begin = "<!-- switchyard plan ";
  bool is_inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind(begin, 0) == 0) {
      std::istringstream words(line.substr(begin.size()));
      DocumentedTable& table = tables.emplace_back();
      for (std::string word; words >> word && word != "-->";) {
        const bool is_file = word.ends_with(".json");
        table.arguments.push_back(is_file ? SWITCHYARD_SOURCE_DIR "/bench/results/" + word : word);
      }
      is_inside = true;
    } else if (is_inside && (line.rfind("| ", 0) == 0 || line.find("rows are") != line.npos)) {
      tables.back().lines += line + "\n";
      is_inside = line.rfind("| ", 0) == 0;
    }
  }
  return tables;
}

TEST(PlanTest, TablesOfThePageAreWhatTheCommandPrints) {
  const std::vector<DocumentedTable> tables = documented_tables();
  EXPECT_GE(tables.size(), 3u);
  for (const DocumentedTable& table : tables) {
    const CommandResult result = plan(table.arguments);
    ASSERT_EQ(result.exit_code, 0) << result.error;
    std::string lines;
    std::istringstream output(result.output);
    for (std::string line; std::getline(output, line);) {
      if (line.rfind("| ", 0) == 0) lines += line + "\n";
      if (line.find("rows are") != line.npos) lines += line + ".\n";
    }
    EXPECT_EQ(lines, table.lines);
  }
}

}  // namespace
}  // namespace switchyard::test
