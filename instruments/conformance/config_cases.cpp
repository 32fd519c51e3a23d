// SPDX-License-Identifier: Apache-2.0
//
// Tables of the configuration, as vLLM has them (fused_moe/config.py, ocp_mx_utils.py): parallel
// sizes and ranks, shapes of scales by flags, OCP MX pairs, builders, names of tuned files.

#include <array>

#include <fmt/format.h>

#include "switchyard/parallel_config.h"
#include "switchyard/quant_config.h"

#include "conformance/check_case.h"

namespace switchyard::conformance {
namespace {

void add(Cases& cases, const char* row, std::string name, std::function<void()> body) {
  CheckCase result;
  result.group = "tables";
  result.name = fmt::format("tables/{}/{}", row, name);
  result.row = row;
  result.column = "exact values";
  result.body = [body = std::move(body)](const Group&, std::uint64_t) {
    body();
    return Agreement{};
  };
  cases.push_back(std::move(result));
}

struct Parallel {
  int tp, dp;
  bool enables_ep;
  // Of device i: size, and rank = i / divisor (0: rank 0).
  std::array<int, 2> want_tp, want_dp, want_ep;
};

constexpr std::array<Parallel, 9> kParallel{{
    {1, 1, false, {1, 0}, {1, 0}, {1, 0}},
    {1, 1, true, {1, 0}, {1, 0}, {1, 0}},
    {2, 1, false, {2, 1}, {1, 0}, {1, 0}},
    {1, 2, false, {2, 1}, {2, 1}, {1, 0}},
    {2, 2, false, {4, 1}, {2, 2}, {1, 0}},
    {2, 1, true, {1, 0}, {1, 0}, {2, 1}},
    {1, 2, true, {1, 0}, {2, 1}, {2, 1}},
    {2, 2, true, {1, 0}, {2, 2}, {4, 1}},
    {4, 2, true, {1, 0}, {2, 4}, {8, 1}},
}};

void check_parallel(const Parallel& test) {
  for (int i = 0; i < test.tp * test.dp; ++i) {
    ParallelOptions options;
    options.tp_size = test.tp;
    options.tp_rank = i % test.tp;
    options.dp_size = test.dp;
    options.dp_rank = i / test.tp;
    options.enable_expert_parallel = test.enables_ep;
    options.all2all_backend = All2AllBackend::kDeepEpLowLatency;
    const ParallelConfig got = ParallelConfig::make(options);
    const auto expect_part = [&](const char* what, int size, int rank,
                                 const std::array<int, 2>& want) {
      const int want_rank = want[1] == 0 ? 0 : i / want[1];
      expect(size == want[0] && rank == want_rank, "device {}: {} is ({}, {}), expected ({}, {})",
             i, what, size, rank, want[0], want_rank);
    };
    expect_part("TP", got.tp_size, got.tp_rank, test.want_tp);
    expect_part("DP", got.dp_size, got.dp_rank, test.want_dp);
    expect_part("EP", got.ep_size, got.ep_rank, test.want_ep);
    const bool uses_ep = test.enables_ep && test.tp * test.dp > 1;
    expect(got.use_ep == uses_ep, "use_ep is {}", got.use_ep);
    expect(got.use_all2all_kernels() == (uses_ep && test.dp > 1), "use_all2all_kernels is {}",
           got.use_all2all_kernels());
    expect(got.use_deepep_ll_kernels() == got.use_all2all_kernels() && !got.use_deepep_ht_kernels(),
           "another backend");
  }
}

struct Flags {
  QuantDType dtype;
  bool per_token, per_channel, has_block;
  std::optional<GroupShape> activation, weight;
};

const std::vector<Flags>& flags() {
  constexpr GroupShape kBlock{128, 64};
  static const std::vector<Flags> kFlags{
      {QuantDType::kFp8E4M3, false, false, true, kBlock, kBlock},
      {QuantDType::kNone, false, false, true, kBlock, kBlock},
      {QuantDType::kNone, true, false, false, group_shapes::kPerToken, {}},
      {QuantDType::kInt8, false, false, false, group_shapes::kPerTensor, {}},
      {QuantDType::kNone, false, false, false, {}, {}},
      {QuantDType::kFp8E4M3, false, false, false, group_shapes::kPerTensor, {}},
      {QuantDType::kFp8E4M3, true, false, false, group_shapes::kPerToken, {}},
      {QuantDType::kFp8E4M3, true, true, false, group_shapes::kPerToken, group_shapes::kPerToken},
      {QuantDType::kNone, false, true, false, {}, group_shapes::kPerToken},
      {QuantDType::kInt8, false, true, false, group_shapes::kPerTensor, group_shapes::kPerToken}};
  return kFlags;
}

void check_flags(const Flags& test) {
  const auto block = test.has_block ? std::optional(BlockShape{128, 64}) : std::nullopt;
  const QuantShapes got =
      quant_flags_to_group_shape(test.dtype, test.per_token, test.per_channel, block);
  expect(got.activation == test.activation, "activations have another group shape");
  expect(got.weight == test.weight, "weights have another group shape");
}

constexpr std::array kActivations{QuantDType::kNone, QuantDType::kMxfp4, QuantDType::kMxfp6E3M2,
                                  QuantDType::kMxfp6E2M3, QuantDType::kFp8};
constexpr std::array kWeights{QuantDType::kMxfp4, QuantDType::kMxfp6E3M2, QuantDType::kMxfp6E2M3};
// [activation][weight], "" for none.
constexpr const char* kOcpNames[5][3] = {
    {"w_mxfp4", "w_mxfp6_e3m2", "w_mxfp6_e2m3"},
    {"w_mxfp4_a_mxfp4", "", ""},
    {"w_mxfp4_a_mxfp6_e3m2", "w_mxfp6_e3m2_a_mxfp6_e3m2", ""},
    {"w_mxfp4_a_mxfp6_e2m3", "", "w_mxfp6_e2m3_a_mxfp6_e2m3"},
    {"w_mxfp4_a_fp8", "w_mxfp6_e3m2_a_fp8", "w_mxfp6_e2m3_a_fp8"}};

void expect_ocp(QuantDType activation, QuantDType weight, std::string_view want) {
  const auto got = ocp_mx_scheme(activation, weight);
  const std::string name = got ? name_of(*got) : "";
  expect(name == want, "scheme is \"{}\", expected \"{}\"", name, want);
}

struct Builder {
  const char* name;
  QuantConfig config;
  QuantDType activation, weight;
  std::optional<std::string> config_name;  ///< for bf16
};

std::vector<Builder> builders() {
  using D = QuantDType;
  QuantOptions grouped;
  grouped.block_shape = BlockShape{0, 128};
  QuantOptions token;
  token.per_act_token_quant = true;
  QuantOptions int8_token;
  int8_token.per_act_token_quant = true;
  return {{"unquantized", QuantConfig::unquantized(), D::kNone, D::kNone, {}},
          {"fp8_w8a8", QuantConfig::fp8_w8a8({}), D::kFp8E4M3, D::kFp8E4M3, "fp8_w8a8"},
          {"fp8_w8a8_token", QuantConfig::fp8_w8a8(token), D::kFp8E4M3, D::kFp8E4M3, "fp8_w8a8"},
          {"int8_w8a8", QuantConfig::int8_w8a8(int8_token), D::kInt8, D::kInt8, {}},
          {"int4_w4a16", QuantConfig::int4_w4a16(grouped), D::kNone, D::kInt4, "int4_w4a16"},
          {"int8_w8a16", QuantConfig::int8_w8a16(grouped), D::kNone, D::kInt8, "int8_w8a16"},
          {"biased", QuantConfig::biased({}), D::kNone, D::kNone, {}}};
}

void check_builder(const Builder& test) {
  expect(test.config.quant_dtype() == test.activation, "activations are {}, expected {}",
         name_of(test.config.quant_dtype()), name_of(test.activation));
  expect(test.config.weight_quant_dtype() == test.weight, "weights are {}, expected {}",
         name_of(test.config.weight_quant_dtype()), name_of(test.weight));
  expect(test.config.config_name(DType::kBF16) == test.config_name, "config_name is \"{}\"",
         test.config.config_name(DType::kBF16).value_or("none"));
  expect(test.config.is_quantized() || !test.config.scale_shape(64, 256),
         "a scale shape without quantized activations");
}

struct FileName {
  std::optional<std::string> config_name;
  bool has_block;
  const char* device;
  const char* want;
};

const std::vector<FileName>& file_names() {
  static const std::vector<FileName> kNames{
      {{}, false, "NVIDIA A100-SXM4-80GB", "E=8,N=1024,device_name=NVIDIA_A100-SXM4-80GB.json"},
      {"fp8_w8a8", false, "NVIDIA H100 80GB HBM3",
       "E=8,N=1024,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8.json"},
      {"fp8_w8a8", true, "NVIDIA H200",
       "E=8,N=1024,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"}};
  return kNames;
}

void check_file_name(const FileName& test) {
  const std::string got = get_config_file_name(
      8, 1024, test.config_name,
      test.has_block ? std::optional(BlockShape{128, 128}) : std::nullopt, test.device);
  expect(got == test.want, "\"{}\", expected \"{}\"", got, test.want);
}

}  // namespace

void add_config_cases(Cases& cases) {
  for (const Parallel& test : kParallel) {
    add(cases, "parallel",
        fmt::format("tp{}_dp{}{}", test.tp, test.dp, test.enables_ep ? "_ep" : ""),
        [&test] { check_parallel(test); });
  }
  for (std::size_t i = 0; i < flags().size(); ++i) {
    add(cases, "group_shapes", fmt::format("{}", i + 1), [i] { check_flags(flags()[i]); });
  }
  for (std::size_t a = 0; a < kActivations.size(); ++a) {
    for (std::size_t w = 0; w < kWeights.size(); ++w) {
      add(cases, "ocp_mx",
          fmt::format("{}_{}", switchyard::name_of(kWeights[w]),
                      switchyard::name_of(kActivations[a])),
          [a, w] { expect_ocp(kActivations[a], kWeights[w], kOcpNames[a][w]); });
    }
  }
  for (const Builder& test : builders()) {
    add(cases, "builders", test.name, [test] { check_builder(test); });
  }
  for (std::size_t i = 0; i < file_names().size(); ++i) {
    add(cases, "file_names", fmt::format("{}", i + 1), [i] { check_file_name(file_names()[i]); });
  }
}

}  // namespace switchyard::conformance
