// SPDX-License-Identifier: Apache-2.0
//
// Functions of tensors refuse those of another device. They need no GPU to do so.

#include "unit/moe/wrong_device.h"

#include "switchyard/eplb.h"
#include "switchyard/expert_placement.h"
#include "switchyard/permute.h"
#include "switchyard/prepare_finalize_factory.h"
#include "switchyard/quantize_batched.h"
#include "switchyard/quantize_input.h"
#include "switchyard/router.h"
#include "switchyard/scale_layout.h"
#include "switchyard/weight_and_reduce.h"

namespace switchyard::test {
namespace {

class WrongDeviceTest : public testing::TestWithParam<Function> {};

TEST_P(WrongDeviceTest, IsNamedForEveryArgument) {
  for (const Device right : {Device::cpu(), Device::cuda(0), Device::cuda(1)}) {
    expect_every_argument_refused(GetParam(), right);
  }
}

// The first row of a view.
TensorView flat(const TensorView& view) {
  return TensorView(view.data(), view.dtype(), {view.shape(0)}, view.device());
}

PermuteOptions options_of(const TensorView& expert_map, const TensorView& counts) {
  PermuteOptions options;
  options.expert_map = expert_map;
  options.expert_num_tokens = counts;
  return options;
}

const std::vector<Function> kQuantizers{
    {{"x", "q", "scales", "static_scale"},
     [](const Views& v, Stream stream) {
       quantize(v[0], schemes::kFp8Block, v[1], v[2], stream, v[3]);
     }},
    {{"q", "scales", "y", "tensor_scale"},
     [](const Views& v, Stream stream) {
       dequantize(v[0], v[1], schemes::kFp8Block, v[2], stream, v[3]);
     }},
    {{"x", "counts", "q", "scales", "static_scale"},
     [](const Views& v, Stream stream) {
       quantize_batched(v[0], v[1], schemes::kFp8Block, v[2], v[3], stream, v[4]);
     }},
    {{"x", "q", "scales", "tensor_scale"},
     [](const Views& v, Stream stream) {
       silu_mul_quantize(v[0], schemes::kFp8Block, v[1], v[2], stream, ActivationScale::kScheme,
                         v[3]);
     }},
    {{"x", "counts", "q", "scales", "tensor_scale"},
     [](const Views& v, Stream stream) {
       silu_mul_quantize_batched(v[0], v[1], schemes::kFp8Block, v[2], v[3], stream,
                                 ActivationScale::kScheme, v[4]);
     }},
};

const std::vector<Function> kPermuters{
    {{"topk_ids", "expert_num_tokens", "expert_map", "num_errors"},
     [](const Views& v, Stream stream) {
       count_expert_num_tokens(v[0], v[1], v[2], stream, v[3]);
     }},
    {{"topk_ids", "expert_map", "local_ids", "num_errors"},
     [](const Views& v, Stream stream) { apply_expert_map(v[0], v[1], v[2], stream, v[3]); }},
    {{"expert_num_tokens", "sum", "num_errors"},
     [](const Views& v, Stream stream) {
       expert_num_tokens_round_up_and_sum(v[0], 4, v[1], stream, v[2]);
     }},
    {{"x", "scales", "topk_ids", "options.expert_map", "options.expert_num_tokens", "outputs.x",
      "outputs.scales", "outputs.m_indices", "outputs.inv_perm", "outputs.first_row",
      "outputs.expert_num_tokens", "outputs.num_rows", "num_errors"},
     [](const Views& v, Stream stream) {
       ep_scatter(v[0], v[1], v[2], options_of(v[3], v[4]),
                  {v[5], v[6], v[7], v[8], v[9], v[10], v[11]}, stream, {}, v[12]);
     }},
    {{"topk_ids", "options.expert_map", "options.expert_num_tokens", "outputs.m_indices",
      "outputs.inv_perm", "outputs.first_row", "outputs.expert_num_tokens", "outputs.num_rows",
      "num_errors"},
     [](const Views& v, Stream stream) {
       plan_permute(v[0], options_of(v[1], v[2]), {{}, {}, v[3], v[4], v[5], v[6], v[7]}, stream,
                    {}, v[8]);
     }},
    {{"expert_output", "topk_ids", "topk_weights", "inv_perm", "expert_map", "output",
      "num_errors"},
     [](const Views& v, Stream stream) {
       ep_gather(v[0], v[1], v[2], v[3], v[4], v[5], stream, v[6]);
     }},
    {{"expert_output", "topk_weights", "output", "num_errors"},
     [](const Views& v, Stream stream) {
       const TensorView inv_perm = view_on(stream.device());
       unpermute_and_reduce(v[0], inv_perm, v[1], v[2], stream, v[3]);
     }},
    {{"expert_output", "topk_weights", "topk_ids", "expert_map", "output", "num_errors"},
     [](const Views& v, Stream stream) {
       (void)weight_and_reduce(WeightAndReduce::contiguous(true), {v[0], v[1], v[2], v[3]}, v[4],
                               stream, {}, v[5]);
     }},
};

INSTANTIATE_TEST_SUITE_P(Quantizers, WrongDeviceTest, testing::ValuesIn(kQuantizers));
INSTANTIATE_TEST_SUITE_P(Permuters, WrongDeviceTest, testing::ValuesIn(kPermuters));

const std::vector<std::int32_t> kTable{0, 1};
const ExpertMap kMap = determine_expert_map(2, 0, 4, PlacementStrategy::kLinear);
const LogicalMaps kLogicalMaps = compute_logical_maps(std::vector<std::int32_t>{0, 1, 0}, 2);

MoEConfig moe_config() {
  MoEConfig fields;
  fields.num_experts = 8;
  fields.num_topk = 2;
  fields.hidden = 256;
  fields.max_num_tokens = 16;
  fields.parallel = ParallelConfig::make(
      {.dp_size = 2, .enable_expert_parallel = true, .all2all_backend = All2AllBackend::kNaive});
  return MoEConfig::make(fields);
}

// Without a stream the host works.
const std::vector<Function> kHostFunctions{
    {{"expert_num_tokens"},
     [](const Views& v, Stream) { (void)expert_num_tokens_round_up_and_sum(v[0], 4); }},
    {{"expert_num_tokens"},
     [](const Views& v, Stream) { (void)compute_aligned_m(2, 1, 4, 8, flat(v[0])); },
     DType::kI32},
    {{"topk_ids", "options.expert_map", "options.expert_num_tokens"},
     [](const Views& v, Stream) { (void)plan_permute(v[0], 4, options_of(v[1], v[2])); }},
    {{"x", "scales", "topk_ids", "options.expert_map", "options.expert_num_tokens", "memory.x"},
     [](const Views& v, Stream) {
       (void)permute(v[0], v[1], v[2], 4, options_of(v[3], v[4]), {.x = v[5]});
     }},
    {{"expert_output", "topk_weights", "output"},
     [](const Views& v, Stream) { unpermute_and_reduce(v[0], PermutePlan(), v[1], v[2]); }},
    {{"from", "to"}, [](const Views& v, Stream) { relayout_scales(v[0], v[1]); }},
    {{"scales"}, [](const Views& v, Stream) { (void)swizzle_scales(v[0]); }},
    {{"tiles"}, [](const Views& v, Stream) { (void)unswizzle_scales(v[0], 4, 4); }},
    {{"scales", "words"}, [](const Views& v, Stream) { pack_ue8m0(v[0], v[1]); }},
    {{"words", "scales"}, [](const Views& v, Stream) { unpack_ue8m0(v[0], v[1]); }},
    {{"x", "scale"},
     [](const Views& v, Stream) {
       QuantizeInputConfig config;
       config.quant_dtype = "fp8_e4m3";
       (void)quantize_input(v[0], v[1], config);
     }},
    {{"x", "static_scale"},
     [](const Views& v, Stream) {
       (void)quantize_input(v[0], schemes::kNvfp4, ScaleLayout::kSwizzled, v[1]);
     }},
    {{"x", "y", "static_scale"},
     [](const Views& v, Stream) { fake_quantize(v[0], schemes::kNvfp4, v[1], v[2]); }},
    {{"hidden", "gate", "logits"}, [](const Views& v, Stream) { router_logits(v[0], v[1], v[2]); }},
    {{"logits", "bias", "topk_ids", "topk_weights"},
     [](const Views& v, Stream) { select_experts({}, v[0], v[1], v[2], v[3]); }},
    {{"ids", "out"},
     [](const Views& v, Stream) { map_expert_ids(v[0], kTable, v[1]); },
     DType::kI32},
    {{"ids", "out"},
     [](const Views& v, Stream) { global_to_local_ids(v[0], kMap, v[1]); },
     DType::kI32},
    {{"ids", "out"},
     [](const Views& v, Stream) { local_to_global_ids(v[0], kMap, v[1]); },
     DType::kI32},
    {{"ids", "out"},
     [](const Views& v, Stream) { map_logical_to_physical(v[0], kLogicalMaps, v[1]); },
     DType::kI32},
    {{"physical_ids"},
     [](const Views& v, Stream) { ExpertLoad(4, 1).add_step(v[0], 2); },
     DType::kI32},
    {{"a1_scale"},
     [](const Views& v, Stream) {
       (void)choose_prepare_finalize(moe_config(), QuantConfig::fp8_w8a8({.a1_scale = v[0]}));
     }},
    {{"a1_gscale"},
     [](const Views& v, Stream) {
       (void)choose_prepare_finalize(moe_config(), QuantConfig::nvfp4({.a1_gscale = v[0]}));
     }},
};

class WrongDeviceOfHostTest : public testing::TestWithParam<Function> {};

TEST_P(WrongDeviceOfHostTest, IsNamedForEveryArgument) {
  expect_every_argument_refused(GetParam(), Device::cpu());
}

INSTANTIATE_TEST_SUITE_P(All, WrongDeviceOfHostTest, testing::ValuesIn(kHostFunctions));

// Views of views read nothing: they stay where they are.
TEST(WrongDeviceOfHostFunctionsTest, ShapesOfScalesMayLieAnywhere) {
  const TensorView gpu = view_on(Device::cuda(1));
  EXPECT_EQ(normalize_scales_shape(gpu).device(), gpu.device());
  EXPECT_EQ(normalize_batched_scales_shape(gpu, 2).device(), gpu.device());
}

}  // namespace
}  // namespace switchyard::test
