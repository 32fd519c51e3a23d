// SPDX-License-Identifier: Apache-2.0
//
// `switchyard plan --measured` as a user runs it: predictions beside what `bench --json` wrote.

#include "plan_command.h"
#include "support/temp_folder.h"

namespace switchyard::test {
namespace {

using ::testing::HasSubstr;

TEST(PlanMeasuredTest, WhatIsNotABenchFileIsRefused) {
  const TempFolder folder;
  expect_refused({"--measured", folder.write("a.json", "{\"rows\": []}")},
                 "must be a file of `bench --json`");
  expect_refused({"--measured", folder.write("b.json", "[1")}, "b.json");
  const std::string measured =
      SWITCHYARD_SOURCE_DIR "/bench/results/2026-11-23-h200x2-pair-prefill.json";
  expect_refused({"--constants", "cpu", "--measured", measured},
                 "was measured on GPUs, but constants cpu are of CPUs");
}

TEST(PlanMeasuredTest, WhatHasNoPredictionIsRefused) {
  const TempFolder folder;
  nlohmann::json file = nlohmann::json::parse(
      text_of(SWITCHYARD_SOURCE_DIR "/bench/results/2026-11-23-h200x2-pair-prefill.json"));
  file["settings"]["returned"] = "fp8_block";
  const char* phrase = "must be of a run without --returned and --codes";
  expect_refused({"--measured", folder.write("returned.json", file.dump())}, phrase);
  file["settings"]["returned"] = "none";
  file["settings"]["codes"] = true;
  expect_refused({"--measured", folder.write("codes.json", file.dump())}, phrase);
  file["settings"]["codes"] = false;
  file["settings"]["scales"] = "column_major";
  expect_refused({"--measured", folder.write("scales.json", file.dump())},
                 "must be of a run without --scales");
  file["settings"]["scales"] = "row_major";
  file["settings"]["shared_experts"] = 1;
  expect_refused({"--measured", folder.write("shared.json", file.dump())},
                 "must be of a run without --shared-experts");
  file["settings"]["shared_experts"] = 0;
  phrase = "must be of a run without --exact-messages and --host-capacity";
  file["settings"]["exact_messages"] = true;
  expect_refused({"--measured", folder.write("exact.json", file.dump())}, phrase);
  file["settings"]["exact_messages"] = false;
  file["settings"]["host_capacity"] = 64;
  expect_refused({"--measured", folder.write("capacity.json", file.dump())}, phrase);
}

TEST(PlanMeasuredTest, MeasuredFilesSayAllButConstants) {
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

TEST(PlanMeasuredTest, MeasuredRowsOfSeveralHostsArePredictedWithTheirNetwork) {
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

TEST(PlanMeasuredTest, MeasuredRanksWithMessagesAloneAreRefused) {
  const nlohmann::json file = result_file("2026-11-23-cpu-bench-pair.json");
  expect_unmeasured(on_hosts(file, 2, 2),
                    "2 ranks of engine mpi on 2 hosts exchange messages alone");
  nlohmann::json one_host = file;
  one_host["engine"] = "mpi";
  expect_unmeasured(one_host, "2 ranks of engine mpi on 1 host exchange messages alone");
  expect_unmeasured(on_hosts(file, 5, 2), "5 ranks on 2 hosts, must be as many ranks on each");
}

TEST(PlanMeasuredTest, MeasuredFilesChooseTheConstantsOfTheirMachine) {
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

TEST(PlanMeasuredTest, MeasuredFilesMayHaveAnySeed) {
  const TempFolder folder;
  nlohmann::json file = result_file("2026-11-23-cpu-bench-pair.json");
  const nlohmann::json first = measured_of(folder, file);
  file["settings"]["seed"] = (std::uint64_t{1} << 63) - 1;
  const nlohmann::json other = measured_of(folder, file);
  EXPECT_NE(other.back()["predicted_us"], first.back()["predicted_us"]);
  file["settings"]["seed"] = std::uint64_t{1} << 63;
  expect_unmeasured(file, "seed is 9223372036854775808, must be a whole number from 0 to");
}

TEST(PlanMeasuredTest, MeasuredLayersArePredictedWithTheirExperts) {
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

/// The files and options of a table's comment in docs/lab/forecasts.md, and what follows up to the
/// sum of its rows.
struct DocumentedTable {
  std::vector<std::string> arguments;
  std::string lines;
};

std::vector<DocumentedTable> documented_tables() {
  std::vector<DocumentedTable> tables;
  std::istringstream page(text_of(SWITCHYARD_SOURCE_DIR "/docs/lab/forecasts.md"));
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

TEST(PlanMeasuredTest, TablesOfThePageAreWhatTheCommandPrints) {
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
