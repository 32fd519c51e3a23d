// SPDX-License-Identifier: Apache-2.0
//
// `switchyard bench` as a user sees it: lines, JSON, the page, usage errors.

#include <algorithm>
#include <set>

#include <gmock/gmock.h>

#include "cli/run_layer.h"
#include "support/temp_folder.h"

namespace switchyard::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Runs a small and quick bench unless `extra` says otherwise.
CommandResult bench(const Arguments& extra) {
  const std::pair<const char*, const char*> defaults[] = {
      {"--workload", SWITCHYARD_DATA_DIR "/tiny-moe"},
      {"--runs", "30"},
      {"--ranks", "2"},
      {"--tokens", "1,8"}};
  Arguments arguments{SWITCHYARD_CLI, "bench"};
  for (const auto& [option, value] : defaults) {
    if (std::find(extra.begin(), extra.end(), option) != extra.end()) continue;
    arguments.insert(arguments.end(), {option, value});
  }
  arguments.insert(arguments.end(), extra.begin(), extra.end());
  return run_command(arguments, 60 * SWITCHYARD_SLOWDOWN);
}

nlohmann::json bench_json(Arguments extra) {
  extra.insert(extra.end(), {"--json", "-"});
  const CommandResult result = bench(extra);
  EXPECT_EQ(result.exit_code, 0) << result.error;
  return nlohmann::json::parse(result.output, nullptr, false);
}

void expect_usage_error(const Arguments& extra, const std::string& phrase) {
  const CommandResult result = bench(extra);
  EXPECT_EQ(result.exit_code, 2) << result.error;
  EXPECT_THAT(result.error + result.output, HasSubstr(phrase));
}

TEST(BenchTest, JsonHasMachineSettingsConstantsAndRows) {
  const nlohmann::json json = bench_json({"--op", "pair"});
  EXPECT_NE(json["commit"].get<std::string>(), "");
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_EQ(json["engine"], "shm");
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_FALSE(json["machine"]["processor"].get<std::string>().empty());
  EXPECT_EQ(json["workload"]["hidden"], 256);
  EXPECT_EQ(json["workload"]["topk"], 4);
  EXPECT_EQ(json["settings"]["op"], "pair");
  EXPECT_EQ(json["settings"]["runs"], 30);
  EXPECT_EQ(json["settings"]["scales"], "row_major");
  EXPECT_EQ(json["settings"]["returned"], "none");
  EXPECT_EQ(json["settings"]["codes"], false);
  EXPECT_EQ(json["settings"]["shared_experts"], 0);
  ASSERT_EQ(json["floors"].size(), 1u);
  EXPECT_EQ(json["floors"][0]["bytes"], "copied");
  EXPECT_GT(json["floors"][0]["start_us"], 0);
  EXPECT_EQ(json["floors"][0]["constants"][0]["name"], "hop");
  EXPECT_EQ(json["floors"][0]["rate"].size(), 4u);
  EXPECT_TRUE(json["baseline"].is_null());
  ASSERT_EQ(json["rows"].size(), 2u);
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["wrong"], 0);
    EXPECT_EQ(row["method"], "calls");
    EXPECT_GT(row["p50_us"], 0);
    EXPECT_GE(row["p99_us"], row["p50_us"]);
    EXPECT_LE(row["min_us"], row["p50_us"]);
    EXPECT_GT(row["wire_bytes"], 0);
    EXPECT_GT(row["balance"]["placed"], 0);
    EXPECT_GE(row["balance"]["with_redundant"], row["balance"]["placed"]);
    EXPECT_FALSE(row.contains("host_crossings_per_token"));
    EXPECT_GT(row["floor_us"], 0);
    EXPECT_NEAR(row["of_floor"], row["floor_us"].get<double>() / row["p50_us"].get<double>(), 1e-9);
  }
  EXPECT_EQ(json["rows"][0]["tokens"], 1);
  EXPECT_EQ(json["rows"][1]["tokens"], 8);
}

TEST(BenchTest, EveryOperationEngineLayoutAndRoutingIsRight) {
  const std::string trace = "trace:" SWITCHYARD_DATA_DIR "/tiny-moe/routing.safetensors";
  const Arguments cases[] = {
      {"--op", "dispatch", "--routing", "hot", "--layout", "batched"},
      {"--op", "combine", "--routing", "zipf:1.2", "--engine", "local", "--scheme", "none"},
      {"--op", "layer", "--routing", trace, "--layout", "compact", "--engine", "local"},
      {"--op", "layer", "--micro-batches", "2", "--layout", "batched"},
      {"--op", "pair", "--layers", "3", "--reduce", "per_expert", "--scheme", "nvfp4"},
      {"--op", "pair", "--layout", "by_rank", "--ranks", "3", "--scheme", "int8_token"},
      {"--op", "pair", "--layout", "batched", "--max-tokens", "50"},
      {"--op", "combine", "--layout", "by_rank", "--max-tokens", "50", "--engine", "local"},
      {"--codes", "--returned", "fp8_block", "--scheme", "fp8_ue8m0_deepep"},
      {"--scales", "column_major", "--layout", "batched", "--reduce", "per_expert"},
      {"--scales", "column_major_aligned", "--layout", "compact", "--engine", "local"},
      {"--scales", "swizzled", "--scheme", "nvfp4", "--layout", "batched"},
      {"--scales", "column_major", "--layout", "batched", "--ranks", "33", "--engine", "local"},
      {"--op", "layer", "--returned", "int8_block", "--layout", "compact"},
      {"--op", "layer", "--shared-experts", "2", "--micro-batches", "2"},
  };
  for (const Arguments& arguments : cases) {
    const nlohmann::json json = bench_json(arguments);
    EXPECT_EQ(json["ok"], true) << json.dump(1);
    EXPECT_EQ(json["rows"].size(), 2u);
  }
}

// Three pairs move three times the bytes and cannot take less time than the hops of their floor.
TEST(BenchTest, LayersMultiplyWhatAnIterationMoves) {
  const nlohmann::json one = bench_json({"--engine", "local"});
  const nlohmann::json three = bench_json({"--engine", "local", "--layers", "3"});
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(three["rows"][i]["wire_bytes"], 3 * one["rows"][i]["wire_bytes"].get<std::int64_t>());
  }
}

TEST(BenchTest, TextHasALineForEachNumberOfTokens) {
  const TempFolder folder;
  const CommandResult result = bench({"--json", folder.file("out.json")});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr("hidden 256, 32 experts, top-4; routing uniform"));
  EXPECT_THAT(result.output, HasSubstr("floor    hop "));
  EXPECT_THAT(result.output, HasSubstr("tokens      p50 us      p99 us"));
  EXPECT_THAT(result.output, HasSubstr("\n       1  "));
  EXPECT_THAT(result.output, HasSubstr("\n       8  "));
  EXPECT_EQ(nlohmann::json::parse(read_file(folder.file("out.json")))["rows"].size(), 2u);
}

TEST(BenchTest, BaselineFileStandsBesideRowsOfItsSizes) {
  const TempFolder folder;
  const std::string file = folder.write("peer.json", R"({"machine": "theirs", "source": "a test",
    "hidden": 256, "experts": 32, "topk": 4, "ranks": 2, "rows": [
    {"name": "slow", "op": "pair", "tokens": 8, "us": 9000000},
    {"name": "fast", "mode": "warm", "op": "pair", "tokens": 8, "us": 8000000},
    {"name": "other", "op": "dispatch", "tokens": 1, "us": 1}]})");
  const nlohmann::json json = bench_json({"--baseline", file, "--html", folder.file("page.html")});
  EXPECT_EQ(json["baseline"]["machine"], "theirs");
  EXPECT_TRUE(json["rows"][0]["baseline"].is_null());
  EXPECT_EQ(json["rows"][1]["baseline"]["name"], "fast");
  EXPECT_EQ(json["rows"][1]["baseline"]["mode"], "warm");
  EXPECT_GT(json["rows"][1]["baseline"]["ratio"], 1);
  const std::string page = read_file(folder.file("page.html"));
  EXPECT_THAT(page, HasSubstr("</svg>"));
  EXPECT_THAT(page, HasSubstr("floor of the machine"));
  EXPECT_THAT(page, HasSubstr(">slow</text>"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(page, Not(HasSubstr("http")));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  const CommandResult other = bench({"--baseline", file, "--ranks", "3", "--engine", "local"});
  EXPECT_THAT(other.output,
              HasSubstr("its numbers are for hidden 256, 32 experts, top-4, 2 ranks"));
}

// With MPI present, the baseline has times of the same run; without it there is one clear error.
TEST(BenchTest, MpiIsMeasuredOrItsAbsenceExplained) {
  const CommandResult result =
      bench({"--baseline", "mpi", "--engine", "local", "--json", "-", "--op", "dispatch"});
  if (result.exit_code == 3) {
    EXPECT_THAT(result.error, HasSubstr("--baseline mpi, but there is no "));
    return;
  }
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const nlohmann::json json = nlohmann::json::parse(result.output);
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["baseline"]["name"], "MPI_Alltoallv");
    EXPECT_GT(row["baseline"]["us"], 0);
  }
}

TEST(BenchTest, MpiWithoutMpirunSaysSo) {
  const CommandResult result =
      run_command({"/usr/bin/env", "PATH=/nonexistent", SWITCHYARD_CLI, "bench", "--baseline",
                   "mpi", "--workload", SWITCHYARD_DATA_DIR "/tiny-moe"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.error, HasSubstr("bench: --baseline mpi, but there is no "));
}

// What ranks do and what they wait for is about what a call takes.
TEST(BenchTest, StagesOfRanksAreNamedAndTimed) {
  const nlohmann::json json = bench_json({"--op", "pair", "--stages", "--tokens", "64"});
  const nlohmann::json& row = json["rows"][0];
  std::set<std::string> names;
  for (const nlohmann::json& one : row["stages"]) {
    const std::string stage = one["stage"];
    names.insert(one["kernel"].get<std::string>() + " " + stage);
    EXPECT_EQ(one["role"], "rank");
    EXPECT_EQ(one["count"], 30);
    EXPECT_EQ(one.contains("floor_us"), stage != "wait");
    EXPECT_GE(one["median_us"], stage == "wait" ? 0 : 0.01) << stage;
  }
  EXPECT_EQ(names, (std::set<std::string>{"dispatch pack", "dispatch wait", "dispatch place",
                                          "combine pack", "combine wait", "combine sum"}));
}

TEST(BenchTest, UsageErrorsSayWhatIsWanted) {
  expect_usage_error({"--tokens", "1,x"},
                     "--tokens is \"1,x\", must be numbers from 1 to 16777216");
  expect_usage_error({"--tokens", "8,"}, "must be numbers");
  expect_usage_error({"--workload", "gpt-5"},
                     "workload is \"gpt-5\", must be a config.json or one");
  expect_usage_error({"--routing", "zipf:a"}, "must be zipf:A with a number A from 0 to 10");
  expect_usage_error({"--stages", "--op", "layer"}, "--stages with --op layer");
  for (const char* option : {"--cold-code", "--skew"}) {
    expect_usage_error({option}, "--cold-code or --skew with --device cpu");
  }
  for (const Arguments& given : {Arguments{"--exact-messages"}, {"--host-capacity", "8"}}) {
    expect_usage_error(given, "--exact-messages or --host-capacity with --device cpu");
  }
  expect_usage_error({"--host-capacity", "0"}, "--host-capacity");
  expect_usage_error({"--graph"}, "--graph with --device cpu, must be --device cuda");
  expect_usage_error({"--no-pdl"}, "--no-pdl with --device cpu, must be --device cuda");
  expect_usage_error({"--sms", "8"}, "--sms 8 with --device cpu");
  expect_usage_error({"--baseline", "nccl"}, "--baseline nccl with --device cpu, must be mpi");
  expect_usage_error({"--device", "cuda", "--baseline", "mpi"}, "must be nccl or a file");
  expect_usage_error({"--baseline", "mpi", "--op", "layer"}, "must be dispatch, combine or pair");
  expect_usage_error({"--micro-batches", "2"}, "--micro-batches 2 with --op pair");
  expect_usage_error({"--op", "layer", "--experts", "cublas"}, "must be --device cuda");
  expect_usage_error({"--op", "layer", "--device", "cuda", "--experts", "cublas"},
                     "must be --layout batched");
  expect_usage_error({"--shared-experts", "1"}, "--shared-experts 1 with --op pair");
  expect_usage_error({"--returned", "nvfp4"}, "--returned");
  expect_usage_error({"--scales", "column_major", "--scheme", "fp8_tensor"},
                     "--scales column_major with --scheme fp8_tensor and --op pair");
  expect_usage_error(
      {"--scales", "swizzled"},
      "--scales swizzled with --scheme fp8_block, must be a layout that the scheme has");
  expect_usage_error({"--codes", "--scheme", "none"}, "--codes with --scheme none");
  expect_usage_error({"--codes", "--op", "layer"}, "must be a quantized scheme and dispatch");
  expect_usage_error({"--op", "layer", "--experts", "onednn", "--returned", "fp8_block"},
                     "--returned fp8_block with --experts onednn, must be exact");
  expect_usage_error({"--layers", "2", "--op", "combine"}, "--layers is 2 with --op combine");
  expect_usage_error({"--tokens", "8", "--max-tokens", "7"}, "--max-tokens is 7, must be at least");
  expect_usage_error({"--reduce", "per_expert", "--layout", "compact"},
                     "must be batched or expanded");
  expect_usage_error({"--html", "/nowhere/a.html"}, "there is no folder /nowhere");
  expect_usage_error({"--html", "-"}, "--html is -, must be a file");
  expect_usage_error({"--runs", "29"}, "--runs");
  expect_usage_error({"--ranks", "0"}, "--ranks");
  expect_usage_error({"--op", "reduce"}, "--op");
}

TEST(BenchTest, CudaWithoutAGpuIsOneErrorOfTheEnvironment) {
  const CommandResult result = bench({"--device", "cuda", "--engine", "shm", "--graph"});
  if (result.exit_code == 0) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.error, HasSubstr("bench: --device cuda, but CUDA cannot be used: "));
  EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 1) << result.error;
  EXPECT_THAT(result.error, Not(HasSubstr("[rank")));  // fails before any rank starts
}

TEST(BenchTest, CudaWithoutItsModuleSaysWhatToDo) {
  const CommandResult result =
      run_command({"/usr/bin/env", "SWITCHYARD_CUDA_MODULE=/nonexistent/module.so", SWITCHYARD_CLI,
                   "bench", "--device", "cuda", "--workload", SWITCHYARD_DATA_DIR "/tiny-moe"});
  if (result.exit_code == 0 || result.error.find("no GPU") != std::string::npos) {
    GTEST_SKIP() << "the module is linked in";
  }
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.error, HasSubstr("the CUDA module is missing (/nonexistent/module.so"));
}

// Needs a machine with GPUs; ranks share GPUs when there are fewer GPUs than ranks. Processes that
// share one take turns of milliseconds, so all cases but the first have threads there.
TEST(BenchTest, CudaIsRightAndNamesTheMachine) {
  const Arguments cases[] = {
      {"--op", "pair", "--graph", "--baseline", "nccl"},
      {"--op", "combine", "--graph", "--no-pdl", "--layout", "batched", "--scheme", "none"},
      {"--op", "dispatch", "--layout", "compact", "--sms", "8"},
      {"--op", "pair", "--reduce", "per_expert", "--scheme", "nvfp4"},
      {"--op", "pair", "--layout", "by_rank", "--graph", "--layers", "3"},
      {"--op", "pair", "--graph", "--cold-code", "--skew"},
      {"--op", "combine", "--skew"},
      {"--op", "layer", "--graph", "--layers", "3"},
      {"--op", "layer", "--layout", "compact", "--scheme", "none"},
      {"--op", "layer", "--graph", "--micro-batches", "2"},
      {"--op", "layer", "--layout", "batched", "--reduce", "per_expert"},
      {"--op", "layer", "--shared-experts", "2", "--graph"},
      {"--op", "pair", "--layout", "batched", "--graph", "--max-tokens", "300"},
      {"--codes", "--returned", "fp8_block", "--graph"},
      {"--codes", "--scheme", "int8_token", "--returned", "mxfp8", "--layout", "compact"},
      {"--scales", "column_major", "--layout", "batched", "--reduce", "per_expert", "--graph"},
      {"--scales", "swizzled", "--scheme", "mxfp8"},
  };
  const char* engine = "shm";
  for (Arguments arguments : cases) {
    arguments.insert(arguments.end(), {"--device", "cuda", "--json", "-", "--engine", engine});
    SCOPED_TRACE(testing::PrintToString(arguments));
    const CommandResult result = bench(arguments);
    if (result.exit_code == 3) GTEST_SKIP() << result.error;
    ASSERT_EQ(result.exit_code, 0) << result.error << result.output;
    const nlohmann::json json = nlohmann::json::parse(result.output);
    EXPECT_EQ(json["device"], "cuda");
    EXPECT_TRUE(json["machine"].contains("heap")) << json["machine"];
    if (json["machine"].contains("shared_gpu")) engine = "local";
    EXPECT_EQ(json["floors"][0]["bytes"], "wire");
    EXPECT_GT(json["floors"][0]["start_us"], 0);
    for (const auto& row : json["rows"]) {
      EXPECT_EQ(row["wrong"], 0);
      EXPECT_GT(row["p50_us"], 0);
    }
  }
}

TEST(BenchTest, ShapesThatDoNotFitAreLeftOutByName) {
  const nlohmann::json json =
      bench_json({"--tokens", "1,16777216", "--engine", "local", "--workload", "deepseek-v3"});
  EXPECT_EQ(json["rows"][0]["wrong"], 0);
  EXPECT_THAT(json["rows"][1]["left_out"].get<std::string>(), HasSubstr("more than 60 %"));
  EXPECT_FALSE(json["rows"][1].contains("p50_us"));
}

TEST(BenchTest, NothingMeasuredIsNoSuccess) {
  const CommandResult result = bench({"--tokens", "16777216", "--engine", "local"});
  EXPECT_EQ(result.exit_code, 1) << result.error;
  EXPECT_THAT(result.output, HasSubstr("nothing was measured: every line is left out; take fewer"));
  EXPECT_THAT(result.output, Not(HasSubstr("WRONG")));
}

TEST(BenchTest, HelpHasExamples) {
  const CommandResult result = run_command({SWITCHYARD_CLI, "bench", "--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("examples:\n  switchyard bench --ranks 2"));
  EXPECT_THAT(result.output, Not(HasSubstr("--baseline-file")));
}

}  // namespace
}  // namespace switchyard::test
