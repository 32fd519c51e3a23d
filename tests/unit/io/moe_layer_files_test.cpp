// SPDX-License-Identifier: Apache-2.0
//
// What load_moe_layer reads, and its errors for checkpoints that do not fit their config.json.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "io/moe_layer.h"
#include "support/errors.h"
#include "support/synthetic_checkpoint.h"
#include "support/temp_folder.h"

namespace switchyard {
namespace {

using namespace test;

TEST(MoeLayerFilesTest, ARankReadsOnlyTheFilesOfItsExperts) {
  const TempFolder folder;
  write_synthetic_checkpoint(folder.path(),
                             {.family = SyntheticFamily::kQwen3Moe, .num_shards = 3});
  // Experts 0-2, 3-5 and 6-8 are in one file each; the router is in the first.
  std::filesystem::remove(folder.file("model-00003-of-00003.safetensors"));
  const ModelConfig config = read_model_config(folder.path());
  const Checkpoint checkpoint(folder.path());
  EXPECT_EQ(load_moe_layer(checkpoint, config, 1, 0, 6).experts.gate.shape(0), 6);
  expect_error(Errc::kMalformedFile, "model-00003-of-00003.safetensors, which does not exist",
               [&] { load_moe_layer(checkpoint, config, 1, 3, 4); });
}

TEST(MoeLayerFilesTest, ExpertsComeInTheOrderAskedFor) {
  const TempFolder folder;
  write_synthetic_checkpoint(folder.path(),
                             {.family = SyntheticFamily::kDeepSeekV3, .dtype = DType::kE4M3});
  const ModelConfig config = read_model_config(folder.path());
  const Checkpoint checkpoint(folder.path());
  const std::int32_t ids[] = {5, 2, 5};
  const MoeLayerWeights some = load_moe_layer(checkpoint, config, 2, ids);
  const MoeLayerWeights all = load_moe_layer(checkpoint, config, 2, 0, 8);
  EXPECT_EQ(some.experts.gate.view().describe(), "e4m3 [3, 144, 192]");
  EXPECT_EQ(some.experts.gate_scale.view().describe(), "f32 [3, 2, 2]");
  const std::int64_t size = 144 * 192;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(std::memcmp(some.experts.up.as<std::byte>() + i * size,
                          all.experts.up.as<std::byte>() + ids[i] * size, size),
              0);
    EXPECT_EQ(std::memcmp(some.experts.down_scale.as<float>() + i * 4,
                          all.experts.down_scale.as<float>() + ids[i] * 4, 16),
              0);
  }
  const MoeLayerWeights none = load_moe_layer(checkpoint, config, 2, 8, 0);
  EXPECT_EQ(none.experts.down.view().describe(), "e4m3 [0, 192, 144]");
  EXPECT_EQ(none.experts.down_scale.view().describe(), "f32 [0, 2, 2]");
  EXPECT_EQ(none.router_bias.view().describe(), "f32 [8]");
}

TEST(MoeLayerFilesTest, WrongLayersAndExpertsAreNamed) {
  const TempFolder folder;
  write_synthetic_checkpoint(folder.path(),
                             {.family = SyntheticFamily::kDeepSeekV3, .num_tokens = 1});
  const ModelConfig config = read_model_config(folder.path());
  const Checkpoint checkpoint(folder.path());
  const auto load = [&](int layer, int first, int count) {
    load_moe_layer(checkpoint, config, layer, first, count);
  };
  expect_invalid("layer 0 of " + folder.path() + " is dense; its MoE layers are 2-3",
                 [&] { load(0, 0, 1); });
  expect_invalid("does not hold layer 3", [&] { load(3, 0, 1); });
  expect_invalid("it holds the MoE layers 2", [&] { load(3, 0, 1); });
  expect_invalid("has layers 0 to 3", [&] { load(4, 0, 1); });
  expect_invalid("layer -2", [&] { load(-2, 0, 1); });
  expect_invalid("experts 7 to 8 are asked for", [&] { load(2, 7, 2); });
  expect_invalid("has experts 0 to 7", [&] { load(2, -1, 2); });
  const std::int32_t ids[] = {8};
  expect_invalid("expert 8 is asked for", [&] { load_moe_layer(checkpoint, config, 2, ids); });
}

// Rewrites a V3 checkpoint with one tensor replaced or removed.
void rewrite_without(const std::string& folder, const std::string& name,
                     const Tensor* replacement) {
  const auto file = SafetensorsFile::open(folder + "/model.safetensors");
  std::vector<NamedTensor> tensors;
  for (const std::string& each : file->names()) {
    if (each != name) tensors.push_back({each, file->tensor(each)});
  }
  ASSERT_EQ(tensors.size() + 1, file->names().size()) << name;
  if (replacement != nullptr) tensors.push_back({name, replacement->view()});
  write_safetensors(folder + "/model.safetensors", tensors);
}

TEST(MoeLayerFilesTest, TensorsThatDoNotFitTheConfigAreNamed) {
  const std::string prefix = "model.layers.2.mlp.";
  const struct {
    const char* name;
    DType dtype;
    std::vector<std::int64_t> shape;
    const char* phrase;
  } cases[] = {
      {"experts.1.gate_proj.weight",
       DType::kE4M3,
       {192, 144},
       "e4m3 [192, 144], but config.json says [144, 192]"},
      {"experts.1.gate_proj.weight",
       DType::kBF16,
       {144, 192},
       "must be the dtype of the other experts"},
      {"experts.0.down_proj.weight",
       DType::kI8,
       {192, 144},
       "is i8 [192, 144], must be bf16, f16, f32 or e4m3"},
      {"experts.0.up_proj.weight",
       DType::kE4M3,
       {27648},
       "e4m3 [27648], but config.json says [144, 192]"},
      {"experts.1.up_proj.weight_scale_inv",
       DType::kF32,
       {1, 2},
       "f32 [1, 2], but config.json says [2, 2]"},
      {"experts.1.up_proj.weight_scale_inv",
       DType::kI32,
       {2, 2},
       "i32 [2, 2], must be f32, bf16, f16 or e8m0"},
      {"gate.weight", DType::kBF16, {9, 192}, "bf16 [9, 192], but config.json says [8, 192]"},
      {"gate.weight", DType::kE4M3, {8, 192}, "must be bf16, f16 or f32"},
      {"gate.e_score_correction_bias", DType::kF32, {7}, "f32 [7], but config.json says [8]"},
      {"shared_experts.down_proj.weight", DType::kE4M3, {192, 145}, "[192, 145]"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.phrase);
    const TempFolder folder;
    write_synthetic_checkpoint(
        folder.path(),
        {.family = SyntheticFamily::kDeepSeekV3, .dtype = DType::kE4M3, .num_tokens = 1});
    const ModelConfig config = read_model_config(folder.path());
    const Tensor replacement(c.dtype, c.shape);
    rewrite_without(folder.path(), prefix + c.name, &replacement);
    const Checkpoint changed(folder.path());
    expect_error(Errc::kMalformedFile, c.phrase,
                 [&] { load_moe_layer(changed, config, -1, 0, 2); });
    expect_error(Errc::kMalformedFile, "\"" + prefix + c.name + "\" of " + folder.path(),
                 [&] { load_moe_layer(changed, config, -1, 0, 2); });

    rewrite_without(folder.path(), prefix + c.name, nullptr);
    const Checkpoint lacking(folder.path());
    const bool is_router = std::string(c.name) == "gate.weight";
    expect_error(is_router ? Errc::kInvalidArgument : Errc::kMalformedFile, prefix + c.name,
                 [&] { load_moe_layer(lacking, config, -1, 0, 2); });
  }
}

TEST(MoeLayerFilesTest, ScalesAndBiasesAreWidened) {
  const std::string bias_name = "model.layers.2.mlp.gate.e_score_correction_bias";
  const std::string scale_name = "model.layers.2.mlp.experts.0.gate_proj.weight_scale_inv";
  const TempFolder folder;
  write_synthetic_checkpoint(
      folder.path(),
      {.family = SyntheticFamily::kDeepSeekV3, .dtype = DType::kE4M3, .num_tokens = 1});
  Tensor bias(DType::kF16, {8});
  const std::uint16_t bias_bits[] = {0x3C00, 0xC000, 0x0001, 0x7BFF,
                                     0x8000, 0x7C00, 0xFC00, 0x7E01};
  std::copy_n(bias_bits, 8, bias.as<std::uint16_t>());
  Tensor scale(DType::kE8M0, {2, 2});
  const std::uint8_t scale_bits[] = {127, 0, 254, 1};
  std::copy_n(scale_bits, 4, scale.as<std::uint8_t>());
  rewrite_without(folder.path(), bias_name, &bias);
  rewrite_without(folder.path(), scale_name, &scale);

  const ModelConfig config = read_model_config(folder.path());
  const MoeLayerWeights weights = load_moe_layer(Checkpoint(folder.path()), config, 2, 0, 1);
  const float* wide = weights.router_bias.as<float>();
  const float infinity = std::numeric_limits<float>::infinity();
  const float want[] = {1.0f, -2.0f, 0x1p-24f, 65504.0f, -0.0f, infinity, -infinity};
  for (int i = 0; i < 7; ++i) EXPECT_EQ(wide[i], want[i]) << i;
  EXPECT_TRUE(std::isnan(wide[7]));
  const float* scales = weights.experts.gate_scale.as<float>();
  EXPECT_EQ(scales[0], 1.0f);
  EXPECT_EQ(scales[1], 0x1p-127f);
  EXPECT_EQ(scales[2], 0x1p127f);
  EXPECT_EQ(scales[3], 0x1p-126f);
}

TEST(MoeLayerFilesTest, WeightScalesAreNumbersFromZero) {
  const float infinity = std::numeric_limits<float>::infinity();
  const struct {
    float value;
    const char* phrase;
  } cases[] = {
      {std::numeric_limits<float>::quiet_NaN(), "is nan"}, {infinity, "is inf"}, {-1.0f, "is -1"}};
  const std::string prefix = "model.layers.2.mlp.";
  for (const auto& c : cases) {
    for (const std::string module : {"experts.1.down_proj", "shared_experts.up_proj"}) {
      SCOPED_TRACE(module + " " + c.phrase);
      const TempFolder folder;
      write_synthetic_checkpoint(
          folder.path(),
          {.family = SyntheticFamily::kDeepSeekV3, .dtype = DType::kE4M3, .num_tokens = 1});
      const std::string name = prefix + module + ".weight_scale_inv";
      Tensor scale(DType::kF32, {2, 2});
      std::fill_n(scale.as<float>(), 4, 0.0f);
      scale.as<float>()[2] = c.value;
      rewrite_without(folder.path(), name, &scale);
      const ModelConfig config = read_model_config(folder.path());
      const Checkpoint checkpoint(folder.path());
      const auto load = [&] { load_moe_layer(checkpoint, config, 2, 0, 2); };
      expect_error(Errc::kMalformedFile, "element 2 of the weight scales \"" + name + "\" of ",
                   load);
      expect_error(Errc::kMalformedFile, std::string(c.phrase) + ", must be a finite number from 0",
                   load);
      if (module == "experts.1.down_proj") load_moe_layer(checkpoint, config, 2, 2, 2);
    }
  }
}

}  // namespace
}  // namespace switchyard
