// SPDX-License-Identifier: Apache-2.0
//
// run_rank.h: what one rank does in `run`.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "switchyard/group.h"
#include "switchyard/tensor.h"

#include "io/model_config.h"
#include "run.h"
#include "run_config.h"
#include "run_input.h"

namespace switchyard::cli {

/// Stages in the order of the layer.
inline constexpr std::array<const char*, 6> kStageNames{"route",   "quantize+dispatch", "place",
                                                        "experts", "combine",           "shared"};
inline constexpr std::size_t kNumStages = kStageNames.size();

/// What a rank brings to the report.
struct RankResult {
  ModelConfig config;
  int layer = 0;
  RunInput input;                         ///< of all ranks
  std::vector<std::int64_t> first_token;  ///< P + 1
  Tensor output;                          ///< [T, H] bf16, this rank's tokens
  RunConfig run_config;
  std::int64_t num_rows = 0;              ///< rows its experts received
  std::vector<std::int64_t> expert_rows;  ///< [E] rows of each expert that this rank served
  std::array<std::int64_t, kNumStages> stage_ns{};  ///< median over the repeats
  std::int64_t dispatch_bytes = 0;                  ///< left this rank, own share excluded
  std::int64_t combine_bytes = 0;
  std::int64_t window_bytes = 0;
  std::int64_t workspace_bytes = 0;
  std::string gpu;   ///< its name; empty on a CPU
  std::string heap;  ///< how GPUs share memory
  bool is_shared_gpu = false;
};

/// Collective. Loads this rank's experts and runs the layer options.repeat times.
RankResult run_layer(const Group& group, const RunOptions& options);

}  // namespace switchyard::cli
