// SPDX-License-Identifier: Apache-2.0
//
// config.cpp: parallelism and sizes of a layer.

#include "switchyard/c/config.h"

#include "switchyard/moe_config.h"
#include "switchyard/parallel_config.h"

#include "capi/layer_config.h"
#include "capi/names.h"
#include "capi/sized.h"

namespace switchyard::capi {
namespace {

// An option where 0 stands for another default.
template <typename T>
T or_default(T value, T fallback) {
  return value == 0 ? fallback : value;
}

ParallelConfig parallel_config_of(const sy_parallel_options* given) {
  const sy_parallel_options from = read_sized(given, "parallel");
  ParallelOptions options;
  options.tp_size = or_default(from.tp_size, 1);
  options.tp_rank = from.tp_rank;
  options.dp_size = or_default(from.dp_size, 1);
  options.dp_rank = from.dp_rank;
  options.pcp_size = or_default(from.pcp_size, 1);
  options.pcp_rank = from.pcp_rank;
  options.sp_size = or_default(from.sp_size, 1);
  options.enable_expert_parallel = from.enable_expert_parallel;
  options.enable_eplb = from.enable_eplb;
  if (from.all2all_backend != nullptr) {
    options.all2all_backend =
        named(from.all2all_backend, "all2all_backend", All2AllBackend::kNaive);
  }
  return ParallelConfig::make(options);
}

}  // namespace

MoEConfig moe_config_of(const sy_moe_config* moe) {
  const sy_moe_config from = read_required(moe, "moe");
  MoEConfig fields;
  fields.num_experts = from.num_experts;
  fields.num_topk = from.num_topk;
  fields.hidden = from.hidden;
  if (from.parallel != nullptr) fields.parallel = parallel_config_of(from.parallel);
  fields.in_dtype = wide_dtype_of(from.in_dtype, "in_dtype");
  const auto num_ranks = static_cast<std::size_t>(fields.parallel.ep_size);
  check(from.num_experts_per_rank == 0 || from.num_experts_per_rank == num_ranks,
        "num_experts_per_rank is {}, must be ep_size, {}, or 0", from.num_experts_per_rank,
        num_ranks);
  const auto held = span_of(from.experts_per_rank, from.num_experts_per_rank, "experts_per_rank");
  fields.experts_per_rank.assign(held.begin(), held.end());
  fields.max_num_tokens = or_default(from.max_num_tokens, kDefaultMaxNumTokens);
  fields.has_bias = from.has_bias;
  fields.intermediate = from.intermediate;
  fields.activation = named(from.activation, "activation", MoEActivation::kSilu);
  return MoEConfig::make(fields);
}

}  // namespace switchyard::capi

using namespace switchyard;
using namespace switchyard::capi;

extern "C" {

sy_status sy_parallel_describe(const sy_parallel_options* options, sy_parallel_config* config) {
  return call(__func__, [&] {
    const ParallelConfig of = parallel_config_of(options);
    sy_parallel_config to{};
    to.tp_size = of.tp_size;
    to.tp_rank = of.tp_rank;
    to.dp_size = of.dp_size;
    to.dp_rank = of.dp_rank;
    to.pcp_size = of.pcp_size;
    to.pcp_rank = of.pcp_rank;
    to.ep_size = of.ep_size;
    to.ep_rank = of.ep_rank;
    to.sp_size = of.sp_size;
    to.use_ep = of.use_ep;
    to.use_all2all_kernels = of.use_all2all_kernels();
    to.use_batched_activation_format = of.use_batched_activation_format();
    to.needs_round_robin_routing_tables = of.needs_round_robin_routing_tables();
    to.all2all_backend = name_of(of.all2all_backend);
    write_sized(config, "config", to);
  });
}

sy_status sy_moe_config_check(const sy_moe_config* config) {
  return call(__func__, [&] { moe_config_of(config); });
}

}  // extern "C"
