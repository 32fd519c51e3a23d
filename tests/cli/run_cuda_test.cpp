// SPDX-License-Identifier: Apache-2.0
//
// `switchyard run --device cuda` gives the same bits as `--device cpu`; without a GPU it says so.
// Ranks are processes or threads, which may share GPUs.

#include <gmock/gmock.h>

#include "cli/run_layer.h"
#include "device/cuda_module.h"
#include "support/temp_folder.h"

namespace switchyard::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(RunCudaTest, WithoutAGpuItSaysWhy) {
  if (why_no_cuda().empty()) GTEST_SKIP() << "this machine has a GPU";
  const CommandResult result = run({"--device", "cuda"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.error, HasSubstr("run: --device cuda, but CUDA cannot be used: "));
}

TEST(RunCudaTest, ExpertsFitTheDevice) {
  const CommandResult result = run({"--experts", "cublas"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.error, HasSubstr("must be --device cuda, or --experts exact"));
}

class RunCudaBitsTest : public testing::TestWithParam<const char*> {};

TEST_P(RunCudaBitsTest, AreThoseOfTheCpu) {
  if (!why_no_cuda().empty()) GTEST_SKIP() << why_no_cuda();
  const TempFolder folder;
  struct Run {
    const char* scheme;
    const char* engine;
  };
  // Most ranks are threads: CUDA starts once for all of them.
  for (const auto& [scheme, engine] :
       {Run{"none", "local"}, {"fp8_block", "shm"}, {"nvfp4", "local"}}) {
    const auto output_of = [&](const char* device) {
      const std::string path = folder.file(std::string(device) + ".safetensors");
      const nlohmann::json json =
          run_json({"--device", device, "--ranks", "4", "--engine", engine, "--prepare", GetParam(),
                    "--scheme", scheme, "--micro-batches", "2", "--repeat", "3", "--output", path});
      EXPECT_EQ(json["ok"], true);
      EXPECT_EQ(json["device"], device);
      return read_file(path);
    };
    const std::string want = output_of("cpu");
    ASSERT_FALSE(want.empty());
    EXPECT_EQ(output_of("cuda"), want) << GetParam() << " " << scheme;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RunCudaBitsTest,
                         testing::Values("low_latency", "elastic_decode", "elastic_prefill",
                                         "all_gather", "all_to_all", "all_to_all_one_sided",
                                         "local"));

TEST(RunCudaTest, DumpsWhatTheCpuDumps) {
  if (!why_no_cuda().empty()) GTEST_SKIP() << why_no_cuda();
  const TempFolder folder;
  for (const char* prepare : {"low_latency", "elastic_prefill", "all_to_all"}) {
    for (const char* device : {"cpu", "cuda"}) {
      run_json({"--device", device, "--ranks", "2", "--prepare", prepare, "--scheme", "fp8_block",
                "--tokens", "200", "--dump", folder.file(device)});
    }
    for (const char* rank : {"rank0.safetensors", "rank1.safetensors"}) {
      EXPECT_EQ(read_file(folder.file(std::string("cuda/") + rank)),
                read_file(folder.file(std::string("cpu/") + rank)))
          << prepare << " " << rank;
    }
  }
}

TEST(RunCudaTest, ReportsWhereItRan) {
  if (!why_no_cuda().empty()) GTEST_SKIP() << why_no_cuda();
  const nlohmann::json json = run_json({"--device", "cuda", "--ranks", "2"});
  EXPECT_EQ(json["gpus"].size(), 2u);
  EXPECT_FALSE(json["gpus"][0].get<std::string>().empty());
  EXPECT_TRUE(json["shared_gpu"].is_boolean());
  EXPECT_GT(json["window_bytes"], 0);
  EXPECT_TRUE(json["wire_bytes"].is_null());
  std::int64_t sum = 0;
  for (const auto& rows : json["rows_per_expert"]) sum += rows.get<std::int64_t>();
  EXPECT_EQ(sum, 1024 * 4);
  EXPECT_GT(json["stages"][3]["us"]["median"], 0);
  EXPECT_THAT(run({"--device", "cuda"}).output, HasSubstr("device   cuda: "));
}

TEST(RunCudaTest, LogsItsKernels) {
  if (!why_no_cuda().empty()) GTEST_SKIP() << why_no_cuda();
  const CommandResult result =
      run_command({"env", "SWITCHYARD_LOG_LEVEL=debug", SWITCHYARD_CLI, "run", "--model",
                   SWITCHYARD_DATA_DIR "/tiny-moe", "--device", "cuda", "--engine", "local",
                   "--ranks", "2", "--prepare", "elastic_decode"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  for (const char* call : {"dispatch", "combine"}) {
    EXPECT_THAT(result.error, ContainsRegex("debug exchange: " + std::string(call) +
                                            ": a kernel of [1-9][0-9]* CTAs, rows by way of "));
  }
}

}  // namespace
}  // namespace switchyard::test
