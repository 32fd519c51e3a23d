// SPDX-License-Identifier: Apache-2.0

#include "switchyard/parallel_config.h"

#include <limits>
#include <string>

#include "core/bytes.h"
#include "core/fail.h"
#include "core/settings.h"

namespace switchyard {
namespace {

/// The checked rank; 0 when the size is 1, whatever `rank` is.
std::int32_t checked_rank(const char* what, std::int32_t size, std::int32_t rank) {
  require(size >= 1, Errc::kInvalidArgument, "parallel_config: {}_size is {}, must be at least 1",
          what, size);
  if (size == 1) return 0;
  require(rank >= 0 && rank < size, Errc::kInvalidArgument,
          "parallel_config: {}_rank is {}, must be from 0 to {}", what, rank, size - 1);
  return rank;
}

All2AllBackend backend_of_setting() {
  const std::string text = setting("SWITCHYARD_ALL2ALL_BACKEND").text;
  const auto backend = all2all_backend_from_name(text);
  require(backend.has_value(), Errc::kInvalidArgument,
          "setting SWITCHYARD_ALL2ALL_BACKEND is \"{}\", must be a backend's name, such as "
          "allgather_reducescatter or deepep_low_latency",
          text);
  return *backend;
}

}  // namespace

ParallelConfig ParallelConfig::make(const ParallelOptions& options) {
  const std::int64_t tp_rank = checked_rank("tp", options.tp_size, options.tp_rank);
  const std::int32_t pcp_rank = checked_rank("pcp", options.pcp_size, options.pcp_rank);
  const std::int32_t dp_rank = checked_rank("dp", options.dp_size, options.dp_rank);
  require(options.sp_size >= 1, Errc::kInvalidArgument,
          "parallel_config: sp_size is {}, must be at least 1", options.sp_size);
  const std::int64_t flat_size = checked_mul(
      checked_mul<std::int64_t>(options.dp_size, options.pcp_size), std::int64_t{options.tp_size});
  require(flat_size <= std::numeric_limits<std::int32_t>::max(), Errc::kInvalidArgument,
          "parallel_config: dp {} x pcp {} x tp {} is {} ranks, must be at most {}",
          options.dp_size, options.pcp_size, options.tp_size, flat_size,
          std::numeric_limits<std::int32_t>::max());
  const std::int64_t flat_rank =
      (std::int64_t{dp_rank} * options.pcp_size + pcp_rank) * options.tp_size + tp_rank;

  ParallelConfig config;
  config.pcp_size = options.pcp_size;
  config.pcp_rank = pcp_rank;
  config.dp_size = options.dp_size;
  config.dp_rank = dp_rank;
  config.sp_size = options.sp_size;
  config.use_ep = flat_size > 1 && options.enable_expert_parallel;
  config.enable_eplb = options.enable_eplb;
  config.all2all_backend =
      options.all2all_backend.has_value() ? *options.all2all_backend : backend_of_setting();
  (config.use_ep ? config.ep_size : config.tp_size) = static_cast<std::int32_t>(flat_size);
  (config.use_ep ? config.ep_rank : config.tp_rank) = static_cast<std::int32_t>(flat_rank);
  return config;
}

}  // namespace switchyard
