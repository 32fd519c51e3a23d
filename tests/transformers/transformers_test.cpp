// SPDX-License-Identifier: Apache-2.0
//
// `switchyard run` on the checkpoints of generate.py, one of each family as transformers saves it,
// against the output of transformers' own block in float32.

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "cli/run_layer.h"
#include "io/safetensors.h"

namespace switchyard::test {
namespace {

std::vector<std::string> models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(SWITCHYARD_MODELS_DIR)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

class TransformersTest : public ::testing::TestWithParam<std::string> {};

TEST_P(TransformersTest, TheBlockGivesTheSame) {
  const std::string folder = SWITCHYARD_MODELS_DIR "/" + GetParam();
  const struct {
    const char* input;
    double bound;
  } inputs[] = {{"activations.safetensors", 4e-3}, {"activations_f32.safetensors", 1e-5}};
  for (const auto& [input, bound] : inputs) {
    for (const char* ranks : {"1", "3"}) {
      SCOPED_TRACE(std::string(input) + ", " + ranks + " ranks");
      const nlohmann::json json = run_json(
          {"--ranks", ranks, "--engine", "local", "--input", folder + "/" + input}, folder);
      EXPECT_EQ(json["ok"], true);
      ASSERT_TRUE(json["rel_l2"].is_number());
      EXPECT_LE(json["rel_l2"], bound);
    }
  }
}

// Biases, packed weights, weights on the input: the reference implementation has them all.
TEST(TransformersVariantsTest, SchemesAndClassesEqualTheReferenceImplementation) {
  const std::pair<const char*, const char*> ways[] = {{"elastic_decode", "none"},
                                                      {"elastic_prefill", "fp8_block"},
                                                      {"all_gather", "nvfp4"},
                                                      {"low_latency", "int8_tensor"}};
  for (const char* model : {"gpt_oss_mxfp4", "llama4", "ernie4_5_moe"}) {
    for (const auto& [prepare, scheme] : ways) {
      for (const char* input : {"activations.safetensors", "activations_f32.safetensors"}) {
        SCOPED_TRACE(fmt::format("{} {} {} {}", model, prepare, scheme, input));
        const std::string folder = SWITCHYARD_MODELS_DIR "/" + std::string(model);
        const nlohmann::json json =
            run_json({"--ranks", "3", "--engine", "local", "--prepare", prepare, "--scheme", scheme,
                      "--input", folder + "/" + input},
                     folder);
        EXPECT_EQ(json["ok"], true);
        EXPECT_EQ(json["check"]["compared_rows"], json["check"]["rows"]);
        EXPECT_EQ(json["check"]["compared_tokens"], json["tokens"]);
      }
    }
  }
}

TEST(TransformersVariantsTest, F32RowsStayF32OrAreSaidToBeRounded) {
  const std::string folder = SWITCHYARD_MODELS_DIR "/mixtral";
  const TempFolder out;
  const std::string file = out.file("out.safetensors");
  const auto text = [&](const char* scheme) {
    const CommandResult result = run(
        {"--input", folder + "/activations_f32.safetensors", "--scheme", scheme, "--output", file},
        folder);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return result.output;
  };
  EXPECT_THAT(text("none"), ::testing::Not(::testing::HasSubstr("rounded")));
  EXPECT_EQ(SafetensorsFile::open(file)->tensor("output").dtype(), DType::kF32);
  EXPECT_THAT(text("fp8_block"), ::testing::HasSubstr("hidden_states is f32 and was rounded"));
  EXPECT_EQ(SafetensorsFile::open(file)->tensor("output").dtype(), DType::kBF16);
}

INSTANTIATE_TEST_SUITE_P(Models, TransformersTest, ::testing::ValuesIn(models()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace switchyard::test
