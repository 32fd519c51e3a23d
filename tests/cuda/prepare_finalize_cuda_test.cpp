// SPDX-License-Identifier: Apache-2.0
//
// Every policy of the prepare/finalize classes, split calls, quantized results and f32 outputs have
// the bits of the CPU on GPUs. What else they hand out and accept is compared in
// instruments/conformance. Ranks are threads; with fewer GPUs than ranks some share a GPU.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "class_rank.h"
#include "device/cuda_module.h"
#include "gpu.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using namespace test;

const bool is_prepared = (prepare_for_shared_gpus(), true);

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
  return kind == PrepareKind::kLowLatency || kind == PrepareKind::kElasticPrefill;
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

    // Rows with gaps, in which nothing may count.
    for (const QuantScheme& scheme : {schemes::kFp8Tensor, schemes::kInt8Tensor}) {
      ClassCase dynamic{"dynamic_" + name_of(scheme), kind, 2, config_of(scheme)};
      dynamic.config.static_scale.reset();
      if (kind == PrepareKind::kElasticPrefill) dynamic.config.expert_alignment = 16;
      add(dynamic);
    }
    if (kind == PrepareKind::kAllGather) {
      ClassCase sliced{"slices", kind, 2, config_of(schemes::kFp8Block)};
      sliced.config.slices_experts = true;
      add(sliced);
    }

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
    PrepareFinalizeConfig wide = config_of(schemes::kMxfp6E2M3);
    wide.wire_scheme = QuantScheme{DType::kF32};
    expect_error(Errc::kNotSupported, "must be bf16 or quantized",
                 [&] { make_prepare_finalize(PrepareKind::kLowLatency, group, wide, on_gpu); });
    PrepareFinalizeConfig none = config_of(schemes::kNvfp4);
    none.static_scale.reset();
    expect_invalid("static_scale is absent",
                   [&] { make_prepare_finalize(PrepareKind::kLowLatency, group, none, on_gpu); });
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
