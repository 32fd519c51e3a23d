// SPDX-License-Identifier: Apache-2.0

#include "switchyard/moe_config.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "core/fail.h"
#include "core/settings.h"
#include "plan/expert_ownership.h"

namespace switchyard {
namespace {

constexpr std::int32_t kMaxExperts = 65535;
constexpr std::int32_t kMaxTopk = 64;

constexpr std::array<const char*, 3> kFlashInferBackends{"throughput", "latency", "masked_gemm"};

void check_sizes(const MoEConfig& c) {
  require(c.num_experts >= 1 && c.num_experts <= kMaxExperts, Errc::kInvalidArgument,
          "moe_config: num_experts is {}, must be from 1 to {}", c.num_experts, kMaxExperts);
  const std::int32_t max_topk = std::min(kMaxTopk, c.num_experts);
  require(c.num_topk >= 1 && c.num_topk <= max_topk, Errc::kInvalidArgument,
          "moe_config: num_topk is {}, must be from 1 to {}", c.num_topk, max_topk);
  require(c.hidden >= 1, Errc::kInvalidArgument, "moe_config: hidden is {}, must be at least 1",
          c.hidden);
  require(c.max_num_tokens >= 1, Errc::kInvalidArgument,
          "moe_config: max_num_tokens is {}, must be at least 1", c.max_num_tokens);
  require(c.intermediate >= 0 && c.intermediate % c.parallel.tp_size == 0, Errc::kInvalidArgument,
          "moe_config: intermediate is {}, must be a multiple of tp_size {}", c.intermediate,
          c.parallel.tp_size);
}

void check_pair(const char* what, std::int32_t size, std::int32_t rank) {
  require(size >= 1 && rank >= 0 && rank < size, Errc::kInvalidArgument,
          "moe_config: parallel.{}_rank is {} of {}_size {}, must be a rank below the size", what,
          rank, what, size);
}

void check_parallel(const ParallelConfig& p) {
  check_pair("tp", p.tp_size, p.tp_rank);
  check_pair("pcp", p.pcp_size, p.pcp_rank);
  check_pair("dp", p.dp_size, p.dp_rank);
  check_pair("ep", p.ep_size, p.ep_rank);
  require(p.sp_size >= 1, Errc::kInvalidArgument,
          "moe_config: parallel.sp_size is {}, must be at least 1", p.sp_size);
  require(
      p.use_ep ? p.tp_size == 1 : p.ep_size == 1, Errc::kInvalidArgument,
      "moe_config: parallel.use_ep is {} with tp_size {} and ep_size {}, must be {}_size 1; use "
      "ParallelConfig::make",
      p.use_ep, p.tp_size, p.ep_size, p.use_ep ? "tp" : "ep");
}

void check_experts_of_ranks(const MoEConfig& c) {
  const std::vector<std::int32_t>& counts = c.experts_per_rank;
  const auto num_ranks = static_cast<std::size_t>(c.parallel.ep_size);
  const bool are_counts = std::all_of(counts.begin(), counts.end(), [](auto n) { return n >= 0; });
  const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  require(counts.empty() || (counts.size() == num_ranks && are_counts && sum == c.num_experts),
          Errc::kInvalidArgument,
          "moe_config: experts_per_rank has {} numbers that add up to {}, must have {}, 0 or more "
          "each, "
          "that add up to num_experts, {}",
          counts.size(), sum, num_ranks, c.num_experts);
}

void check_activation_dtype(const char* what, DType dtype) {
  require(dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32,
          Errc::kInvalidArgument, "moe_config: {} is {}, must be bf16, f16 or f32", what,
          name_of(dtype));
}

template <typename T>
void check_at_most(const char* what, T value, T min, T max) {
  require(value >= min && value <= max, Errc::kInvalidArgument,
          "moe_config: {} is {}, must be from {} to {}", what, value, min, max);
}

}  // namespace

bool is_gated(MoEActivation activation) noexcept { return activation <= MoEActivation::kSwigluOai; }

MoEConfig MoEConfig::make(MoEConfig fields) {
  check_parallel(fields.parallel);
  check_sizes(fields);
  check_experts_of_ranks(fields);
  const ExpertOwnership ownership{fields.num_experts, fields.parallel.ep_size};
  const auto ep_rank = static_cast<std::size_t>(fields.parallel.ep_rank);
  const auto fill = [](auto& field, auto value) { field = field.value_or(value); };
  fill(fields.num_local_experts, fields.experts_per_rank.empty()
                                     ? ownership.count(fields.parallel.ep_rank)
                                     : fields.experts_per_rank[ep_rank]);
  fill(fields.num_logical_experts, fields.num_experts);
  fill(fields.router_logits_dtype, fields.in_dtype);
  fill(fields.hidden_unpadded, fields.hidden);
  fill(fields.intermediate_per_partition_unpadded, fields.intermediate_per_partition());

  check_at_most("num_local_experts", *fields.num_local_experts, 0, fields.num_experts);
  check_at_most("num_logical_experts", *fields.num_logical_experts, 1, fields.num_experts);
  check_at_most<std::int64_t>("hidden_unpadded", *fields.hidden_unpadded, 1, fields.hidden);
  check_at_most<std::int64_t>("intermediate_per_partition_unpadded",
                              *fields.intermediate_per_partition_unpadded, 0,
                              fields.intermediate_per_partition());
  check_activation_dtype("in_dtype", fields.in_dtype);
  check_activation_dtype("router_logits_dtype", *fields.router_logits_dtype);
  return fields;
}

bool MoEConfig::use_flashinfer_cutlass_kernels(bool has_kernels) const {
  const bool is_wanted = setting_integer("SWITCHYARD_USE_FLASHINFER_MOE_FP4", 0, 1) == 1;
  const std::string backend = setting("SWITCHYARD_FLASHINFER_MOE_BACKEND").text;
  require(std::find(kFlashInferBackends.begin(), kFlashInferBackends.end(), backend) !=
              kFlashInferBackends.end(),
          Errc::kInvalidArgument,
          "setting SWITCHYARD_FLASHINFER_MOE_BACKEND is \"{}\", must be throughput, latency or "
          "masked_gemm",
          backend);
  return is_wanted && has_kernels && backend == "throughput";
}

}  // namespace switchyard
