// SPDX-License-Identifier: Apache-2.0
//
// The truth table of tensor, data and expert parallelism, the backends and their predicates.

#include "switchyard/parallel_config.h"

#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/settings.h"
#include "support/errors.h"

namespace switchyard {
namespace {

using test::expect_invalid;
using Backend = All2AllBackend;
constexpr int kNumBackends = 12;

using Pair = std::pair<std::int32_t, std::int32_t>;  // size, rank

ParallelOptions options_of(std::int32_t tp, std::int32_t t, std::int32_t dp, std::int32_t d,
                           bool is_expert_parallel) {
  return {.tp_size = tp,
          .tp_rank = t,
          .dp_size = dp,
          .dp_rank = d,
          .enable_expert_parallel = is_expert_parallel};
}

TEST(ParallelConfigTest, ContextParallelRanksLieBetweenDataAndTensorParallelRanks) {
  // dp 2 x pcp 3 x tp 2: (d, p, t) = (1, 2, 1) is the last of 12; (1, 0, 1) is rank 7.
  ParallelOptions options = options_of(2, 1, 2, 1, true);
  options.pcp_size = 3;
  options.pcp_rank = 2;
  ParallelConfig config = ParallelConfig::make(options);
  EXPECT_EQ(Pair(config.ep_size, config.ep_rank), Pair(12, 11));
  EXPECT_EQ(Pair(config.pcp_size, config.pcp_rank), Pair(3, 2));
  options.pcp_rank = 0;
  options.enable_expert_parallel = false;
  config = ParallelConfig::make(options);
  EXPECT_EQ(Pair(config.tp_size, config.tp_rank), Pair(12, 7));
  EXPECT_EQ(Pair(config.ep_size, config.ep_rank), Pair(1, 0));
}

TEST(ParallelConfigTest, FlatRanksAreEachTakenOnce) {
  std::set<std::int32_t> seen;
  for (std::int32_t d = 0; d < 3; ++d) {
    for (std::int32_t p = 0; p < 2; ++p) {
      for (std::int32_t t = 0; t < 5; ++t) {
        ParallelOptions options = options_of(5, t, 3, d, true);
        options.pcp_size = 2;
        options.pcp_rank = p;
        seen.insert(ParallelConfig::make(options).ep_rank);
      }
    }
  }
  EXPECT_EQ(seen.size(), 30u);
  EXPECT_EQ(*seen.rbegin(), 29);
}

TEST(ParallelConfigTest, ARankOfOneIsTakenAsZero) {
  EXPECT_EQ(ParallelConfig::make(options_of(1, 7, 2, 1, true)).ep_rank, 1);
}

TEST(ParallelConfigTest, All2AllKernelsWantExpertsSpreadOverMoreThanTensorParallelRanks) {
  EXPECT_FALSE(ParallelConfig::make_no_parallel().use_all2all_kernels());
  EXPECT_FALSE(ParallelConfig::make(options_of(2, 0, 1, 0, true)).use_all2all_kernels());
  EXPECT_FALSE(ParallelConfig::make(options_of(1, 0, 2, 0, false)).use_all2all_kernels());
  EXPECT_TRUE(ParallelConfig::make(options_of(1, 0, 2, 0, true)).use_all2all_kernels());
  ParallelOptions context = options_of(1, 0, 1, 0, true);
  context.pcp_size = 2;
  EXPECT_TRUE(ParallelConfig::make(context).use_all2all_kernels());
  ParallelOptions sequence = options_of(2, 0, 1, 0, true);
  sequence.sp_size = 2;
  EXPECT_TRUE(ParallelConfig::make(sequence).use_all2all_kernels());
  EXPECT_TRUE(ParallelConfig::make(sequence).is_sequence_parallel());
  sequence.enable_expert_parallel = false;
  EXPECT_FALSE(ParallelConfig::make(sequence).use_all2all_kernels());
}

// The predicates that hold for a backend, with the two about formats at the end.
std::string predicates_of(const ParallelConfig& c) {
  const std::vector<std::pair<bool, const char*>> all{
      {c.use_ag_rs_all2all_kernels(), "ag_rs"},
      {c.use_naive_all2all_kernels(), "naive"},
      {c.use_deepep_ht_kernels(), "ht"},
      {c.use_deepep_ll_kernels(), "ll"},
      {c.use_deepep_v2_kernels(), "v2"},
      {c.use_fi_nvl_two_sided_kernels(), "two_sided"},
      {c.use_fi_nvl_one_sided_kernels(), "one_sided"},
      {c.use_mori_kernels(), "mori"},
      {c.use_nixl_ep_kernels(), "nixl"},
      {c.use_pplx_kernels(), "pplx"},
      {c.use_batched_activation_format(), "+batched"},
      {c.needs_round_robin_routing_tables(), "+tables"}};
  std::string names;
  for (const auto& [holds, name] : all) names += holds ? name : "";
  return names;
}

TEST(ParallelConfigTest, EachBackendHasItsPredicates) {
  const std::vector<std::pair<Backend, const char*>> table{
      {Backend::kAllGatherReduceScatter, "ag_rs"},
      {Backend::kNaive, "naive"},
      {Backend::kDeepEpHighThroughput, "ht"},
      {Backend::kDeepEpLowLatency, "ll+batched+tables"},
      {Backend::kDeepEpV2, "v2"},
      {Backend::kFlashInferNvlinkTwoSided, "two_sided"},
      {Backend::kFlashInferAll2AllV, "two_sided"},
      {Backend::kFlashInferNvlinkOneSided, "one_sided"},
      {Backend::kMoriHighThroughput, "mori"},
      {Backend::kMoriLowLatency, "mori"},
      {Backend::kNixlEp, "nixl+batched+tables"},
      {Backend::kPplx, "pplx"}};
  ASSERT_EQ(table.size(), static_cast<std::size_t>(kNumBackends));
  for (const auto& [backend, names] : table) {
    ParallelOptions options = options_of(1, 0, 2, 0, true);
    options.all2all_backend = backend;
    EXPECT_EQ(predicates_of(ParallelConfig::make(options)), names);
    options.enable_expert_parallel = false;
    EXPECT_EQ(predicates_of(ParallelConfig::make(options)), "");
  }
}

TEST(ParallelConfigTest, TheBackendComesFromTheSetting) {
  const ParallelOptions options = options_of(1, 0, 2, 0, true);
  EXPECT_TRUE(ParallelConfig::make(options).use_ag_rs_all2all_kernels());
  set_setting("SWITCHYARD_ALL2ALL_BACKEND", "deepep_low_latency");
  EXPECT_TRUE(ParallelConfig::make(options).use_deepep_ll_kernels());
  set_setting("SWITCHYARD_ALL2ALL_BACKEND", "deepep");
  expect_invalid("setting SWITCHYARD_ALL2ALL_BACKEND is \"deepep\", must be a backend's name",
                 [&] { (void)ParallelConfig::make(options); });
  set_setting("SWITCHYARD_ALL2ALL_BACKEND", "allgather_reducescatter");
}

TEST(ParallelConfigTest, RefusesImpossibleSizesAndRanks) {
  constexpr auto kMax = std::numeric_limits<std::int32_t>::max();
  const auto make = [](const ParallelOptions& options) {
    return [options] { (void)ParallelConfig::make(options); };
  };
  expect_invalid("tp_size is 0", make(options_of(0, 0, 1, 0, true)));
  expect_invalid("dp_size is -1", make(options_of(1, 0, -1, 0, true)));
  expect_invalid("dp_rank is 2, must be from 0 to 1", make(options_of(1, 0, 2, 2, true)));
  expect_invalid("tp_rank is -1", make(options_of(2, -1, 1, 0, true)));
  expect_invalid("sp_size is 0", make({.sp_size = 0}));
  expect_invalid("ranks, must be at most 2147483647", make(options_of(kMax, 0, 2, 0, true)));
  expect_invalid("overflows 64 bits", make({.tp_size = kMax, .dp_size = kMax, .pcp_size = kMax}));
  const ParallelConfig largest = ParallelConfig::make(options_of(kMax, kMax - 1, 1, 0, true));
  EXPECT_EQ(Pair(largest.ep_size, largest.ep_rank), Pair(kMax, kMax - 1));
}

TEST(All2AllBackendTest, NamesGoBothWays) {
  const std::vector<std::string> names{"allgather_reducescatter",
                                       "naive",
                                       "deepep_high_throughput",
                                       "deepep_low_latency",
                                       "deepep_v2",
                                       "flashinfer_nvlink_two_sided",
                                       "flashinfer_all2allv",
                                       "flashinfer_nvlink_one_sided",
                                       "mori_high_throughput",
                                       "mori_low_latency",
                                       "nixl_ep",
                                       "pplx"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto backend = all2all_backend_from_name(names[i]);
    ASSERT_TRUE(backend.has_value()) << names[i];
    EXPECT_EQ(static_cast<std::size_t>(*backend), i);
    EXPECT_EQ(name_of(*backend), names[i]);
  }
  EXPECT_EQ(all2all_backend_from_name("deepep"), std::nullopt);
  EXPECT_STREQ(name_of(static_cast<Backend>(kNumBackends)), "unknown");
}

TEST(All2AllBackendTest, Properties) {
  const All2AllProperties gather{ActivationFormat::kStandard, false, std::nullopt, false};
  EXPECT_EQ(properties_of(Backend::kAllGatherReduceScatter), gather);
  EXPECT_EQ(properties_of(Backend::kNaive), gather);
  EXPECT_EQ(properties_of(Backend::kDeepEpLowLatency),
            (All2AllProperties{ActivationFormat::kBatched, true, DType::kI64, true}));
  EXPECT_EQ(properties_of(Backend::kDeepEpV2),
            (All2AllProperties{ActivationFormat::kStandard, true, DType::kI64, true}));
  EXPECT_EQ(properties_of(Backend::kFlashInferAll2AllV),
            properties_of(Backend::kFlashInferNvlinkTwoSided));
  EXPECT_EQ(properties_of(Backend::kFlashInferNvlinkOneSided).topk_indices_dtype, DType::kI32);
  // The backends with batched format are those that the parallel configuration reports as batched,
  // and pplx, which vLLM no longer has.
  for (int i = 0; i < kNumBackends; ++i) {
    const auto backend = static_cast<Backend>(i);
    ParallelOptions options = options_of(1, 0, 2, 0, true);
    options.all2all_backend = backend;
    const bool is_batched = properties_of(backend).format == ActivationFormat::kBatched;
    EXPECT_EQ(is_batched, backend == Backend::kPplx ||
                              ParallelConfig::make(options).use_batched_activation_format());
  }
  expect_invalid("backend is 12, must be allgather_reducescatter,",
                 [] { (void)properties_of(static_cast<Backend>(kNumBackends)); });
}

}  // namespace
}  // namespace switchyard
