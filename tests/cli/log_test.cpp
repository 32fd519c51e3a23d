// SPDX-License-Identifier: Apache-2.0
//
// What the command logs at each level, and where to.

#include <algorithm>
#include <filesystem>

#include <gmock/gmock.h>

#include "cli/run_layer.h"

namespace switchyard::test {
namespace {

using ::testing::HasSubstr;

CommandResult run_logged(const std::string& level, const std::string& file,
                         const Arguments& arguments) {
  Arguments words{"env",
                  "SWITCHYARD_LOG_LEVEL=" + level,
                  "SWITCHYARD_LOG_FILE=" + file,
                  SWITCHYARD_CLI,
                  "run",
                  "--model",
                  SWITCHYARD_DATA_DIR "/tiny-moe",
                  "--tokens",
                  "20"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run_command(words);
}

TEST(CommandLogTest, OneRankOfTheShippedModelWarnsOfNothing) {
  const CommandResult result = run({});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.error, "");
}

TEST(CommandLogTest, InfoIsOneLineForEachGroupAndExchange) {
  for (const std::string engine : {"local", "shm"}) {
    const CommandResult result = run_logged("info", "", {"--ranks", "2", "--engine", engine});
    EXPECT_EQ(result.exit_code, 0);
    const auto count = [&](const std::string& words) {
      std::size_t found = 0;
      for (std::size_t at = 0; (at = result.error.find(words, at)) != std::string::npos; ++at) {
        ++found;
      }
      return found;
    };
    EXPECT_EQ(count(" info  group: engine " + engine + ", 2 ranks from "), 1u) << result.error;
    EXPECT_EQ(count(" on 1 host, which share windows; timeout 30000 ms; rank 0 may run on "), 1u);
    EXPECT_EQ(count(" info  exchange: 2 ranks on CPUs through windows: layout batched, 32 experts, "
                    "top-4, hidden 256, at most 10 tokens per rank, "),
              1u);
    EXPECT_EQ(count(" bytes of windows and "), 1u);
    EXPECT_EQ(count("; CUDA module "), 1u);
    EXPECT_EQ(count(" debug "), 0u);
  }
}

TEST(CommandLogTest, DebugSaysWhatCallsDecide) {
  const CommandResult result =
      run_logged("debug", "", {"--ranks", "2", "--engine", "local", "--scheme", "fp8_block"});
  EXPECT_THAT(result.error, HasSubstr("debug exchange: dispatch: tokens bf16 [10, 256], quantized "
                                      "here to fp8_block, ids i32 [10, 4]"));
  EXPECT_THAT(result.error, HasSubstr("debug exchange: received: rows e4m3 [16, 20, 256] as "
                                      "fp8_block, "));
  EXPECT_THAT(result.error, HasSubstr("debug exchange: combine: rows bf16 [320, 256] return as "
                                      "they are, reduce per_expert"));
}

TEST(CommandLogTest, LinesGoToAFileForEachRank) {
  const TempFolder folder;
  const CommandResult result = run_logged("debug", folder.path() + "/%h.%r.log", {"--ranks", "2"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.error, "");
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  ASSERT_GE(names.size(), 2u);
  const std::string first = read_file(folder.file(names[names.size() - 2]));
  const std::string second = read_file(folder.file(names.back()));
  EXPECT_THAT(names.back(), HasSubstr(".1.log"));
  EXPECT_THAT(first, HasSubstr("rank 0 info  group: engine shm"));
  EXPECT_THAT(first, ::testing::Not(HasSubstr("rank 1 ")));
  EXPECT_THAT(second, HasSubstr("rank 1 debug exchange: dispatch"));
}

TEST(CommandLogTest, AFileThatCannotBeOpenedIsSaidOnce) {
  const CommandResult result = run_logged("info", "/no/such/folder/x", {"--engine", "local"});
  EXPECT_EQ(result.exit_code, 0);
  const std::string words = "SWITCHYARD_LOG_FILE: /no/such/folder/x: No such file or directory";
  const std::size_t at = result.error.find(words);
  EXPECT_NE(at, std::string::npos) << result.error;
  EXPECT_EQ(result.error.find(words, at + 1), std::string::npos);
  EXPECT_THAT(result.error, HasSubstr("info  group: "));
}

}  // namespace
}  // namespace switchyard::test
