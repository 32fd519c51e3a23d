// SPDX-License-Identifier: Apache-2.0

#include "measure/workload.h"

#include <gtest/gtest.h>

#include "measure/bench_shape.h"
#include "support/errors.h"
#include "support/published_configs.h"
#include "support/temp_folder.h"

namespace switchyard::measure {
namespace {

TEST(WorkloadTest, NamesHaveTheSizesOfThePublishedConfigs) {
  const test::TempFolder folder;
  const std::pair<const char*, const char*> models[] = {{"deepseek-v3", test::kV3},
                                                        {"kimi-k2", test::kKimiK2},
                                                        {"qwen3-30b", test::kQwen3},
                                                        {"mixtral-8x7b", test::kMixtral8x7B}};
  for (const auto& [name, config] : models) {
    const Workload known = find_workload(name);
    const Workload read = find_workload(folder.write(std::string(name) + ".json", config));
    EXPECT_EQ(known.hidden, read.hidden) << name;
    EXPECT_EQ(known.num_experts, read.num_experts) << name;
    EXPECT_EQ(known.num_topk, read.num_topk) << name;
    EXPECT_EQ(known.intermediate, read.intermediate) << name;
  }
}

// What `run` reads; the rest in its words.
TEST(WorkloadTest, QuantizedModelsAreThoseThatRunReads) {
  const test::TempFolder folder;
  const auto with = [&](const std::string& quantization) {
    std::string config = test::kQwen3;
    config.insert(config.find('{') + 1, "\"quantization_config\": " + quantization + ",");
    return folder.write("config.json", config);
  };
  const std::string fp8 =
      with(R"({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})");
  EXPECT_EQ(find_workload(fp8).hidden, find_workload("qwen3-30b").hidden);
  for (const char* method : {"awq", "gptq", "modelopt", "compressed-tensors", "bitsandbytes"}) {
    const std::string path = with("{\"quant_method\": \"" + std::string(method) + "\"}");
    test::expect_error(Errc::kNotSupported,
                       path + ": quantization_config has quant_method \"" + method +
                           "\", must be \"fp8\"; dequantize the checkpoint first",
                       [&] { find_workload(path); });
  }
}

TEST(WorkloadTest, AllNamesAreFoundAndOthersAreRefused) {
  for (const Workload& workload : named_workloads()) {
    EXPECT_EQ(find_workload(workload.name).hidden, workload.hidden);
    EXPECT_LE(workload.num_topk, workload.num_experts);
  }
  EXPECT_EQ(named_workloads().size(), 8u);
  test::expect_invalid("workload is \"gpt-5\", must be a config.json or one of deepseek-v3",
                       [] { find_workload("gpt-5"); });
}

TEST(BenchShapeTest, WhatDoesNotGoTogetherIsRefused) {
  BenchShape plain;
  plain.workload = {"small", 16, 4, 2, 8};
  plain.routing = RoutingPattern::parse("uniform", 4, 2);
  EXPECT_NO_THROW(check_shape(plain));
  BenchShape shape = plain;
  shape.num_layers = 2;
  shape.operation = Operation::kCombine;
  test::expect_invalid("--layers is 2", [&] { check_shape(shape); });
  shape = plain;
  shape.layout = Layout::kByRank;
  shape.reduce = Reduce::kPerExpert;
  test::expect_invalid("--layout by_rank", [&] { check_shape(shape); });
  shape = plain;
  shape.layout = Layout::kAllGather;
  test::expect_error(Errc::kNotSupported, "all_gather", [&] { check_shape(shape); });
  shape = plain;
  shape.scheme = schemes::kMxfp6E3M2;
  test::expect_error(Errc::kNotSupported, "is simulated", [&] { check_shape(shape); });
  shape = plain;
  shape.num_tokens = 0;
  test::expect_invalid("0 tokens", [&] { check_shape(shape); });
  shape = plain;
  shape.workload.num_topk = 3;
  test::expect_invalid("routing is for 4 experts and top-2, workload has 4 and 3",
                       [&] { check_shape(shape); });
}

TEST(BenchShapeTest, OperationNamesGoBothWays) {
  for (const char* name : {"dispatch", "combine", "pair", "layer"}) {
    EXPECT_STREQ(name_of(enum_from_name<Operation>(name).value()), name);
  }
  EXPECT_FALSE(enum_from_name<Operation>("reduce").has_value());
}

}  // namespace
}  // namespace switchyard::measure
