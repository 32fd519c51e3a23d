// SPDX-License-Identifier: Apache-2.0

#include "io/model_config.h"

#include <string>
#include <utility>

#include <gmock/gmock.h>

#include "support/errors.h"
#include "support/published_configs.h"
#include "support/temp_folder.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::ElementsAre;
using ::testing::SizeIs;

ModelConfig parse(const std::string& text) { return parse_model_config(text, "dir/config.json"); }

TEST(ModelConfigTest, ReadsDeepSeekV2) {
  const ModelConfig lite = parse(kV2Lite);
  EXPECT_STREQ(lite.family->name, "deepseek_v2");
  EXPECT_EQ(lite.hidden, 2048);
  EXPECT_EQ(lite.moe_intermediate, 1408);
  EXPECT_EQ(lite.shared_intermediate, 2816);
  EXPECT_EQ(lite.num_experts(), 64);
  EXPECT_EQ(lite.num_topk(), 6);
  EXPECT_EQ(lite.router.group_selection, GroupSelection::kNone);
  EXPECT_FALSE(lite.is_moe_layer(0));
  EXPECT_TRUE(lite.is_moe_layer(1));
  EXPECT_TRUE(lite.is_moe_layer(26));
  EXPECT_THAT(lite.moe_layers, SizeIs(26));

  const ModelConfig full = parse(kV2);
  EXPECT_EQ(full.router.scoring, Scoring::kSoftmax);
  EXPECT_EQ(full.router.group_selection, GroupSelection::kMax);
  EXPECT_EQ(full.router.num_groups, 8);
  EXPECT_EQ(full.router.topk_groups, 3);
  EXPECT_FALSE(full.router.norm_topk_prob);
  EXPECT_EQ(full.router.routed_scaling_factor, 16.0f);
  EXPECT_FALSE(full.has_router_bias);
  EXPECT_FALSE(full.has_fp8_weights);
}

TEST(ModelConfigTest, DeepSeekV2NormsOrScalesButV3DoesBoth) {
  const ModelConfig v2 =
      parse(replaced(kV2, "\"norm_topk_prob\": false", "\"norm_topk_prob\": true"));
  EXPECT_TRUE(v2.router.norm_topk_prob);
  EXPECT_EQ(v2.router.routed_scaling_factor, 1.0f);
  // With one expert per token the weight is scaled even if the norm is on.
  const ModelConfig top1 =
      parse(replaced(replaced(kV2, "\"norm_topk_prob\": false", "\"norm_topk_prob\": true"),
                     "_tok\": 6", "_tok\": 1"));
  EXPECT_FALSE(top1.router.norm_topk_prob);
  EXPECT_EQ(top1.router.routed_scaling_factor, 16.0f);

  const ModelConfig v3 = parse(kV3);
  EXPECT_TRUE(v3.router.norm_topk_prob);
  EXPECT_EQ(v3.router.routed_scaling_factor, 2.5f);
}

TEST(ModelConfigTest, ReadsDeepSeekV3) {
  const ModelConfig config = parse(kV3);
  EXPECT_STREQ(config.family->name, "deepseek_v3");
  EXPECT_EQ(config.router.scoring, Scoring::kSigmoid);
  EXPECT_EQ(config.router.group_selection, GroupSelection::kTop2Sum);
  EXPECT_EQ(config.router.num_groups, 8);
  EXPECT_EQ(config.router.topk_groups, 4);
  EXPECT_TRUE(config.has_router_bias);
  EXPECT_TRUE(config.has_fp8_weights);
  EXPECT_EQ(config.shared_intermediate, 2048);
  EXPECT_EQ(config.moe_layers.front(), 3);
  EXPECT_EQ(config.moe_layers.back(), 60);

  const ModelConfig kimi = parse(kKimiK2);
  EXPECT_STREQ(kimi.family->name, "deepseek_v3");
  EXPECT_EQ(kimi.num_experts(), 384);
  EXPECT_EQ(kimi.router.num_groups, 1);
}

TEST(ModelConfigTest, AbsentKeysTakeTheDefaultsOfTheFamily) {
  const std::string sizes =
      R"("n_routed_experts": 256, "hidden_size": 64, "moe_intermediate_size": 32,
 "num_experts_per_tok": 8, "num_hidden_layers": 5})";
  const ModelConfig v3 = parse(R"({"model_type": "deepseek_v3", )" + sizes);
  EXPECT_EQ(v3.router.scoring, Scoring::kSigmoid);
  EXPECT_EQ(v3.router.group_selection, GroupSelection::kTop2Sum);
  EXPECT_EQ(v3.router.num_groups, 8);
  EXPECT_EQ(v3.router.topk_groups, 4);
  EXPECT_EQ(v3.router.routed_scaling_factor, 2.5f);
  EXPECT_TRUE(v3.router.norm_topk_prob);
  EXPECT_EQ(v3.shared_intermediate, 32);
  EXPECT_THAT(v3.moe_layers, ElementsAre(3, 4));

  const ModelConfig v2 = parse(R"({"model_type": "deepseek_v2", )" + sizes);
  EXPECT_EQ(v2.router.scoring, Scoring::kSoftmax);
  EXPECT_EQ(v2.router.group_selection, GroupSelection::kNone);
  EXPECT_EQ(v2.router.routed_scaling_factor, 1.0f);
  EXPECT_FALSE(v2.router.norm_topk_prob);
  EXPECT_THAT(v2.moe_layers, SizeIs(5));
  // An explicit null means that there are no shared experts.
  EXPECT_EQ(parse(R"({"model_type": "deepseek_v2", "n_shared_experts": null, )" + sizes)
                .shared_intermediate,
            0);
}

TEST(ModelConfigTest, ReadsQwen) {
  const ModelConfig qwen2 = parse(kQwen2);
  EXPECT_STREQ(qwen2.family->name, "qwen2_moe");
  EXPECT_EQ(qwen2.shared_intermediate, 20480);
  EXPECT_TRUE(qwen2.has_shared_gate);
  EXPECT_FALSE(qwen2.router.norm_topk_prob);
  EXPECT_THAT(qwen2.moe_layers, SizeIs(28));

  const ModelConfig qwen3 = parse(kQwen3);
  EXPECT_STREQ(qwen3.family->name, "qwen3_moe");
  EXPECT_EQ(qwen3.shared_intermediate, 0);
  EXPECT_FALSE(qwen3.has_shared_gate);
  EXPECT_TRUE(qwen3.router.norm_topk_prob);
  EXPECT_EQ(qwen3.router.scoring, Scoring::kSoftmax);
  // Newer writers name the count num_local_experts.
  EXPECT_EQ(parse(replaced(kQwen3, "\"num_experts\"", "\"num_local_experts\"")).num_experts(), 128);
}

TEST(ModelConfigTest, DenseLayersOfEachRule) {
  const std::string qwen =
      R"({"model_type": "qwen3_moe", "hidden_size": 8, "moe_intermediate_size": 8,
 "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 8, )";
  EXPECT_THAT(parse(qwen + R"("decoder_sparse_step": 2})").moe_layers, ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(parse(qwen + R"("decoder_sparse_step": 3, "mlp_only_layers": [5, 99]})").moe_layers,
              ElementsAre(2));
  EXPECT_THAT(parse(qwen + R"("mlp_only_layers": [7, 0, 1]})").moe_layers,
              ElementsAre(2, 3, 4, 5, 6));
  const std::string deepseek = R"({"model_type": "deepseek_v2", "hidden_size": 8,
 "moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 8, )";
  EXPECT_THAT(parse(deepseek + R"("first_k_dense_replace": 3, "moe_layer_freq": 2})").moe_layers,
              ElementsAre(4, 6));
}

TEST(ModelConfigTest, ReadsFamiliesWithTheBlockOfAnother) {
  const ModelConfig olmoe = parse(kOlmoe);
  EXPECT_STREQ(olmoe.family->name, "olmoe");
  EXPECT_EQ(olmoe.moe_intermediate, 1024);
  EXPECT_FALSE(olmoe.router.norm_topk_prob);
  EXPECT_EQ(olmoe.shared_intermediate, 0);
  EXPECT_THAT(olmoe.moe_layers, SizeIs(16));

  for (const char* text : {kGlm, kDots}) {
    const ModelConfig config = parse(text);
    EXPECT_EQ(config.router.scoring, Scoring::kSigmoid);
    EXPECT_EQ(config.router.group_selection, GroupSelection::kTop2Sum);
    EXPECT_EQ(config.router.num_groups, 1);
    EXPECT_TRUE(config.has_router_bias);
    EXPECT_TRUE(config.router.norm_topk_prob);
    EXPECT_EQ(config.router.routed_scaling_factor, 2.5f);
  }
  EXPECT_EQ(parse(kGlm).shared_intermediate, 1536);
  EXPECT_EQ(parse(kGlm).moe_layers.front(), 3);
  EXPECT_EQ(parse(kDots).shared_intermediate, 2816);
  EXPECT_EQ(parse(kDots).moe_layers.front(), 1);

  const ModelConfig next = parse(kQwen3Next);
  EXPECT_EQ(next.num_experts(), 512);
  EXPECT_EQ(next.shared_intermediate, 512);
  EXPECT_TRUE(next.has_shared_gate);
  EXPECT_TRUE(next.router.norm_topk_prob);
  EXPECT_TRUE(parse(replaced(kQwen3Next, "\"norm_topk_prob\"", "\"x\"")).router.norm_topk_prob);
}

TEST(ModelConfigTest, ReadsTheTextConfigOfAWrapper) {
  const auto wrapped = [](const std::string& type, const std::string& text,
                          const std::string& more = "") {
    return "{\"model_type\": \"" + type + "\", \"hidden_size\": 7, \"vision_config\": {}" + more +
           ", \"text_config\": " + text + "}";
  };
  for (const char* text : {kV2, kV3, kKimiK2, kQwen2, kQwen3, kMixtral8x7B, kOlmoe, kGlm, kDots}) {
    const ModelConfig inner = parse(text);
    const ModelConfig outer = parse(wrapped("some_vl", text));
    EXPECT_EQ(outer.family, inner.family);
    EXPECT_EQ(outer.hidden, inner.hidden);
    EXPECT_EQ(outer.num_experts(), inner.num_experts());
    EXPECT_EQ(outer.has_fp8_weights, inner.has_fp8_weights);
    EXPECT_EQ(outer.path, "dir/config.json");
  }
  // The wrapper says what the text is, and how it is quantized.
  const std::string untyped =
      replaced(replaced(kKimiK2, "\"model_type\": \"kimi_k2\",", ""), "\"architectures\"", "\"x\"");
  const ModelConfig kimi = parse(wrapped(
      "kimi_k25", untyped,
      R"(, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]})"));
  EXPECT_STREQ(kimi.family->name, "deepseek_v3");
  EXPECT_TRUE(kimi.has_fp8_weights);
  const ModelConfig qwen =
      parse(wrapped("qwen3_5_moe", replaced(replaced(kQwen3Next, "qwen3_next", "qwen3_5_moe_text"),
                                            "true", "false")));
  EXPECT_STREQ(qwen.family->name, "qwen3_5_moe");
  EXPECT_TRUE(qwen.router.norm_topk_prob);  // its block always does
  EXPECT_TRUE(qwen.has_shared_gate);
}

// transformers keeps a null as None; keys that a block does not read mean nothing to it.
TEST(ModelConfigTest, NullMeansNone) {
  const auto with_null = [](const char* text, const std::string& key, const std::string& value) {
    return parse(replaced(text, "\"" + key + "\": " + value, "\"" + key + "\": null"));
  };
  for (const auto& [key, value] : {std::pair("n_group", "8"), std::pair("topk_group", "4")}) {
    const ModelConfig config = with_null(kV3, key, value);
    EXPECT_EQ(config.router.num_groups, 1);
    EXPECT_EQ(config.router.topk_groups, 1);
    EXPECT_TRUE(config.has_router_bias);
  }
  EXPECT_EQ(with_null(kV3, "routed_scaling_factor", "2.5").router.routed_scaling_factor, 1.0f);
  EXPECT_FALSE(with_null(kV3, "norm_topk_prob", "true").router.norm_topk_prob);
  EXPECT_FALSE(with_null(kQwen3Next, "norm_topk_prob", "true").router.norm_topk_prob);
  EXPECT_EQ(with_null(kV3, "n_shared_experts", "1").shared_intermediate, 0);
  EXPECT_EQ(with_null(kV3, "first_k_dense_replace", "3").moe_layers.front(), 0);
  EXPECT_EQ(with_null(kV3, "topk_method", "\"noaux_tc\"").router.group_selection,
            GroupSelection::kTop2Sum);
  EXPECT_EQ(with_null(kV3, "scoring_func", "\"sigmoid\"").router.scoring, Scoring::kSigmoid);
  EXPECT_EQ(with_null(kV2, "topk_method", "\"group_limited_greedy\"").router.group_selection,
            GroupSelection::kNone);
  EXPECT_THAT(with_null(kQwen3, "mlp_only_layers", "[]").moe_layers, SizeIs(48));
  EXPECT_FALSE(
      parse(replaced(kV3, "\"quantization_config\":", "\"quantization_config\": null, \"x\":"))
          .has_fp8_weights);
  const struct {
    const char* text;
    const char* key;
    const char* value;
  } refused[] = {{kV2, "n_group", "8"},
                 {kV2Lite, "hidden_act", "\"silu\""},
                 {kQwen2, "shared_expert_intermediate_size", "20480"},
                 {kQwen3, "decoder_sparse_step", "1"},
                 {kQwen3, "num_experts", "128"},
                 {kMixtral8x7B, "intermediate_size", "14336"},
                 {kMixtral8x7B, "num_experts_per_tok", "2"}};
  for (const auto& c : refused) {
    SCOPED_TRACE(c.key);
    expect_error(Errc::kMalformedFile, std::string(c.key) + " is null, must be a value",
                 [&] { with_null(c.text, c.key, c.value); });
  }
}

TEST(ModelConfigTest, ReadsMixtral) {
  const ModelConfig config = parse(kMixtral8x7B);
  EXPECT_STREQ(config.family->name, "mixtral");
  EXPECT_EQ(config.num_experts(), 8);
  EXPECT_EQ(config.moe_intermediate, 14336);
  EXPECT_TRUE(config.router.norm_topk_prob);
  EXPECT_EQ(config.shared_intermediate, 0);
  EXPECT_THAT(config.moe_layers, SizeIs(32));
}

TEST(ModelConfigTest, ReadsTinyMoeFromItsFolder) {
  const ModelConfig config = read_model_config(SWITCHYARD_DATA_DIR "/tiny-moe");
  EXPECT_STREQ(config.family->name, "tiny_moe");
  EXPECT_EQ(config.path, SWITCHYARD_DATA_DIR "/tiny-moe/config.json");
  EXPECT_EQ(config.hidden, 256);
  EXPECT_EQ(config.moe_intermediate, 128);
  EXPECT_EQ(config.shared_intermediate, 256);
  EXPECT_EQ(config.num_experts(), 32);
  EXPECT_EQ(config.num_topk(), 4);
  EXPECT_TRUE(config.router.norm_topk_prob);
  EXPECT_EQ(config.router.scoring, Scoring::kSoftmax);
  EXPECT_THAT(config.moe_layers, ElementsAre(0, 1, 2, 3));
}

TEST(ModelConfigTest, MissingFileIsAnInvalidArgument) {
  const TempFolder folder;
  expect_invalid("has no config.json, must be the folder of a model",
                 [&] { read_model_config(folder.path()); });
}

}  // namespace
}  // namespace switchyard
