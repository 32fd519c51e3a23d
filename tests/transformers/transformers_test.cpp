// SPDX-License-Identifier: Apache-2.0
//
// `switchyard run` on the checkpoints of generate.py, one of each family as transformers saves it,
// against the output of transformers' own block in float32.

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "cli/run_layer.h"

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
  } inputs[] = {{"activations.safetensors", 4e-3}};
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

INSTANTIATE_TEST_SUITE_P(Models, TransformersTest, ::testing::ValuesIn(models()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace switchyard::test
