// SPDX-License-Identifier: Apache-2.0
//
// Every policy of the prepare/finalize classes, split calls, quantized results and f32 outputs have
// the bits of the CPU on GPUs. What else they hand out and accept is compared in src/conformance.
// Ranks are threads; with fewer GPUs than ranks some share a GPU.

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "class_rank.h"
#include "gpu.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using test::ClassCase;
using test::ClassRank;
using test::expect_error;
using test::GpuArena;
using test::run_ranks;

const bool is_prepared = (test::load_kernels_eagerly(), true);

constexpr PrepareKind kAllKinds[] = {PrepareKind::kLowLatency,     PrepareKind::kElasticDecode,
                                     PrepareKind::kElasticPrefill, PrepareKind::kAllGather,
                                     PrepareKind::kAllToAll,       PrepareKind::kAllToAllOneSided,
                                     PrepareKind::kLocal};

PrepareFinalizeConfig config_of(const QuantScheme& scheme, std::int64_t hidden = 512) {
  PrepareFinalizeConfig config;
  config.num_experts = 11;
  config.num_topk = 3;
  config.hidden = hidden;
  config.max_tokens_per_rank = 37;
  config.scheme = scheme;
  if (scheme.group == ScaleGroup::kTensor) config.static_scale = 0.25f;
  if (scheme.needs_tensor_scale()) config.static_scale = 300.0f;
  return config;
}

bool is_grouped(PrepareKind kind) {
  return kind == PrepareKind::kLowLatency || kind == PrepareKind::kElasticPrefill ||
         kind == PrepareKind::kLocal;
}

std::vector<ClassCase> cases() {
  std::vector<ClassCase> all;
  const auto add = [&](ClassCase c) {
    c.name = std::string(name_of(c.kind)) + "_" + c.name + "_" + std::to_string(all.size());
    all.push_back(std::move(c));
  };
  for (const PrepareKind kind : kAllKinds) {
    ClassCase parts{"micro_batches", kind, 2, config_of(schemes::kFp8Block)};
    parts.config.num_micro_batches = 2;
    add(parts);

    ClassCase back{"fp8_results", kind, 2, config_of(schemes::kFp8Block)};
    back.config.combine_scheme = schemes::kFp8Block;
    add(back);

    if (!is_grouped(kind)) continue;
    for (const Reduce reduce : {Reduce::kPerExpert, Reduce::kPerRank}) {
      ClassCase sums{name_of(reduce), kind, 2, config_of(schemes::kFp8Block)};
      sums.config.reduce = reduce;
      add(sums);
    }
  }
  return all;
}

class PrepareFinalizeCudaTest : public testing::TestWithParam<ClassCase> {};

TEST_P(PrepareFinalizeCudaTest, EqualsTheCpuClass) {
  REQUIRE_GPU();
  run_ranks(GetParam().num_ranks, [&](const Group& group) { ClassRank(group, GetParam()).run(); });
}

INSTANTIATE_TEST_SUITE_P(All, PrepareFinalizeCudaTest, testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

TEST(PrepareFinalizeCudaErrorsTest, WhatNoGpuServesIsRefused) {
  REQUIRE_GPU();
  run_ranks(1, [&](const Group& group) {
    const ExchangeOptions on_gpu{.device = test::kGpu};
    PrepareFinalizeConfig dynamic = config_of(schemes::kFp8Tensor);
    dynamic.static_scale.reset();
    for (const PrepareKind kind : {PrepareKind::kLowLatency, PrepareKind::kAllToAllOneSided}) {
      expect_error(Errc::kNotSupported, "give static_scale",
                   [&] { make_prepare_finalize(kind, group, dynamic, on_gpu); });
    }
    PrepareFinalizeConfig wide = config_of(schemes::kMxfp6E2M3);
    wide.wire_scheme = QuantScheme{DType::kF32};
    expect_error(Errc::kNotSupported, "must be bf16 or quantized",
                 [&] { make_prepare_finalize(PrepareKind::kLowLatency, group, wide, on_gpu); });
    PrepareFinalizeConfig none = config_of(schemes::kNvfp4);
    none.static_scale.reset();
    expect_error(Errc::kInvalidArgument, "static_scale is absent",
                 [&] { make_prepare_finalize(PrepareKind::kLowLatency, group, none, on_gpu); });
  });
}

TEST(PrepareFinalizeCudaErrorsTest, WrongCallsSendNothing) {
  REQUIRE_GPU();
  run_ranks(2, [&](const Group& group) {
    PrepareFinalizeConfig config = config_of(schemes::kFp8Block);
    config.strict = true;
    config.hidden = 2048;
    config.num_experts = 12;
    config.max_tokens_per_rank = 36;
    GpuArena arena(test::gpu_of(group.rank()), std::size_t{64} << 20);
    const ExchangeOptions on_gpu{.device = arena.device()};
    const auto object = make_prepare_finalize(PrepareKind::kElasticDecode, group, config, on_gpu);
    const test::LayerInput in = test::make_layer_input({4, 2048, 3, 12, 0}, 1);
    const PrepareArguments good{arena.upload(in.hidden), arena.upload(in.ids),
                                arena.upload(in.weights)};
    const Stream stream = arena.stream();
    const auto expect_refused = [&](const char* phrase, const PrepareArguments& arguments) {
      expect_error(Errc::kInvalidArgument, phrase, [&] { object->prepare(arguments, stream); });
    };
    PrepareArguments bad = good;
    bad.micro_batch = 1;
    expect_refused("micro_batch is 1, must be from 0 to 0", bad);
    bad = good;
    bad.topk_ids = TensorView(good.topk_ids.data(), DType::kI32, {4, 3}, arena.device());
    expect_refused("strict wants i64", bad);
    bad = good;
    bad.apply_router_weight_on_input = true;
    expect_refused("with 3 experts a token, must be 1", bad);
    bad = good;
    bad.defer_input_quant = true;
    expect_refused("set PrepareFinalizeConfig::defers_input_quant", bad);
    bad = good;
    bad.hidden = TensorView(good.hidden.data(), DType::kBF16, {37, 2048}, arena.device());
    expect_refused("but max_tokens_per_rank is 36", bad);

    const TensorView output = arena.upload(in.hidden);
    const TensorView rows = arena.upload(Tensor(DType::kBF16, {object->max_buffer_rows(), 2048}));
    expect_error(Errc::kInvalidArgument, "nothing is prepared", [&] {
      object->finalize({output, rows, WeightAndReduce::no_op()}, stream);
    });
    object->prepare(good, stream);
    expect_refused("was prepared and not finalized", good);
    const auto expect_not_final = [&](const char* phrase, const FinalizeArguments& results) {
      expect_error(Errc::kInvalidArgument, phrase, [&] { object->finalize(results, stream); });
    };
    expect_not_final("pass no_op for rows that are summed", {output, rows});
    expect_not_final("must be delegate, no_op or contiguous",
                     {output, rows, WeightAndReduce::naive_batched(0)});
    expect_not_final("reduced",
                     {output, TensorView(rows.data(), DType::kBF16,
                                         {object->max_buffer_rows(), 3, 2048}, arena.device())});
    expect_not_final("output", {rows, rows, WeightAndReduce::no_op()});
    object->finalize({output, rows, WeightAndReduce::no_op()}, stream);
    arena.wait();
    object->check();
  });
}

// Without a GPU the error gives the reason.
TEST(PrepareFinalizeCudaErrorsTest, WithoutAGpuThereIsNone) {
  if (test::num_gpus() > 0) GTEST_SKIP() << "this machine has a GPU";
  run_ranks(1, [](const Group& group) {
    expect_error(Errc::kNotAvailable, "cuda:", [&] {
      make_prepare_finalize(PrepareKind::kLowLatency, group, config_of(schemes::kNone),
                            {.device = test::kGpu});
    });
  });
}

}  // namespace
}  // namespace switchyard
