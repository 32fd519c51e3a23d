// SPDX-License-Identifier: Apache-2.0
//
// `switchyard run` as a user sees it: results, bits, files, usage errors.

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include <gmock/gmock.h>

#include "cli/run_layer.h"
#include "io/safetensors.h"
#include "support/temp_folder.h"

namespace switchyard::test {
namespace {

using ::testing::HasSubstr;
TEST(RunTest, ReportsWhatItDid) {
  const nlohmann::json json = run_json({"--ranks", "4"});
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["engine"], "shm");
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_EQ(json["tokens"], 1024);
  EXPECT_EQ(json["experts"], 32);
  EXPECT_LE(json["rel_l2"], 5e-3);
  EXPECT_GT(json["rel_l2"], 1e-5);
  EXPECT_EQ(json["rows_per_rank"].size(), 4u);
  EXPECT_GT(json["balance"]["placed"], 0.25);
  EXPECT_GE(json["balance"]["balanced"], json["balance"]["placed"]);
  EXPECT_LE(json["balance"]["with_redundant"], 1);
  EXPECT_EQ(json["balance"]["redundant"], 4);
  EXPECT_EQ(json["hosts"], 1);
  EXPECT_EQ(json["host_crossings"], 0);
  EXPECT_EQ(json["rows_per_expert"].size(), 32u);
  std::int64_t sum = 0;
  for (const auto& rows : json["rows_per_expert"]) sum += rows.get<std::int64_t>();
  EXPECT_EQ(sum, 1024 * 4);
  EXPECT_EQ(json["stages"].size(), 6u);
  EXPECT_EQ(json["stages"][1]["name"], "quantize+dispatch");
  EXPECT_GT(json["stages"][1]["wire_bytes"], 0);
  EXPECT_GE(json["stages"][3]["us"]["max"], json["stages"][3]["us"]["min"]);
}

// The promise: per_expert and exact experts give the same bits for every number of ranks, engine,
// split and run.
TEST(RunTest, RowsBetweenHostsAreCounted) {
  const std::int64_t two = run_json({"--ranks", "4", "--hosts", "2"})["host_crossings"];
  const std::int64_t four = run_json({"--ranks", "4", "--hosts", "4"})["host_crossings"];
  EXPECT_GT(two, 0);
  EXPECT_LE(two, 1024);  // there is one other host
  EXPECT_GT(four, two);
  EXPECT_LE(four, 3 * 1024);
}

TEST(RunTest, PerExpertGivesTheSameBitsForEveryRankCountAndEngine) {
  std::vector<Arguments> places;
  for (const char* engine : {"local", "shm"}) {
    for (const std::string ranks : {"1", "2", "3", "4", "7", "8"}) {
      places.push_back(
          {"--engine", engine, "--ranks", ranks, "--split", ranks == "3" ? "uneven" : "even"});
    }
  }
  for (const char* scheme : {"none", "fp8_block", "fp8_token"}) {
    const auto reports = expect_same_output({"--scheme", scheme}, places);
    EXPECT_EQ(reports.front()["engine"], "local");
    EXPECT_EQ(reports.back()["engine"], "shm");
  }
}

TEST(RunTest, PerRankGivesTheSameBitsOnBothEngines) {
  for (const char* scheme : {"none", "fp8_block", "fp8_tensor"}) {
    for (const char* ranks : {"1", "3", "4", "8"}) {
      expect_same_output({"--ranks", ranks, "--scheme", scheme, "--reduce", "per_rank"},
                         {{"--engine", "local"}, {"--engine", "shm"}, {"--engine", "shm"}});
    }
  }
}

TEST(RunTest, OutputHoldsOneTensorInInputOrder) {
  const TempFolder folder;
  const std::string path = folder.file("out.safetensors");
  run_json({"--ranks", "3", "--tokens", "50", "--split", "0,49,1", "--output", path});
  const auto file = SafetensorsFile::open(path);
  EXPECT_THAT(file->names(), ::testing::ElementsAre("output"));
  EXPECT_EQ(file->tensor("output").describe(), "bf16 [50, 256]");
}

TEST(RunTest, MicroBatchesGiveTheSameBytesRowsAndFile) {
  const auto reports = expect_same_output(
      {"--ranks", "3", "--split", "uneven", "--tokens", "100", "--repeat", "2"},
      {{"--micro-batches", "1"}, {"--micro-batches", "2"}, {"--micro-batches", "5"}});
  const nlohmann::json& whole = reports.front();
  EXPECT_EQ(whole["micro_batches"], 1);
  EXPECT_EQ(reports.back()["micro_batches"], 5);
  for (const nlohmann::json& json : reports) {
    EXPECT_EQ(json["rows_per_rank"], whole["rows_per_rank"]);
    EXPECT_EQ(json["rows_per_expert"], whole["rows_per_expert"]);
    for (const std::size_t stage : {1u, 4u}) {
      EXPECT_EQ(json["stages"][stage]["wire_bytes"], whole["stages"][stage]["wire_bytes"]);
    }
  }
  EXPECT_THAT(run({"--tokens", "10", "--micro-batches", "3"}).output,
              HasSubstr("10 tokens in 3 micro-batches per rank"));
  const TempFolder folder;
  const CommandResult dump = run({"--micro-batches", "2", "--dump", folder.file("dump")});
  EXPECT_EQ(dump.exit_code, 2);
  EXPECT_THAT(dump.error, HasSubstr("--dump with --micro-batches 2, must be 1"));
}

TEST(RunTest, DumpHoldsWhatEachRankReceivedAndReturned) {
  const TempFolder folder;
  const std::string dump = folder.file("dump");
  const nlohmann::json json =
      run_json({"--ranks", "2", "--tokens", "10", "--scheme", "fp8_block", "--dump", dump});
  std::int64_t rows = 0;
  for (int rank = 0; rank < 2; ++rank) {
    const auto file = SafetensorsFile::open(dump + "/rank" + std::to_string(rank) + ".safetensors");
    EXPECT_THAT(file->names(), ::testing::UnorderedElementsAre(
                                   "recv_x", "scales", "expert_num_tokens", "row_source",
                                   "topk_ids", "topk_weights", "output"));
    const TensorView recv = file->tensor("recv_x");
    EXPECT_EQ(recv.dtype(), DType::kE4M3);
    EXPECT_EQ(recv.shape(0), json["rows_per_rank"][static_cast<std::size_t>(rank)]);
    EXPECT_EQ(file->tensor("scales").shape(1), 2);
    rows += recv.shape(0);
    // Sources ascend by (expert, rank, token, k).
    const TensorView sources = file->tensor("row_source");
    for (std::int64_t i = 1; i < sources.shape(0); ++i) {
      const auto* now = sources.as<std::int32_t>() + i * 4;
      EXPECT_TRUE(std::lexicographical_compare(now - 4, now, now, now + 4));
    }
  }
  EXPECT_EQ(rows, 40);
}

TEST(RunTest, LocalClassServesItsOwnTokens) {
  const nlohmann::json json = run_json({"--ranks", "2", "--prepare", "local"});
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["rows_per_rank"], (std::vector<int>{512, 512}));
  EXPECT_EQ(json["stages"][1]["wire_bytes"], 0);
}

TEST(RunTest, TextReportNamesEverything) {
  const CommandResult result = run({"--ranks", "4", "--scheme", "fp8_block"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* words :
       {"switchyard 0.1.0", "engine   shm, 4 ranks", "scheme fp8_block", "reduce per_expert",
        "quantize+dispatch", "rank   3", "expert load", "||out - ref||", ": ok"}) {
    EXPECT_THAT(result.output, HasSubstr(words));
  }
  EXPECT_EQ(result.error, "");
  EXPECT_THAT(run({"--ranks", "2"}).output, HasSubstr("wire     rows as bf16, "));
  EXPECT_THAT(run({"--prepare", "local"}).output, HasSubstr("wire     nothing travels\n"));
}

struct BadCall {
  Arguments arguments;
  int exit_code;
  const char* words;
};

TEST(RunTest, UsageErrorsAreNamed) {
  const std::vector<BadCall> calls{
      {{"--ranks", "0"}, 2, "switchyard: invalid_argument: run: --ranks: Value 0 not in range"},
      {{"--scheme", "fp8"}, 2, "--scheme: \"fp8\", must be none, fp8_block, "},
      {{"--scheme", "fp8"}, 2, "; nearest: \"fp8_block\", \"fp8_block_deepep\", \"fp8_tensor\";"},
      {{"--prepare", "lowlatency"}, 2, "; nearest: \"low_latency\"; see switchyard help run\n"},
      {{"--prepare", "pplx"}, 2, "--prepare"},
      {{"data/other"}, 2, "run: \"data/other\" belongs to no option; write --model data/other;"},
      {{"--global-scale", "2"}, 2, "--global-scale is given with --scheme none, must be nvfp4"},
      {{"--scheme", "nvfp4", "--global-scale", "-1"}, 2, "--global-scale is \"-1\""},
      {{"--scheme", "nvfp4", "--static-scale", "2"}, 2, "must be fp8_tensor or int8_tensor"},
      {{"--scheme", "fp8_tensor", "--static-scale", "inf"}, 2, "--static-scale is \"inf\""},
      {{"--scheme", "mxfp8", "--intermediate-scale", "2"}, 2, "--intermediate-scale is given with"},
      {{"--scheme", "nvfp4", "--intermediate-scale", "x"}, 2, "must be a number above 0"},
      {{"--alignment", "128"}, 2, "--alignment is 128 with --prepare low_latency"},
      {{"--prepare", "all_gather", "--reduce", "per_expert"},
       2,
       "--prepare all_gather sums per_rank"},
      {{"--seed", "-1"}, 2, "--seed"},
      {{"--tokens", "-1"}, 2, "--tokens"},
      {{"--dump", "/proc/x"}, 2, "--dump is /proc/x, which cannot be made"},
      {{"--output", "/no/such/file"}, 2, "there is no folder /no/such"},
      {{"--split", "1,2"}, 2, "--split names 2 ranks, but there are 1"},
      {{"--split", "1,x"}, 2, "must be even, uneven or N,N,..."},
      {{"--ranks", "2", "--engine", "local", "--split", "1,2"},
       2,
       "adds up to 3 tokens, but the input has 1024"},
      {{"--tokens", "2000"}, 2, "--tokens is 2000, but"},
      {{"--layer", "0"}, 2, "layer 0"},
      {{"--layer", "99"}, 2, "layer 99"},
      {{"--input", "/no/such/file"}, 2, "/no/such/file"},
      {{"--no-such-option"}, 2, "no option \"--no-such-option\"; see switchyard help run\n"},
  };
  for (const BadCall& call : calls) {
    const CommandResult result = run(call.arguments);
    EXPECT_EQ(result.exit_code, call.exit_code) << call.words << result.error;
    EXPECT_THAT(result.error + result.output, HasSubstr(call.words));
  }
  const CommandResult no_model = run({}, "/no/such/model");
  EXPECT_EQ(no_model.exit_code, 2);
  EXPECT_THAT(no_model.error, HasSubstr("run: --model is /no/such/model, no such folder"));
  const CommandResult alone = run_command({SWITCHYARD_CLI, "run", SWITCHYARD_DATA_DIR "/tiny-moe"});
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_THAT(alone.error, HasSubstr("write --model " SWITCHYARD_DATA_DIR "/tiny-moe; see "));
  EXPECT_THAT(run_command({SWITCHYARD_CLI, "--version"}).output,
              ::testing::StartsWith("switchyard 0.1.0"));
  EXPECT_EQ(run_command({SWITCHYARD_CLI, "run", "--help"}).exit_code, 0);
}

// The launcher refuses, once, what every rank would refuse.
TEST(RunTest, AWrongOptionIsSaidOnce) {
  for (const Arguments& wrong :
       {Arguments{"--split", "foo"}, Arguments{"--tokens", "2000"},
        Arguments{"--scheme", "nvfp4", "--global-scale", "x"}, Arguments{"--layer", "99"},
        Arguments{"--prepare", "all_to_all", "--reduce", "per_expert"}}) {
    Arguments arguments{"--ranks", "8"};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    const CommandResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(std::ranges::count(result.error, '\n'), 1) << result.error;
  }
}

TEST(RunTest, ZeroTokensAreARun) {
  for (const char* prepare : {"low_latency", "elastic_decode", "elastic_prefill", "all_gather",
                              "all_to_all", "all_to_all_one_sided", "local"}) {
    for (const char* scheme : {"none", "nvfp4"}) {
      const nlohmann::json json =
          run_json({"--ranks", "2", "--engine", "local", "--tokens", "0", "--split", "0,0",
                    "--prepare", prepare, "--scheme", scheme});
      EXPECT_EQ(json["tokens"], 0) << prepare;
      EXPECT_EQ(json["wire_bytes"], 0) << prepare;
      EXPECT_EQ(json["rows_per_rank"], (std::vector<int>{0, 0})) << prepare;
      EXPECT_TRUE(json["rel_l2"].is_null());
    }
  }
}

// The largest magnitude is 0, from which no scale follows.
TEST(RunTest, RowsOfZerosHaveAScale) {
  const TempFolder folder;
  const Tensor hidden(DType::kBF16, {12, 256});
  std::fill_n(hidden.as<std::uint16_t>(), hidden.view().num_elements(), std::uint16_t{0});
  const std::string input = folder.file("in.safetensors");
  const NamedTensor tensor{"hidden_states", hidden};
  write_safetensors(input, {&tensor, 1});
  run_json({"--input", input, "--scheme", "nvfp4"});
  run_json({"--input", input, "--scheme", "fp8_tensor", "--static-scale", "auto"});
}

// NaN and infinity stay in their rows, and nothing crashes.
TEST(RunTest, NaNAndInfinityStayInTheirRows) {
  const TempFolder folder;
  constexpr std::int64_t kTokens = 12;
  const Tensor hidden(DType::kBF16, {kTokens, 256});
  for (std::int64_t i = 0; i < hidden.view().num_elements(); ++i) {
    hidden.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(0x3C00 + i % 64);
  }
  hidden.as<std::uint16_t>()[3 * 256 + 5] = 0x7FC0;  // NaN in token 3
  hidden.as<std::uint16_t>()[7 * 256] = 0x7F80;      // infinity in token 7
  const std::string input = folder.file("in.safetensors");
  const NamedTensor tensor{"hidden_states", hidden};
  write_safetensors(input, {&tensor, 1});
  for (const char* scheme : {"none", "fp8_block", "fp8_token"}) {
    const std::string path = folder.file("out.safetensors");
    run_json({"--ranks", "3", "--input", input, "--scheme", scheme, "--output", path});
    const auto file = SafetensorsFile::open(path);
    const auto* out = file->tensor("output").as<std::uint16_t>();
    for (std::int64_t t = 0; t < kTokens; ++t) {
      if (t == 3 || t == 7) continue;
      for (std::int64_t h = 0; h < 256; ++h) {
        ASSERT_LT(out[t * 256 + h] & 0x7FFF, 0x7F80) << scheme << " token " << t;
      }
    }
  }
}

}  // namespace
}  // namespace switchyard::test
