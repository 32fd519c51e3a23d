// SPDX-License-Identifier: Apache-2.0
//
// run_config.h: the prepare/finalize class and the scales that `run` uses, out of its options and
// its input.
#pragma once

#include <cstdint>
#include <optional>

#include "switchyard/prepare_finalize.h"

#include "io/model_config.h"
#include "run.h"
#include "run_input.h"

namespace switchyard::cli {

/// Global scale of nvfp4 between the two GEMMs, unless --intermediate-scale says another: blocks
/// whose largest magnitude is from 0.024 to 672 get a scale of full precision.
inline constexpr float kIntermediateGlobalScale = 4.0f;

struct RunConfig {
  PrepareKind kind = PrepareKind::kLowLatency;
  PrepareFinalizeConfig prepare;
  std::optional<float> intermediate_scale;  ///< absent: dynamic, or not looked at

  Reduce reduce() const;
  QuantScheme wire_scheme() const;
};

/// Errors: kInvalidArgument: options that do not belong together, a scale that is no number above
/// 0.
void check_run_options(const RunOptions& options);

/// The same on every rank, because all of them read the whole input. The options must be checked.
RunConfig make_run_config(const RunOptions& options, const ModelConfig& model,
                          const RunInput& input, std::int64_t max_tokens_per_rank);

}  // namespace switchyard::cli
