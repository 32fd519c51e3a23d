// SPDX-License-Identifier: Apache-2.0

#include "switchyard/moe_config.h"

#include <functional>
#include <limits>
#include <string>

#include "core/settings.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using test::expect_invalid;

MoEConfig small() {
  MoEConfig config;
  config.num_experts = 9;
  config.num_topk = 2;
  config.hidden = 64;
  return config;
}

TEST(MoEConfigTest, DefaultsAreFilledIn) {
  const MoEConfig config = MoEConfig::make(small());
  EXPECT_EQ(config.max_num_tokens, 256);
  EXPECT_FALSE(config.has_bias);
  EXPECT_EQ(config.num_local_experts, 9);
  EXPECT_EQ(config.num_logical_experts, 9);
  EXPECT_EQ(config.router_logits_dtype, DType::kBF16);
  EXPECT_EQ(config.hidden_unpadded, 64);
  EXPECT_EQ(config.intermediate_per_partition_unpadded, 0);
  EXPECT_FALSE(config.use_all2all_kernels());
}

TEST(MoEConfigTest, LocalExpertsAreTheLinearShare) {
  MoEConfig config = small();
  std::string counts;
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    config.parallel =
        ParallelConfig::make({.dp_size = 4, .dp_rank = rank, .enable_expert_parallel = true});
    counts += std::to_string(*MoEConfig::make(config).num_local_experts);
  }
  EXPECT_EQ(counts, "3222");
}

TEST(MoEConfigTest, TensorParallelRanksShareTheIntermediateSize) {
  MoEConfig config = small();
  config.intermediate = 96;
  config.parallel = ParallelConfig::make({.tp_size = 4, .tp_rank = 3});
  const MoEConfig made = MoEConfig::make(config);
  EXPECT_EQ(made.intermediate_per_partition(), 24);
  EXPECT_EQ(made.intermediate_per_partition_unpadded, 24);
  config.intermediate = 98;
  expect_invalid("intermediate is 98, must be a multiple of tp_size 4",
                 [&] { (void)MoEConfig::make(config); });
}

TEST(MoEConfigTest, ForwardsTheParallelConfiguration) {
  MoEConfig config = small();
  ParallelConfig& p = config.parallel;
  p = ParallelConfig::make({.tp_size = 2,
                            .tp_rank = 1,
                            .dp_size = 3,
                            .dp_rank = 2,
                            .pcp_size = 5,
                            .pcp_rank = 4,
                            .sp_size = 2,
                            .enable_expert_parallel = true,
                            .all2all_backend = All2AllBackend::kDeepEpLowLatency});
  EXPECT_EQ(config.tp_size(), 1);
  EXPECT_EQ(config.tp_rank(), 0);
  EXPECT_EQ(config.dp_size(), 3);
  EXPECT_EQ(config.dp_rank(), 2);
  EXPECT_EQ(config.pcp_size(), 5);
  EXPECT_EQ(config.pcp_rank(), 4);
  EXPECT_EQ(config.ep_size(), 30);
  EXPECT_EQ(config.ep_rank(), 29);
  EXPECT_EQ(config.sp_size(), 2);
  EXPECT_TRUE(config.use_ep() && config.is_sequence_parallel() && config.use_all2all_kernels());
  EXPECT_TRUE(config.use_deepep_ll_kernels() && config.use_batched_activation_format() &&
              config.needs_round_robin_routing_tables());

  using Backend = All2AllBackend;
  const std::vector<std::pair<Backend, bool (MoEConfig::*)() const>> forwarded{
      {Backend::kDeepEpHighThroughput, &MoEConfig::use_deepep_ht_kernels},
      {Backend::kDeepEpV2, &MoEConfig::use_deepep_v2_kernels},
      {Backend::kFlashInferNvlinkTwoSided, &MoEConfig::use_fi_nvl_two_sided_kernels},
      {Backend::kFlashInferNvlinkOneSided, &MoEConfig::use_fi_nvl_one_sided_kernels},
      {Backend::kAllGatherReduceScatter, &MoEConfig::use_ag_rs_all2all_kernels},
      {Backend::kNaive, &MoEConfig::use_naive_all2all_kernels},
      {Backend::kMoriLowLatency, &MoEConfig::use_mori_kernels},
      {Backend::kNixlEp, &MoEConfig::use_nixl_ep_kernels},
      {Backend::kPplx, &MoEConfig::use_pplx_kernels}};
  for (const auto& [backend, predicate] : forwarded) {
    EXPECT_FALSE((config.*predicate)()) << name_of(backend);
    MoEConfig other = config;
    other.parallel.all2all_backend = backend;
    EXPECT_TRUE((other.*predicate)()) << name_of(backend);
  }
}

TEST(MoEConfigTest, FlashInferKernelsFollowTheSettings) {
  const MoEConfig config = MoEConfig::make(small());
  EXPECT_FALSE(config.use_flashinfer_cutlass_kernels());
  set_setting("SWITCHYARD_USE_FLASHINFER_MOE_FP4", "1");
  EXPECT_TRUE(config.use_flashinfer_cutlass_kernels());
  EXPECT_FALSE(config.use_flashinfer_cutlass_kernels(false));
  set_setting("SWITCHYARD_FLASHINFER_MOE_BACKEND", "latency");
  EXPECT_FALSE(config.use_flashinfer_cutlass_kernels());
  set_setting("SWITCHYARD_FLASHINFER_MOE_BACKEND", "masked_gemm");
  EXPECT_FALSE(config.use_flashinfer_cutlass_kernels());
  set_setting("SWITCHYARD_FLASHINFER_MOE_BACKEND", "fast");
  expect_invalid("is \"fast\", must be throughput, latency or masked_gemm",
                 [&] { (void)config.use_flashinfer_cutlass_kernels(); });
  set_setting("SWITCHYARD_FLASHINFER_MOE_BACKEND", "throughput");
  set_setting("SWITCHYARD_USE_FLASHINFER_MOE_FP4", "yes");
  expect_invalid("is \"yes\", must be a whole number from 0 to 1",
                 [&] { (void)config.use_flashinfer_cutlass_kernels(); });
  set_setting("SWITCHYARD_USE_FLASHINFER_MOE_FP4", "0");
}

TEST(MoEConfigTest, ActivationNamesGoBothWays) {
  for (int i = 0; i < 6; ++i) {
    const auto activation = static_cast<MoEActivation>(i);
    EXPECT_EQ(moe_activation_from_name(name_of(activation)), activation);
    EXPECT_EQ(is_gated(activation),
              std::string(name_of(activation)).find("no_mul") == std::string::npos);
  }
  EXPECT_EQ(moe_activation_from_name("tanh"), std::nullopt);
}

TEST(MoEConfigTest, RefusesWhatCannotBe) {
  const auto refuses = [](const std::string& phrase, const std::function<void(MoEConfig&)>& edit) {
    MoEConfig config = small();
    edit(config);
    expect_invalid(phrase, [&] { (void)MoEConfig::make(config); });
  };
  constexpr auto kMax32 = std::numeric_limits<std::int32_t>::max();
  refuses("num_experts is 0", [](MoEConfig& c) { c.num_experts = 0; });
  refuses("num_experts is 2147483647", [](MoEConfig& c) { c.num_experts = kMax32; });
  refuses("num_topk is 10, must be from 1 to 9", [](MoEConfig& c) { c.num_topk = 10; });
  refuses("num_topk is 0", [](MoEConfig& c) { c.num_topk = 0; });
  refuses("num_topk is 65, must be from 1 to 64", [](MoEConfig& c) {
    c.num_experts = 100;
    c.num_topk = 65;
  });
  refuses("hidden is -1", [](MoEConfig& c) { c.hidden = -1; });
  refuses("max_num_tokens is 0", [](MoEConfig& c) { c.max_num_tokens = 0; });
  refuses("intermediate is -2", [](MoEConfig& c) { c.intermediate = -2; });
  refuses("num_local_experts is 10", [](MoEConfig& c) { c.num_local_experts = 10; });
  refuses("num_logical_experts is 0", [](MoEConfig& c) { c.num_logical_experts = 0; });
  refuses("hidden_unpadded is 65", [](MoEConfig& c) { c.hidden_unpadded = 65; });
  refuses("in_dtype is e4m3", [](MoEConfig& c) { c.in_dtype = DType::kE4M3; });
  refuses("router_logits_dtype is i8", [](MoEConfig& c) { c.router_logits_dtype = DType::kI8; });
  refuses("parallel.tp_rank is 0 of tp_size 0", [](MoEConfig& c) { c.parallel.tp_size = 0; });
  refuses("parallel.ep_rank is 2 of ep_size 2", [](MoEConfig& c) {
    c.parallel.ep_size = 2;
    c.parallel.ep_rank = 2;
  });
  refuses("use_ep is false with tp_size 1 and ep_size 2",
          [](MoEConfig& c) { c.parallel.ep_size = 2; });
}

}  // namespace
}  // namespace switchyard
