// SPDX-License-Identifier: Apache-2.0
//
// Functions of tensors refuse those of another device.

#include "wrong_device.h"

#include <vector>

#include "switchyard/eplb.h"
#include "switchyard/expert_placement.h"
#include "switchyard/expert_shapes.h"
#include "switchyard/permute.h"
#include "switchyard/quantize_batched.h"
#include "switchyard/quantize_input.h"
#include "switchyard/router.h"
#include "switchyard/scale_layout.h"
#include "switchyard/weight_and_reduce.h"

namespace switchyard {
namespace {

using namespace test;

TEST(WrongDeviceTest, Quantize) {
  const Tensor x = f32({2, kHidden});
  const Tensor q(DType::kE4M3, {2, kHidden});
  const Tensor packed(DType::kE2M1, {2, kHidden});
  const Tensor scales = f32({2, 1});
  const Tensor block_scales(DType::kE4M3, {2, kHidden / 16});
  const Tensor one = f32({1});
  const Stream host = Stream::host();
  expect_refused("quantize", {x, q, scales},
                 [](const Args& a) { quantize(a[0], schemes::kFp8Token, a[1], a[2]); });
  expect_refused("quantize", {x, packed, block_scales, one},
                 [&](const Args& a) { quantize(a[0], schemes::kNvfp4, a[1], a[2], host, a[3]); });
  expect_refused("dequantize", {packed, block_scales, x, one},
                 [&](const Args& a) { dequantize(a[0], a[1], schemes::kNvfp4, a[2], host, a[3]); });
  expect_refused("silu_mul_quantize", {f32({2, 2 * kHidden}), q, scales},
                 [](const Args& a) { silu_mul_quantize(a[0], schemes::kFp8Token, a[1], a[2]); });
  expect_refused(
      "silu_mul_quantize", {f32({2, 2 * kHidden}), packed, block_scales, one}, [&](const Args& a) {
        silu_mul_quantize(a[0], schemes::kNvfp4, a[1], a[2], host, ActivationScale::kScheme, a[3]);
      });
  const Tensor counts(DType::kI32, {1});
  const Tensor q3(DType::kE4M3, {1, 2, kHidden});
  expect_refused("quantize_batched", {f32({1, 2, kHidden}), counts, q3, f32({1, 1, 1}), one},
                 [&](const Args& a) {
                   quantize_batched(a[0], a[1], schemes::kFp8Tensor, a[2], a[3], host, a[4]);
                 });
  expect_refused(
      "silu_mul_quantize_batched", {f32({1, 2, 2 * kHidden}), counts, q3, f32({1, 2, 1})},
      [](const Args& a) { silu_mul_quantize_batched(a[0], a[1], schemes::kFp8Token, a[2], a[3]); });
  QuantizeInputConfig config;
  config.quant_dtype = "fp8_e4m3";
  expect_refused("quantize_input", {x, one},
                 [&](const Args& a) { (void)quantize_input(a[0], a[1], config); });
  expect_refused("quantize_input", {x, one}, [](const Args& a) {
    (void)quantize_input(a[0], schemes::kNvfp4, ScaleLayout::kSwizzled, a[1]);
  });
  expect_refused("fake_quantize", {x, f32({2, kHidden}), one},
                 [](const Args& a) { fake_quantize(a[0], schemes::kNvfp4, a[1], a[2]); });
}

TEST(WrongDeviceTest, ScaleLayouts) {
  const Tensor bytes(DType::kE8M0, {4, 8});
  const Tensor words(DType::kI32, {4, 2});
  const Tensor tiles(DType::kE8M0, {1, 2, 32, 4, 4});
  expect_refused("relayout_scales", {bytes, tiles},
                 [](const Args& a) { relayout_scales(a[0], a[1]); });
  expect_refused("swizzle_scales", {bytes}, [](const Args& a) { (void)swizzle_scales(a[0]); });
  expect_refused("unswizzle_scales", {tiles},
                 [](const Args& a) { (void)unswizzle_scales(a[0], 4, 8); });
  expect_refused("pack_ue8m0", {bytes, words}, [](const Args& a) { pack_ue8m0(a[0], a[1]); });
  expect_refused("unpack_ue8m0", {words, bytes}, [](const Args& a) { unpack_ue8m0(a[0], a[1]); });
  // Views of views read nothing: they stay where they are.
  for (const TensorView& view : {far(bytes), far(f32({1})), far(f32({4})), far(f32({2, 2, 2}))}) {
    EXPECT_EQ(normalize_scales_shape(view).device(), Device::cuda(0));
    EXPECT_EQ(normalize_batched_scales_shape(view, 1).device(), Device::cuda(0));
  }
}

TEST(WrongDeviceTest, Permute) {
  const Tensor ids(DType::kI32, {2, 1});
  const Tensor map(DType::kI32, {1});
  const Tensor counts(DType::kI32, {1});
  const Tensor errors(DType::kI32, {1});
  const Stream host = Stream::host();
  expect_refused("count_expert_num_tokens", {ids, counts, map, errors},
                 [&](const Args& a) { count_expert_num_tokens(a[0], a[1], a[2], host, a[3]); });
  expect_refused("apply_expert_map", {ids, map, Tensor(DType::kI32, {2, 1}), errors},
                 [&](const Args& a) { apply_expert_map(a[0], a[1], a[2], host, a[3]); });
  counts.as<std::int32_t>()[0] = 2;
  expect_refused("expert_num_tokens_round_up_and_sum", {counts},
                 [](const Args& a) { (void)expert_num_tokens_round_up_and_sum(a[0]); });
  expect_refused(
      "expert_num_tokens_round_up_and_sum", {counts, Tensor(DType::kI64, {1}), errors},
      [&](const Args& a) { expert_num_tokens_round_up_and_sum(a[0], 8, a[1], host, a[2]); });
  expect_refused("", {counts}, [](const Args& a) { (void)compute_aligned_m(2, 1, 1, 8, a[0]); });

  const Tensor x = f32({2, kHidden});
  const Tensor scales = f32({2, 1});
  const Tensor rows = f32({2, kHidden});
  const Tensor m_indices(DType::kI32, {2});
  const Tensor inv_perm(DType::kI32, {2, 1});
  const Tensor first_row(DType::kI64, {1});
  const Tensor found(DType::kI32, {1});
  const Tensor needed(DType::kI64, {1});
  const Tensor moved_scales = f32({2, 1});
  expect_refused("ep_scatter",
                 {x, scales, ids, map, counts, rows, moved_scales, m_indices, inv_perm, first_row,
                  found, needed, errors},
                 [&](const Args& a) {
                   ep_scatter(a[0], a[1], a[2],
                              {.expert_map = a[3], .expert_num_tokens = a[4], .alignment = 1},
                              {a[5], a[6], a[7], a[8], a[9], a[10], a[11]}, host, {}, a[12]);
                 });
  expect_refused(
      "plan_permute", {ids, map, counts, m_indices, inv_perm, first_row, found, needed, errors},
      [&](const Args& a) {
        plan_permute(a[0], {.expert_map = a[1], .expert_num_tokens = a[2], .alignment = 1},
                     {{}, {}, a[3], a[4], a[5], a[6], a[7]}, host, {}, a[8]);
      });
  expect_refused("plan_permute", {ids, map, counts}, [](const Args& a) {
    (void)plan_permute(a[0], 1, {.expert_map = a[1], .expert_num_tokens = a[2], .alignment = 1});
  });
  expect_refused("permute", {x, scales, ids, map, counts, rows}, [](const Args& a) {
    (void)permute(a[0], a[1], a[2], 1,
                  {.expert_map = a[3], .expert_num_tokens = a[4], .alignment = 1}, {.x = a[5]});
  });
  const Tensor weights = f32({2, 1});
  expect_refused("ep_gather", {rows, ids, weights, inv_perm, map, x, errors},
                 [&](const Args& a) { ep_gather(a[0], a[1], a[2], a[3], a[4], a[5], host, a[6]); });
  expect_refused("unpermute_and_reduce", {rows, inv_perm, weights, x, errors},
                 [&](const Args& a) { unpermute_and_reduce(a[0], a[1], a[2], a[3], host, a[4]); });
  const PermutePlan made = plan_permute(ids, 1, {.alignment = 1});
  expect_refused("unpermute_and_reduce", {rows, weights, x},
                 [&](const Args& a) { unpermute_and_reduce(a[0], made, a[1], a[2]); });
}

TEST(WrongDeviceTest, WeightAndReduce) {
  const Tensor rows = f32({2, 1, kHidden});
  const Tensor weights = f32({2, 1});
  const Tensor ids(DType::kI32, {2, 1});
  const Tensor map(DType::kI32, {1});
  const Tensor output = f32({2, kHidden});
  const Tensor errors(DType::kI32, {1});
  expect_refused("weight_and_reduce", {rows, weights, ids, map, output, errors}, [](const Args& a) {
    weight_and_reduce(WeightAndReduce::contiguous(true), {a[0], a[1], a[2], a[3]}, a[4],
                      Stream::host(), {}, a[5]);
  });
  expect_refused("weight_and_reduce", {f32({1, 2, kHidden}), weights, ids, output},
                 [](const Args& a) {
                   weight_and_reduce(WeightAndReduce::naive_batched(0), {a[0], a[1], a[2]}, a[3]);
                 });
  expect_refused("weight_and_reduce", {output, f32({2, kHidden})}, [](const Args& a) {
    weight_and_reduce(WeightAndReduce::no_op(), {a[0], {}, {}}, a[1]);
  });
}

TEST(WrongDeviceTest, Router) {
  const Tensor hidden = f32({2, kHidden});
  const Tensor logits = f32({2, 4});
  expect_refused("router_logits", {hidden, f32({4, kHidden}), logits},
                 [](const Args& a) { router_logits(a[0], a[1], a[2]); });
  RouterConfig config;
  config.num_experts = 4;
  config.num_topk = 2;
  expect_refused("select_experts", {logits, f32({4}), Tensor(DType::kI32, {2, 2}), f32({2, 2})},
                 [&](const Args& a) { select_experts(config, a[0], a[1], a[2], a[3]); });
}

TEST(WrongDeviceTest, IdsOfPlacementsAndOfLoadBalancing) {
  const Tensor ids(DType::kI32, {2, 2});
  const Tensor out(DType::kI32, {2, 2});
  const std::vector<std::int32_t> table{0, 1};
  const ExpertMap map = determine_expert_map(2, 0, 4, PlacementStrategy::kLinear);
  const LogicalMaps maps = compute_logical_maps(std::vector<std::int32_t>{0, 1, 0}, 2);
  expect_refused("map_expert_ids", {ids, out},
                 [&](const Args& a) { map_expert_ids(a[0], table, a[1]); });
  expect_refused("global_to_local_ids", {ids, out},
                 [&](const Args& a) { global_to_local_ids(a[0], map, a[1]); });
  expect_refused("local_to_global_ids", {ids, out},
                 [&](const Args& a) { local_to_global_ids(a[0], map, a[1]); });
  expect_refused("map_logical_to_physical", {ids, out},
                 [&](const Args& a) { map_logical_to_physical(a[0], maps, a[1]); });
  ExpertLoad load(4, 1);
  expect_refused("expert_load", {ids}, [&](const Args& a) { load.add_step(a[0], 2); });
  expect_refused("expert_ranges_from_m_indices", {Tensor(DType::kI32, {4})},
                 [](const Args& a) { (void)expert_ranges_from_m_indices(a[0], 1, 2); });
}

}  // namespace
}  // namespace switchyard
