// SPDX-License-Identifier: Apache-2.0
//
// Which class, wire format and scale follow from a configuration: one row per backend, one column
// per kind of activations.

#include "switchyard/prepare_finalize_factory.h"

#include <algorithm>
#include <numeric>

#include "switchyard/expert_placement.h"
#include "switchyard/modular_kernel.h"

#include "support/elements.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using test::expect_error;
using test::run_ranks;
using B = All2AllBackend;
using K = PrepareKind;
using Scheme = std::optional<QuantScheme>;

constexpr float kGlobalScale = 512.0f;
constexpr float kStaticScale = 0.25f;
constexpr std::array<float, 3> kRowScales{0.25f, 0.5f, 0.25f};
constexpr std::array<float, 3> kEqualScales{512.0f, 512.0f, 512.0f};
const Scheme kAsScheme;  // rows travel in the experts' scheme
constexpr QuantScheme kBf16 = schemes::kNone;

MoEConfig layer(B backend, std::int32_t dp_size = 2, std::int32_t dp_rank = 0,
                bool expert_parallel = true, std::int32_t tp_size = 1) {
  MoEConfig fields;
  fields.num_experts = 8;
  fields.num_topk = 2;
  fields.hidden = 256;
  fields.max_num_tokens = 16;
  fields.parallel = ParallelConfig::make({.tp_size = tp_size,
                                          .dp_size = dp_size,
                                          .dp_rank = dp_rank,
                                          .enable_expert_parallel = expert_parallel,
                                          .all2all_backend = backend});
  return MoEConfig::make(fields);
}

QuantConfig fp8(std::optional<BlockShape> block = {}, bool per_token = false,
                TensorView a1_scale = {}) {
  return QuantConfig::fp8_w8a8(
      {.per_act_token_quant = per_token, .block_shape = block, .a1_scale = a1_scale});
}

QuantConfig nvfp4(bool is_scale_swizzled = true) {
  return QuantConfig::nvfp4({.a1_gscale = TensorView::of(&kGlobalScale, {1}),
                             .extras = {.is_scale_swizzled = is_scale_swizzled}});
}

QuantConfig mxfp8() { return QuantConfig::mxfp4_mxfp8({}); }

constexpr std::array kAll{B::kAllGatherReduceScatter,
                          B::kNaive,
                          B::kDeepEpHighThroughput,
                          B::kDeepEpLowLatency,
                          B::kDeepEpV2,
                          B::kFlashInferNvlinkTwoSided,
                          B::kFlashInferAll2AllV,
                          B::kFlashInferNvlinkOneSided,
                          B::kMoriHighThroughput,
                          B::kMoriLowLatency,
                          B::kNixlEp,
                          B::kPplx};

TEST(PrepareFinalizeFactoryTest, EveryBackendHasItsClass) {
  constexpr std::array kKinds{K::kAllGather,  K::kAllGather,        K::kElasticDecode,
                              K::kLowLatency, K::kElasticDecode,    K::kAllToAll,
                              K::kAllToAll,   K::kAllToAllOneSided, K::kAllToAll,
                              K::kAllToAll,   K::kLowLatency,       K::kLowLatency};
  for (std::size_t i = 0; i < kAll.size(); ++i) {
    SCOPED_TRACE(name_of(kAll[i]));
    EXPECT_EQ(choose_prepare_finalize(layer(kAll[i]), {}).kind, kKinds[i]);
    const bool is_v2 = kAll[i] == B::kDeepEpV2;
    EXPECT_EQ(choose_prepare_finalize(layer(kAll[i]), {}, {.use_cudagraph = false}).kind,
              is_v2 ? K::kElasticPrefill : kKinds[i]);
  }
}

// A class reports the same properties as vLLM's class for the backend.
TEST(PrepareFinalizeFactoryTest, ClassesHaveTheProperties) {
  for (const B backend : kAll) {
    run_ranks(2, [&](const Group& group) {
      const auto made = make_prepare_finalize(group, layer(backend, 2, group.rank()), {});
      const All2AllProperties properties = properties_of(backend);
      EXPECT_EQ(made->activation_format(), properties.format) << name_of(backend);
      EXPECT_EQ(made->supports_async(), properties.supports_async) << name_of(backend);
      EXPECT_EQ(made->output_is_reduced(), properties.output_is_reduced) << name_of(backend);
      EXPECT_EQ(made->num_local_experts(), 4);
    });
  }
}

TEST(PrepareFinalizeFactoryTest, WithoutAllToAllTheClassIsLocal) {
  const PrepareFinalizeChoice alone = choose_prepare_finalize(layer(B::kDeepEpV2, 1), {});
  EXPECT_EQ(alone.kind, K::kLocal);
  EXPECT_EQ(alone.config.num_experts, 8);
  // Slices of all experts, or this rank's experts.
  EXPECT_EQ(choose_prepare_finalize(layer(B::kDeepEpV2, 1, 0, false, 2), {}).config.num_experts, 8);
  const PrepareFinalizeChoice part = choose_prepare_finalize(layer(B::kNaive, 1, 0, true, 2), {});
  EXPECT_EQ(part.kind, K::kLocal);
  EXPECT_EQ(part.config.num_experts, 8);
  EXPECT_EQ(part.config.ep_size, 2);
  EXPECT_EQ(part.config.ep_rank, 0);
}

TEST(PrepareFinalizeFactoryTest, SlicesOfExpertsAreServedByAllGather) {
  for (const B backend : kAll) {
    const PrepareFinalizeChoice choice =
        choose_prepare_finalize(layer(backend, 2, 0, false), nvfp4());
    EXPECT_EQ(choice.kind, K::kAllGather);
    EXPECT_TRUE(choice.config.slices_experts);
    EXPECT_EQ(choice.config.wire_scheme, kAsScheme);
    EXPECT_EQ(choice.config.scale_layout, ScaleLayout::kSwizzled);
    EXPECT_FALSE(choose_prepare_finalize(layer(backend), nvfp4()).config.slices_experts);
  }
  MoEConfig sequence = layer(B::kNaive, 2, 0, false);
  sequence.parallel.sp_size = 2;
  expect_error(Errc::kNotSupported, "sp_size 2 without expert parallelism",
               [&] { (void)choose_prepare_finalize(sequence, {}); });
}

// Experts of tensor-parallel ranks: ids are global here too.
TEST(PrepareFinalizeFactoryTest, LocalServesItsOwnExpertsByGlobalIds) {
  const MoEConfig moe = layer(B::kNaive, 1, 0, true, 2);
  const auto local = make_prepare_finalize({}, moe, {});
  const Tensor hidden(DType::kBF16, {3, 256});
  const Tensor weights(DType::kF32, {3, 2});
  const std::array<std::int32_t, 6> ids{1, 5, 7, 6, 3, 0};  // experts 0 to 3 are here
  const Prepared prepared = local->prepare({hidden, TensorView::of(ids.data(), {3, 2}), weights});
  const auto* counts = prepared.experts.num_rows.as<std::int32_t>();
  EXPECT_EQ(std::vector<std::int32_t>(counts, counts + 4), (std::vector<std::int32_t>{1, 1, 0, 1}));
  const std::array<std::int32_t, 6> wrong{8, 0, 0, 0, 0, 0};
  expect_error(Errc::kInvalidArgument, "is 8, must be -1 or an expert from 0 to 7", [&] {
    const auto other = make_prepare_finalize({}, moe, {});
    (void)other->prepare({hidden, TensorView::of(wrong.data(), {3, 2}), weights});
  });
}

TEST(PrepareFinalizeFactoryTest, SizesAreThoseOfTheLayer) {
  const PrepareFinalizeConfig config = choose_prepare_finalize(layer(B::kDeepEpV2), {},
                                                               {.use_cudagraph = false,
                                                                .reduce = Reduce::kPerExpert,
                                                                .expert_alignment = 128,
                                                                .num_micro_batches = 2})
                                           .config;
  EXPECT_EQ(config.num_experts, 8);
  EXPECT_EQ(config.num_topk, 2);
  EXPECT_EQ(config.hidden, 256);
  EXPECT_EQ(config.max_tokens_per_rank, 16);
  EXPECT_EQ(config.reduce, Reduce::kPerExpert);
  EXPECT_EQ(config.expert_alignment, 128);
  EXPECT_EQ(config.num_micro_batches, 2);
  EXPECT_EQ(choose_prepare_finalize(layer(B::kDeepEpV2), {}, {.expert_alignment = 128})
                .config.expert_alignment,
            1);
}

struct Expected {
  B backend;
  QuantScheme scheme;  // of the rows that experts get
  Scheme wire;         // of the rows on the wire, if different
};

void expect_schemes(const QuantConfig& quant, const std::vector<Expected>& rows,
                    const PrepareFinalizeOptions& options = {}) {
  for (const Expected& row : rows) {
    SCOPED_TRACE(name_of(row.backend));
    const PrepareFinalizeConfig config =
        choose_prepare_finalize(layer(row.backend), quant, options).config;
    EXPECT_EQ(config.scheme, row.scheme) << name_of(config.scheme);
    EXPECT_EQ(config.wire_scheme, row.wire);
  }
}

std::vector<Expected> everywhere(const QuantScheme& scheme, const Scheme& wire = kAsScheme) {
  std::vector<Expected> rows;
  for (const B backend : kAll) rows.push_back({backend, scheme, wire});
  return rows;
}

// Rows for the backends that quantize before sending, appended to those given.
std::vector<Expected> with_senders(const QuantScheme& scheme, std::vector<Expected> rows) {
  for (const B backend :
       {B::kAllGatherReduceScatter, B::kNaive, B::kFlashInferNvlinkTwoSided, B::kFlashInferAll2AllV,
        B::kFlashInferNvlinkOneSided, B::kMoriHighThroughput, B::kMoriLowLatency, B::kPplx}) {
    rows.push_back({backend, scheme, kAsScheme});
  }
  return rows;
}

TEST(PrepareFinalizeFactoryTest, UnquantizedRowsTravelAsTheyAre) {
  expect_schemes({}, everywhere(kBf16));
  expect_schemes(QuantConfig::int4_w4a16({.block_shape = BlockShape{0, 128}}), everywhere(kBf16));
}

// DeepEP's kernels cast by their own rule, and only for weights in blocks of 128 x 128.
TEST(PrepareFinalizeFactoryTest, Fp8Blocks) {
  expect_schemes(
      fp8(BlockShape{128, 128}),
      with_senders(schemes::kFp8Block, {{B::kDeepEpHighThroughput, schemes::kFp8Block, kAsScheme},
                                        {B::kDeepEpV2, schemes::kFp8Block, kAsScheme},
                                        {B::kDeepEpLowLatency, schemes::kFp8BlockDeepEp, kAsScheme},
                                        {B::kNixlEp, schemes::kFp8BlockDeepEp, kAsScheme}}));
  QuantScheme blocks_of_64 = schemes::kFp8Block;
  blocks_of_64.block = 64;
  expect_schemes(fp8(BlockShape{128, 64}),
                 with_senders(blocks_of_64, {{B::kDeepEpHighThroughput, blocks_of_64, kAsScheme},
                                             {B::kDeepEpV2, blocks_of_64, kAsScheme},
                                             {B::kDeepEpLowLatency, blocks_of_64, kBf16},
                                             {B::kNixlEp, blocks_of_64, kBf16}}));
  expect_schemes(fp8(BlockShape{1, 128}), {{B::kDeepEpLowLatency, schemes::kFp8Block, kBf16}});
}

TEST(PrepareFinalizeFactoryTest, Ue8m0WantsBlocksOf128) {
  const auto ue8m0 = [](std::int32_t columns) {
    return QuantConfig::fp8_w8a8({.block_shape = BlockShape{128, columns},
                                  .extras = {.scale_format = ScaleFormat::kE8M0Packed}});
  };
  expect_schemes(ue8m0(128), {{B::kNaive, schemes::kFp8Ue8m0, kAsScheme},
                              {B::kDeepEpV2, schemes::kFp8Ue8m0, kAsScheme},
                              {B::kDeepEpLowLatency, schemes::kFp8Ue8m0DeepEp, kAsScheme}});
  expect_error(Errc::kInvalidArgument, "128",
               [&] { (void)choose_prepare_finalize(layer(B::kNaive), ue8m0(64)); });
}

// Per-row scales travel where rows are quantized first. DeepEP's standard classes quantize arrived
// rows with one scale, its low-latency class with one scale per row.
TEST(PrepareFinalizeFactoryTest, ScalesByToken) {
  expect_schemes(
      fp8({}, true),
      with_senders(schemes::kFp8Token, {{B::kDeepEpHighThroughput, schemes::kFp8Tensor, kBf16},
                                        {B::kDeepEpV2, schemes::kFp8Tensor, kBf16},
                                        {B::kDeepEpLowLatency, schemes::kFp8Token, kBf16},
                                        {B::kNixlEp, schemes::kFp8Token, kBf16}}));
  expect_schemes(
      QuantConfig::int8_w8a8({.per_act_token_quant = true}),
      with_senders(schemes::kInt8Token, {{B::kDeepEpHighThroughput, schemes::kInt8Tensor, kBf16},
                                         {B::kDeepEpV2, schemes::kInt8Tensor, kBf16},
                                         {B::kDeepEpLowLatency, schemes::kInt8Token, kBf16},
                                         {B::kNixlEp, schemes::kInt8Token, kBf16}}));
}

TEST(PrepareFinalizeFactoryTest, OneScaleForTheTensor) {
  const std::vector<Expected> rows =
      with_senders(schemes::kFp8Tensor, {{B::kDeepEpHighThroughput, schemes::kFp8Tensor, kBf16},
                                         {B::kDeepEpV2, schemes::kFp8Tensor, kBf16},
                                         {B::kDeepEpLowLatency, schemes::kFp8Tensor, kBf16},
                                         {B::kNixlEp, schemes::kFp8Tensor, kBf16}});
  const TensorView scale = TensorView::of(&kStaticScale, {1});
  expect_schemes(fp8(), rows);
  expect_schemes(fp8({}, false, scale), rows);
  expect_schemes(fp8({}, true, scale), rows);  // a static scale takes precedence
  expect_schemes(QuantConfig::mxfp4_w4a8({.a1_scale = scale}), rows);
  for (const B backend : kAll) {
    EXPECT_EQ(choose_prepare_finalize(layer(backend), fp8()).config.static_scale, std::nullopt);
    EXPECT_EQ(choose_prepare_finalize(layer(backend), fp8({}, false, scale)).config.static_scale,
              kStaticScale);
    EXPECT_EQ(choose_prepare_finalize(layer(backend), fp8(BlockShape{128, 128}, false, scale))
                  .config.static_scale,
              std::nullopt);
  }
}

TEST(PrepareFinalizeFactoryTest, Nvfp4) {
  std::vector<Expected> rows =
      with_senders(schemes::kNvfp4, {{B::kDeepEpHighThroughput, schemes::kNvfp4, kBf16},
                                     {B::kDeepEpV2, schemes::kNvfp4, kBf16},
                                     {B::kDeepEpLowLatency, kBf16, kAsScheme},
                                     {B::kNixlEp, kBf16, kAsScheme}});
  expect_schemes(nvfp4(), rows);
  for (Expected& row : rows) row.scheme = schemes::kNvfp4;
  expect_schemes(nvfp4(), rows, {.nvfp4_dispatch = true});
  for (const B backend : {B::kNaive, B::kDeepEpV2, B::kFlashInferNvlinkTwoSided}) {
    const auto config_of = [&](const QuantConfig& quant) {
      return choose_prepare_finalize(layer(backend), quant).config;
    };
    EXPECT_EQ(config_of(nvfp4()).static_scale, kGlobalScale);
    EXPECT_EQ(config_of(nvfp4()).scale_layout, ScaleLayout::kSwizzled);
    EXPECT_EQ(config_of(nvfp4(false)).scale_layout, ScaleLayout::kRowMajor);
    const TensorView equal = TensorView::of(kEqualScales.data(), {3});
    EXPECT_EQ(config_of(QuantConfig::nvfp4({.a1_gscale = equal})).static_scale, kGlobalScale);
    const float nothing = 0.0f;
    test::expect_invalid("a1_gscale is 0, must be a positive number", [&] {
      config_of(QuantConfig::nvfp4({.a1_gscale = TensorView::of(&nothing, {1})}));
    });
  }
}

TEST(PrepareFinalizeFactoryTest, MxFormats) {
  expect_schemes(mxfp8(),
                 with_senders(schemes::kMxfp8, {{B::kDeepEpHighThroughput, schemes::kMxfp8, kBf16},
                                                {B::kDeepEpV2, schemes::kMxfp8, kAsScheme},
                                                {B::kDeepEpLowLatency, schemes::kMxfp8, kBf16},
                                                {B::kNixlEp, schemes::kMxfp8, kBf16}}));
  expect_schemes(QuantConfig::mxfp4({}),
                 with_senders(schemes::kMxfp4, {{B::kDeepEpHighThroughput, schemes::kMxfp4, kBf16},
                                                {B::kDeepEpV2, schemes::kMxfp4, kBf16},
                                                {B::kDeepEpLowLatency, schemes::kMxfp4, kBf16}}));
  EXPECT_EQ(choose_prepare_finalize(layer(B::kNaive), mxfp8()).config.scale_layout,
            ScaleLayout::kSwizzled);
  EXPECT_EQ(choose_prepare_finalize(layer(B::kNaive), QuantConfig::mxfp4({})).config.scale_layout,
            ScaleLayout::kRowMajor);
}

TEST(PrepareFinalizeFactoryTest, ScalesThatNoClassCanTakeAreRefused) {
  const TensorView rows = TensorView::of(kRowScales.data(), {3});
  expect_error(Errc::kNotSupported, "it takes no scales by token", [&] {
    (void)choose_prepare_finalize(layer(B::kDeepEpLowLatency), fp8({}, true, rows));
  });
  expect_error(Errc::kNotSupported, "it takes no scales by token", [&] {
    (void)choose_prepare_finalize(layer(B::kDeepEpLowLatency),
                                  QuantConfig::fp8_w8a8({.a2_scale = rows}));
  });
  expect_error(Errc::kNotSupported, "a1_scale[1] is 0.5",
               [&] { (void)choose_prepare_finalize(layer(B::kNaive), fp8({}, false, rows)); });
  expect_error(Errc::kInvalidArgument, "a1_gscale is absent",
               [] { (void)choose_prepare_finalize(layer(B::kNaive), QuantConfig::nvfp4({})); });
  const std::int32_t one = 1;
  expect_error(Errc::kInvalidArgument, "must be f32", [&] {
    (void)choose_prepare_finalize(layer(B::kNaive), fp8({}, false, TensorView::of(&one, {1})));
  });
}

// a1_gscale is for nvfp4: elsewhere it stands beside a1_scale, whatever its size, or is refused.
TEST(PrepareFinalizeFactoryTest, GlobalScalesCountForNvfp4Only) {
  const TensorView rows = TensorView::of(kRowScales.data(), {3});
  const TensorView one = TensorView::of(&kGlobalScale, {1});
  for (const B backend : {B::kDeepEpLowLatency, B::kNaive}) {
    const auto choose = [&](const TensorView& scale, const TensorView& gscale) {
      const QuantConfig quant = QuantConfig::fp8_w8a8({.a1_scale = scale, .a1_gscale = gscale});
      return choose_prepare_finalize(layer(backend), quant).config;
    };
    EXPECT_EQ(choose(one, rows).static_scale, kGlobalScale);
    expect_error(Errc::kInvalidArgument, "a1_gscale is given without a1_scale",
                 [&] { (void)choose({}, one); });
  }
  EXPECT_EQ(choose_prepare_finalize(layer(B::kDeepEpLowLatency),
                                    QuantConfig::int4_w4a16({.a1_gscale = rows}))
                .config.scheme,
            schemes::kNone);
}

TEST(PrepareFinalizeFactoryTest, MxAlignmentMustDivideTheHiddenSize) {
  const auto choose = [](const QuantConfig& quant) {
    return choose_prepare_finalize(layer(B::kDeepEpV2), quant).config.hidden;
  };
  const QuantExtras by_192{.mx_alignment = 192};
  EXPECT_EQ(choose(QuantConfig::mxfp4_mxfp8({.extras = {.mx_alignment = 128}})), 256);
  EXPECT_EQ(choose(QuantConfig::fp8_w8a8({.extras = by_192})), 256);  // only mxfp8 is padded
  expect_error(Errc::kNotSupported, "hidden is 256, must be a multiple of mx_alignment, 192",
               [&] { (void)choose(QuantConfig::mxfp4_mxfp8({.extras = by_192})); });
}

TEST(PrepareFinalizeFactoryTest, RoutingTablesTranslateIds) {
  const RoutingTables tables = round_robin_routing_tables(2, 0, 8);
  const auto choose = [&](std::span<const std::int64_t> table) {
    return choose_prepare_finalize(layer(B::kDeepEpLowLatency), {}, {.global_to_physical = table});
  };
  EXPECT_EQ(choose(tables.global_to_physical).config.global_to_physical,
            (std::vector<std::int32_t>{0, 4, 1, 5, 2, 6, 3, 7}));
  expect_error(Errc::kInvalidArgument, "has 1 entries", [&] { (void)choose(std::array{0L}); });
  expect_error(Errc::kInvalidArgument, "global_to_physical[0] is 4294967296",
               [&] { (void)choose(std::array{1L << 32}); });
}

TEST(PrepareFinalizeFactoryTest, TheGroupIsThatOfTheExperts) {
  run_ranks(1, [](const Group& group) {
    expect_error(Errc::kInvalidArgument, "rank 0 of a group of 1, but the configuration says",
                 [&] { (void)make_prepare_finalize(group, layer(B::kNaive), {}); });
    const auto local = make_prepare_finalize(group, layer(B::kNaive, 1), {});
    EXPECT_EQ(local->kind(), K::kLocal);
  });
}

// Every backend works with every kind of activations and returns what was chosen.
TEST(PrepareFinalizeFactoryTest, WhatIsMadeWorks) {
  const std::vector<QuantConfig> quants{{},      fp8(),   fp8({}, true), fp8(BlockShape{128, 128}),
                                        nvfp4(), mxfp8(), nvfp4(false)};
  for (const B backend : kAll) {
    for (const QuantConfig& quant : quants) {
      const PrepareFinalizeOptions options{.nvfp4_dispatch = true};
      run_ranks(2, [&](const Group& group) {
        const MoEConfig moe = layer(backend, 2, group.rank());
        const PrepareFinalizeConfig config = choose_prepare_finalize(moe, quant, options).config;
        const auto made = make_prepare_finalize(group, moe, quant, options);
        const Tensor hidden(DType::kBF16, {3, 256});
        std::fill_n(hidden.as<std::uint16_t>(), 3 * 256, std::uint16_t{0x3F80});
        const Tensor ids(DType::kI32, {3, 2});
        std::iota(ids.as<std::int32_t>(), ids.as<std::int32_t>() + 6, 1);
        const Tensor weights(DType::kF32, {3, 2});
        std::fill_n(weights.as<float>(), 6, 0.5f);
        const Prepared prepared = made->prepare({hidden, ids, weights});
        EXPECT_EQ(prepared.experts.scheme, config.scheme) << name_of(config.scheme);
        EXPECT_EQ(prepared.experts.scale_layout, config.scale_layout) << name_of(config.scheme);
        EXPECT_GT(prepared.host->num_rows, 0);
        const Tensor rows = test::zeros_like(prepared.experts.rows);
        std::fill_n(rows.as<std::uint16_t>(), rows.view().num_elements(), std::uint16_t{0x3F80});
        const Tensor output(DType::kBF16, {3, 256});
        made->finalize({output, rows, WeightAndReduce::no_op()});
        // The output adds a one for both choices, or for each rank that the token went to.
        const bool is_grouped = made->activation_format() == ActivationFormat::kBatched;
        const std::uint16_t both = 0x4000;
        for (std::int64_t t = 0; t < 3; ++t) {
          // Token 1 names experts 3 and 4, on both ranks; the others' experts share a rank.
          const std::uint16_t want = is_grouped || t == 1 ? both : 0x3F80;
          EXPECT_EQ(output.as<std::uint16_t>()[t * 256], want) << name_of(backend) << " " << t;
        }
      });
    }
  }
}

}  // namespace
}  // namespace switchyard
