// SPDX-License-Identifier: Apache-2.0
//
// The same layer under other prefixes and with all experts in one tensor: what is loaded has the
// same bytes.

#include <cstring>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "io/moe_layer.h"
#include "support/errors.h"
#include "support/rewrite_checkpoint.h"
#include "support/synthetic_checkpoint.h"
#include "support/temp_folder.h"

namespace switchyard {
namespace {

using namespace test;

void expect_same(const TensorView& got, const TensorView& want, const char* what) {
  ASSERT_EQ(got.has_value(), want.has_value()) << what;
  if (!got.has_value()) return;
  ASSERT_EQ(got.describe(), want.describe()) << what;
  if (got.num_bytes() == 0) return;
  EXPECT_EQ(std::memcmp(got.data(), want.data(), got.num_bytes()), 0) << what;
}

void expect_same_experts(const ExpertTensors& got, const ExpertTensors& want) {
  expect_same(got.gate, want.gate, "gate");
  expect_same(got.up, want.up, "up");
  expect_same(got.down, want.down, "down");
  expect_same(got.gate_scale, want.gate_scale, "gate_scale");
  expect_same(got.up_scale, want.up_scale, "up_scale");
  expect_same(got.down_scale, want.down_scale, "down_scale");
}

MoeLayerWeights load(const std::string& folder, std::span<const std::int32_t> ids) {
  const ModelConfig config = read_model_config(folder);
  return load_moe_layer(Checkpoint(folder), config, -1, ids);
}

FusedNames fused_names(SyntheticFamily family, std::int32_t layer) {
  const Family names = family_of(family, -1);
  return {fmt::format("model.layers.{}.{}.", layer, names.block), names.gate, names.up, names.down};
}

TEST(MoeLayerLayoutsTest, FusedExpertsOfEveryFamilyAreRead) {
  const std::int32_t ids[] = {3, 0, 3};
  for (int family = 0; family < static_cast<int>(SyntheticFamily::kTinyMoe); ++family) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const bool is_transposed : {false, true}) {
        SyntheticOptions options;
        options.family = static_cast<SyntheticFamily>(family);
        options.dtype = dtype;
        options.num_tokens = 1;
        SCOPED_TRACE(fmt::format("{} {} {}", name_of(options.family), name_of(dtype),
                                 is_transposed ? "transposed" : "plain"));
        const TempFolder folder;
        const SyntheticCheckpoint made = write_synthetic_checkpoint(folder.path(), options);
        const MoeLayerWeights want = load(folder.path(), ids);
        const MoeLayerWeights want_none = load(folder.path(), {});
        rewrite_checkpoint(folder.path(), [&](TensorMap& tensors) {
          fuse_experts(tensors, fused_names(options.family, made.layer), is_transposed);
        });
        const MoeLayerWeights got = load(folder.path(), ids);
        expect_same_experts(got.experts, want.experts);
        expect_same_experts(got.shared, want.shared);
        expect_same(got.router_gate, want.router_gate, "router_gate");
        expect_same(got.router_bias, want.router_bias, "router_bias");
        expect_same(got.shared_gate, want.shared_gate, "shared_gate");
        expect_same_experts(load(folder.path(), {}).experts, want_none.experts);
      }
    }
  }
}

// Of 192 columns and 144 rows; a block of 128 rows of the fused tensor holds gate and up.
TEST(MoeLayerLayoutsTest, FusedScalesAreSharedByNoProjection) {
  const TempFolder folder;
  const SyntheticCheckpoint made = write_synthetic_checkpoint(
      folder.path(),
      {.family = SyntheticFamily::kDeepSeekV3, .dtype = DType::kE4M3, .num_tokens = 1});
  rewrite_checkpoint(folder.path(), [&](TensorMap& tensors) {
    fuse_experts(tensors, fused_names(SyntheticFamily::kDeepSeekV3, made.layer));
  });
  const std::int32_t ids[] = {0};
  expect_error(Errc::kNotSupported,
               "is e4m3 [8, 288, 192], must be gate and up of multiples of 128",
               [&] { load(folder.path(), ids); });
}

TEST(MoeLayerLayoutsTest, FusedScalesAreSplit) {
  const TempFolder folder;
  folder.write("config.json",
               R"({"model_type": "qwen3_moe", "hidden_size": 200, "moe_intermediate_size": 128,
 "num_experts": 2, "num_experts_per_tok": 1, "num_hidden_layers": 1})");
  const std::string block = "model.layers.0.mlp.";
  TensorMap tensors;
  tensors[block + "gate.weight"] = Tensor(DType::kBF16, {2, 200});
  tensors[block + "experts.gate_up_proj"] = Tensor(DType::kE4M3, {2, 256, 200});
  tensors[block + "experts.down_proj"] = Tensor(DType::kE4M3, {2, 200, 128});
  for (const auto& [name, rows, columns] :
       {std::tuple("gate_up_proj", 2, 2), std::tuple("down_proj", 2, 1)}) {
    Tensor scales(DType::kF32, {2, rows, columns});
    std::iota(scales.as<float>(), scales.as<float>() + 2 * rows * columns, 1.0f);
    tensors[block + "experts." + name + "_scale_inv"] = std::move(scales);
  }
  write_safetensors(folder.file("model.safetensors"), named(tensors));
  const std::int32_t ids[] = {1};
  const ExpertTensors experts = load(folder.path(), ids).experts;
  const auto expect = [](const Tensor& scales, const std::vector<float>& want) {
    EXPECT_EQ(std::vector<float>(scales.as<float>(), scales.as<float>() + want.size()), want);
  };
  EXPECT_EQ(experts.gate_scale.view().describe(), "f32 [1, 1, 2]");
  expect(experts.gate_scale, {5, 6});
  expect(experts.up_scale, {7, 8});
  EXPECT_EQ(experts.down_scale.view().describe(), "f32 [1, 2, 1]");
  expect(experts.down_scale, {3, 4});
  tensors[block + "experts.gate_up_proj_scale_inv"].as<float>()[6] = -1;  // of up of expert 1
  write_safetensors(folder.file("model.safetensors"), named(tensors));
  expect_error(Errc::kMalformedFile,
               "element 6 of the weight scales \"" + block + "experts.gate_up_proj_scale_inv\"",
               [&] { load(folder.path(), ids); });

  folder.write("config.json",
               R"({"model_type": "gpt_oss", "hidden_size": 200, "intermediate_size": 128,
 "num_local_experts": 2, "num_experts_per_tok": 1, "num_hidden_layers": 1})");
  tensors[block + "router.weight"] = Tensor(DType::kBF16, {2, 200});
  write_safetensors(folder.file("model.safetensors"), named(tensors));
  expect_error(Errc::kNotSupported,
               "is e4m3 [2, 256, 200], must be scaled weights as [experts, "
               "outputs, inputs], rows of gate before rows of up",
               [&] { load(folder.path(), ids); });
}

// Each family has its own names alone; Llama-4's experts are in two tensors.
TEST(MoeLayerLayoutsTest, NamesOfAnotherFamilyAreNone) {
  const TempFolder folder;
  write_synthetic_checkpoint(folder.path(),
                             {.family = SyntheticFamily::kDeepSeekV3, .num_tokens = 1});
  const ModelConfig deep_seek = read_model_config(folder.path());
  ModelConfig config = deep_seek;
  config.family = find_family("llama4");
  const Checkpoint checkpoint(folder.path());
  const std::int32_t layer = deep_seek.moe_layers.front();
  expect_error(Errc::kInvalidArgument, "feed_forward.router.weight",
               [&] { load_moe_layer(checkpoint, config, layer, std::vector<std::int32_t>{0}); });
}

TEST(MoeLayerLayoutsTest, BiasesThatTheFamilyLacksAreRefused) {
  for (const bool is_fused : {false, true}) {
    const std::string experts = is_fused ? "experts." : "experts.0.";
    const std::string end = is_fused ? "_proj_bias" : "_proj.bias";
    for (const std::string& name :
         {experts + (is_fused ? "gate_up" : "gate") + end, experts + "down" + end,
          std::string("shared_experts.up_proj.bias")}) {
      SCOPED_TRACE(name);
      const TempFolder folder;
      const SyntheticCheckpoint made = write_synthetic_checkpoint(
          folder.path(), {.family = SyntheticFamily::kDeepSeekV3, .num_tokens = 1});
      const FusedNames names = fused_names(SyntheticFamily::kDeepSeekV3, made.layer);
      rewrite_checkpoint(folder.path(), [&](TensorMap& tensors) {
        if (is_fused) fuse_experts(tensors, names);
        tensors[names.block + name] = Tensor(DType::kBF16, {8});
      });
      const std::int32_t ids[] = {0};
      expect_error(Errc::kNotSupported,
                   "has \"" + names.block + name + "\", must be experts without biases",
                   [&] { load(folder.path(), ids); });
    }
  }
}

TEST(MoeLayerLayoutsTest, FusedShapesThatDoNotFitAreNamed) {
  const TempFolder folder;
  const SyntheticCheckpoint made =
      write_synthetic_checkpoint(folder.path(), {.family = SyntheticFamily::kQwen3Moe});
  const std::string block = fmt::format("model.layers.{}.mlp.", made.layer);
  rewrite_checkpoint(folder.path(), [&](TensorMap& tensors) {
    fuse_experts(tensors, {block});
    tensors[block + "experts.down_proj"] = Tensor(DType::kBF16, {9, 24, 136});
  });
  const std::int32_t ids[] = {0};
  expect_error(Errc::kMalformedFile,
               "experts.down_proj\" of " + folder.path() +
                   "/model.safetensors is bf16 [9, 24, 136], but config.json says [9, 136, 24]",
               [&] { load(folder.path(), ids); });
}

TEST(MoeLayerLayoutsTest, PrefixesOfWrappersAreFoundAndOthersNamed) {
  const std::int32_t ids[] = {1, 2};
  std::string before = "model.";
  const TempFolder folder;
  write_synthetic_checkpoint(folder.path(), {.family = SyntheticFamily::kMixtral});
  const MoeLayerWeights want = load(folder.path(), ids);
  const auto rename_to = [&](const std::string& prefix) {
    rewrite_checkpoint(folder.path(),
                       [&](TensorMap& tensors) { rename_prefix(tensors, before, prefix); });
    before = prefix;
  };
  for (const char* prefix : {"language_model.model.", "model.language_model.", "language_model."}) {
    SCOPED_TRACE(prefix);
    rename_to(prefix);
    expect_same_experts(load(folder.path(), ids).experts, want.experts);
  }
  rename_to("transformer.");
  expect_invalid(
      "holds none of the MoE layers 0 (no tensor \"model.layers.0.block_sparse_moe.gate.weight\"); "
      "its layers begin with \"transformer.layers.\", must begin with \"model.layers.\", ",
      [&] { load(folder.path(), ids); });
  rename_to("");
  expect_same_experts(load(folder.path(), ids).experts, want.experts);
  before = "layers.";
  rename_to("h.");
  expect_invalid("; its first tensor is \"h.0.block_sparse_moe.experts.0.w1.weight\"",
                 [&] { load(folder.path(), ids); });
}

}  // namespace
}  // namespace switchyard
