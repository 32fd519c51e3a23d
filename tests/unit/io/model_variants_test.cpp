// SPDX-License-Identifier: Apache-2.0
//
// What families have besides a softmax and silu(gate) * up: published configs, and files of
// tests/transformers/models with one thing wrong.

#include <filesystem>
#include <string>
#include <utility>

#include <gmock/gmock.h>

#include "io/model_config.h"
#include "io/moe_layer.h"
#include "support/errors.h"
#include "support/published_configs.h"
#include "support/rewrite_checkpoint.h"
#include "support/temp_folder.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr const char* kGptOss20b = R"({"architectures": ["GptOssForCausalLM"],
 "model_type": "gpt_oss", "hidden_act": "silu", "hidden_size": 2880, "intermediate_size": 2880,
 "experts_per_token": 4, "num_experts_per_tok": 4, "num_local_experts": 32, "num_hidden_layers": 24,
 "swiglu_limit": 7.0, "quantization_config": {"quant_method": "mxfp4"}})";
constexpr const char* kScout = R"({"architectures": ["Llama4ForConditionalGeneration"],
 "model_type": "llama4", "text_config": {"model_type": "llama4_text", "hidden_size": 5120,
 "intermediate_size": 8192, "intermediate_size_mlp": 16384, "interleave_moe_layer_step": 1,
 "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_local_experts": 16}})";
constexpr const char* kErnie21b = R"({"model_type": "ernie4_5_moe", "hidden_size": 2560,
 "moe_intermediate_size": 1536, "moe_k": 6, "moe_layer_start_index": 1, "moe_layer_end_index": 27,
 "moe_layer_interval": 1, "moe_num_experts": 64, "moe_num_shared_experts": 2,
 "num_hidden_layers": 28, "use_bias": false})";
constexpr const char* kMiniMaxM2 = R"({"model_type": "minimax_m2", "hidden_size": 3072,
 "intermediate_size": 1536, "num_experts_per_tok": 8, "num_hidden_layers": 62,
 "num_local_experts": 256, "scoring_func": "sigmoid", "use_routing_bias": true,
 "quantization_config": {"activation_scheme": "dynamic", "fmt": "float8_e4m3fn",
 "quant_method": "fp8", "weight_block_size": [128, 128]}})";
constexpr const char* kHunYuanA13b = R"({"model_type": "hunyuan_v1_moe", "hidden_size": 4096,
 "intermediate_size": 3072, "moe_topk": [8, 8], "num_experts": 64, "num_hidden_layers": 2})";
constexpr const char* kPhi = R"({"model_type": "phimoe", "hidden_size": 4096,
 "intermediate_size": 6400, "num_experts_per_tok": 2, "num_hidden_layers": 32,
 "num_local_experts": 16, "router_jitter_noise": 0.02})";

ModelConfig parse(const std::string& text) { return parse_model_config(text, "dir/config.json"); }

TEST(ModelVariantsTest, GptOss) {
  const ModelConfig config = parse(kGptOss20b);
  EXPECT_EQ(config.activation, activations::kGptOss);
  EXPECT_TRUE(config.has_expert_bias && config.has_router_bias && config.router.bias_on_logits);
  EXPECT_TRUE(config.router.norm_topk_prob && config.has_mxfp4_weights);
  EXPECT_THAT(config.moe_layers, SizeIs(24));
  const ModelConfig other = parse(replaced(kGptOss20b, "7.0", "3.5, \"swiglu_alpha\": 1.25"));
  EXPECT_EQ(other.activation, (Activation{ActivationKind::kClampedSwiGlu, 1.25f, 1.0f, 3.5f}));
  expect_error(Errc::kMalformedFile, "swiglu_limit is 0, must be a number from 1e-06",
               [&] { parse(replaced(kGptOss20b, "7.0", "0")); });
  expect_error(Errc::kNotSupported, "quant_method \"awq\", must be \"fp8\" or \"mxfp4\"",
               [&] { parse(replaced(kGptOss20b, "\"mxfp4\"", "\"awq\"")); });
  expect_error(Errc::kNotSupported, "quant_method \"mxfp4\", must be \"fp8\";",
               [&] { parse(replaced(kMiniMaxM2, "\"fp8\"", "\"mxfp4\"")); });
}

TEST(ModelVariantsTest, Llama4) {
  const ModelConfig config = parse(kScout);
  EXPECT_EQ(config.router.scoring, Scoring::kSigmoid);
  EXPECT_TRUE(config.weighs_input);
  EXPECT_EQ(config.shared_intermediate, 8192);
  EXPECT_THAT(config.moe_layers, SizeIs(48));
  EXPECT_THAT(parse(replaced(kScout, "_step\": 1", "_step\": 20")).moe_layers, ElementsAre(19, 39));
  EXPECT_THAT(
      parse(replaced(kScout, "_step\": 1", "_step\": 1, \"moe_layers\": [3, 1]")).moe_layers,
      ElementsAre(1, 3));
  expect_error(Errc::kMalformedFile, "moe_layers is an array, must be layers below 48",
               [&] { parse(replaced(kScout, "_step\": 1", "_step\": 1, \"moe_layers\": [48]")); });
  expect_error(Errc::kMalformedFile, "num_experts_per_tok is 2, must be 1: the weight is applied",
               [&] { parse(replaced(kScout, "_tok\": 1", "_tok\": 2")); });
}

TEST(ModelVariantsTest, Ernie) {
  const ModelConfig config = parse(kErnie21b);
  EXPECT_EQ(config.num_experts(), 64);
  EXPECT_EQ(config.num_topk(), 6);
  EXPECT_EQ(config.shared_intermediate, 3072);
  EXPECT_TRUE(config.has_router_bias && config.router.norm_topk_prob);
  EXPECT_FALSE(config.router.bias_on_logits || config.has_shared_bias);
  EXPECT_FLOAT_EQ(config.router.norm_min, 1e-12f);
  EXPECT_THAT(config.moe_layers, SizeIs(27));
  EXPECT_THAT(parse(replaced(replaced(kErnie21b, "interval\": 1", "interval\": 5"),
                             "_end_index\": 27", "_end_index\": 14"))
                  .moe_layers,
              ElementsAre(4, 9, 14));
  expect_error(Errc::kMalformedFile, "moe_k is 65, must be",
               [&] { parse(replaced(kErnie21b, "moe_k\": 6", "moe_k\": 65")); });
  expect_error(Errc::kMalformedFile, "moe_k is 64, but there are 63 experts", [&] {
    parse(replaced(replaced(kErnie21b, "moe_k\": 6", "moe_k\": 64"), "experts\": 64",
                   "experts\": 63"));
  });
}

TEST(ModelVariantsTest, MiniMaxM2AndPhiMoe) {
  const ModelConfig config = parse(kMiniMaxM2);
  EXPECT_EQ(config.router.scoring, Scoring::kSigmoid);
  EXPECT_EQ(config.router.group_selection, GroupSelection::kNone);
  EXPECT_TRUE(config.router.norm_topk_prob && config.has_router_bias && config.has_fp8_weights);
  const ModelConfig phi = parse(kPhi);
  EXPECT_EQ(phi.router.scoring, Scoring::kSparseMixer);
  EXPECT_EQ(phi.router.jitter, 0.02f);
  expect_error(Errc::kMalformedFile, "num_experts_per_tok is 3, must be 2, as sparsemixer chooses",
               [&] { parse(replaced(kPhi, "_tok\": 2", "_tok\": 3")); });
}

TEST(ModelVariantsTest, HunYuanStatesSizesOfEveryLayer) {
  const ModelConfig config = parse(kHunYuanA13b);
  EXPECT_EQ(config.num_topk(), 8);
  EXPECT_EQ(config.shared_intermediate, 3072);
  for (const char* list : {"[8, 7]", "[]", "[0, 0]", "[65, 65]", "[1.5, 1.5]", "[\"8\", \"8\"]"}) {
    expect_error(Errc::kMalformedFile, "must be a number from 1 to 64, or a list of equal ones",
                 [&] { parse(replaced(kHunYuanA13b, "[8, 8]", list)); });
  }
}

/// A copy of a model of tests/transformers/models, whose tensors `change` may change.
class Copied {
 public:
  explicit Copied(const char* model, const std::function<void(TensorMap&)>& change = nullptr) {
    const std::filesystem::path from = std::filesystem::path(SWITCHYARD_MODELS_DIR) / model;
    std::filesystem::copy(from, folder_.path());
    if (change) rewrite_checkpoint(folder_.path(), change);
  }

  MoeLayerWeights load(const std::vector<std::int32_t>& ids) const {
    return load_moe_layer(Checkpoint(folder_.path()), read_model_config(folder_.path()), -1, ids);
  }

 private:
  TempFolder folder_;
};

const std::string kExperts = "model.layers.1.mlp.experts.";

TEST(ModelVariantsTest, InterleavedRowsAreTakenApart) {
  TensorMap file;
  const MoeLayerWeights got = Copied("gpt_oss", [&](TensorMap& tensors) {
                                for (const auto& [name, tensor] : tensors)
                                  file[name] = clone(tensor);
                              }).load({4, 1});
  const Tensor& fused = file[kExperts + "gate_up_proj"];  // [E, H, 2 I]
  const Tensor& bias = file[kExperts + "gate_up_proj_bias"];
  const std::int64_t hidden = fused.shape(1);
  const std::int64_t width = fused.shape(2) / 2;
  for (const std::int64_t n : {0, 1}) {
    const std::int64_t id = n == 0 ? 4 : 1;
    for (std::int64_t i = 0; i < width; ++i) {
      for (std::int64_t h = 0; h < hidden; ++h) {
        const auto* pair = fused.as<std::uint16_t>() + (id * hidden + h) * 2 * width + 2 * i;
        ASSERT_EQ(got.experts.gate.as<std::uint16_t>()[(n * width + i) * hidden + h], pair[0]);
        ASSERT_EQ(got.experts.up.as<std::uint16_t>()[(n * width + i) * hidden + h], pair[1]);
      }
      const std::uint32_t first = bias.as<std::uint16_t>()[id * 2 * width + 2 * i];
      std::uint32_t loaded = 0;
      std::memcpy(&loaded, got.experts.gate_bias.as<float>() + n * width + i, sizeof(loaded));
      ASSERT_EQ(loaded, first << 16);
    }
  }
  EXPECT_EQ(got.experts.down_bias.view().describe(), "f32 [2, 32]");
  EXPECT_EQ(got.router_bias.view().describe(), "f32 [6]");
  EXPECT_EQ(Copied("gpt_oss").load({}).experts.gate.view().describe(), "bf16 [0, 8, 32]");
}

TEST(ModelVariantsTest, Mxfp4WeightsStayPacked) {
  const MoeLayerWeights got = Copied("gpt_oss_mxfp4").load({2, 0, 3});
  EXPECT_EQ(got.experts.block, weight_blocks::kMxfp4);
  EXPECT_EQ(got.experts.up.view().describe(), "e2m1 [3, 96, 64]");
  EXPECT_EQ(got.experts.up_scale.view().describe(), "e8m0 [3, 96, 2]");
}

TEST(ModelVariantsTest, WrongFilesAreNamed) {
  const auto expect_refusal = [](const char* model, const char* phrase, const auto& change) {
    SCOPED_TRACE(phrase);
    const Copied copied(model, change);
    expect_error(Errc::kMalformedFile, phrase, [&] { copied.load({0}); });
  };
  expect_refusal("gpt_oss_mxfp4", "down_proj_scales\"", [](TensorMap& tensors) {
    tensors[kExperts + "down_proj_scales"].as<std::uint8_t>()[3] = 255;
  });
  expect_refusal("gpt_oss_mxfp4", "have a 255, which is NaN", [](TensorMap& tensors) {
    tensors[kExperts + "gate_up_proj_scales"].as<std::uint8_t>()[0] = 255;
  });
  expect_refusal("gpt_oss_mxfp4", "has no tensor",
                 [](TensorMap& tensors) { tensors.erase(kExperts + "gate_up_proj_scales"); });
  expect_refusal("gpt_oss_mxfp4", "but config.json says [4, 64, 3, 16]", [](TensorMap& tensors) {
    tensors[kExperts + "down_proj_blocks"] = Tensor(DType::kU8, {4, 64, 3, 15});
  });
  expect_refusal("gpt_oss_mxfp4", "is i8 [4, 64, 3], must be u8", [](TensorMap& tensors) {
    tensors[kExperts + "down_proj_scales"] = Tensor(DType::kI8, {4, 64, 3});
  });
  expect_refusal("gpt_oss", "but config.json says [6, 16]", [](TensorMap& tensors) {
    tensors[kExperts + "gate_up_proj_bias"] = Tensor(DType::kBF16, {6, 15});
  });
  expect_refusal("ernie4_5_moe", "up_proj.bias", [](TensorMap& tensors) {
    tensors.erase("model.layers.1.mlp.shared_experts.up_proj.bias");
  });
  expect_refusal("ernie4_5_moe", "is f32 [2, 8], but config.json says [8]", [](TensorMap& tensors) {
    tensors["model.layers.1.mlp.moe_statics.e_score_correction_bias"] = Tensor(DType::kF32, {2, 8});
  });
}

}  // namespace
}  // namespace switchyard
