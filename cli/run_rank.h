// SPDX-License-Identifier: Apache-2.0
//
// run_rank.h: the work of one rank in `run`.
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
#include "run_rows.h"

namespace switchyard::cli {

/// Stages in the order of the layer.
inline constexpr std::array<const char*, 6> kStageNames{"route",   "quantize+dispatch", "place",
                                                        "experts", "combine",           "shared"};
inline constexpr std::size_t kNumStages = kStageNames.size();

/// What a rank contributes to the report.
struct RankResult {
  ModelConfig config;
  int layer = 0;
  std::string input_source;
  bool has_routing = false;               ///< the input says which experts
  std::vector<std::int64_t> first_token;  ///< P + 1 numbers
  Tensor output;                          ///< [T, H], this rank's tokens
  Tensor topk_ids;                        ///< [T, K] i32 of its tokens
  Tensor topk_weights;                    ///< [T, K] f32
  std::vector<ReceivedRow> received;      ///< of its experts
  RunConfig run_config;
  std::int64_t host_crossings = 0;        ///< rows of its tokens that leave its host
  std::int64_t num_rows = 0;              ///< rows that its experts received
  std::vector<std::int64_t> expert_rows;  ///< [E] rows per expert; 0 for experts of other ranks
  std::array<std::int64_t, kNumStages> stage_ns{};  ///< median over the repeats
  std::int64_t dispatch_bytes = 0;                  ///< bytes sent to other ranks
  std::int64_t combine_bytes = 0;
  std::int64_t window_bytes = 0;
  std::int64_t workspace_bytes = 0;
  std::string gpu;   ///< name; empty on a CPU
  std::string heap;  ///< how GPUs share memory
  bool is_shared_gpu = false;
};

/// Collective. Loads this rank's experts and runs the layer options.repeat times.
RankResult run_layer(const Group& group, const RunOptions& options);

}  // namespace switchyard::cli
