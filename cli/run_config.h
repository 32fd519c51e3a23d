// SPDX-License-Identifier: Apache-2.0
//
// run_config.h: derives the prepare/finalize class and the scales that `run` uses from its options
// and its input.
#pragma once

#include <cstdint>
#include <optional>

#include "switchyard/prepare_finalize.h"

#include "io/model_config.h"
#include "run.h"

namespace switchyard::cli {

/// Global scale of nvfp4 between the two GEMMs, unless --intermediate-scale sets another: blocks
/// whose largest magnitude is from 0.024 to 672 get a scale with full precision.
inline constexpr float kIntermediateGlobalScale = 4.0f;

struct RunConfig {
  PrepareKind kind = PrepareKind::kLowLatency;
  PrepareFinalizeConfig prepare;
  std::optional<float> intermediate_scale;  ///< absent: dynamic, or the scheme has none

  /// Of results.
  DType dtype() const { return prepare.combine_scheme.dtype; }
  /// Of tokens before they are quantized.
  DType row_dtype() const {
    return prepare.scheme.is_quantized() ? DType::kBF16 : prepare.scheme.dtype;
  }
  /// Of the rows between the two GEMMs.
  QuantScheme intermediate() const {
    return prepare.scheme.is_quantized() ? prepare.scheme : QuantScheme{dtype()};
  }
  Reduce reduce() const;
  QuantScheme wire_scheme() const;
};

/// Errors: kInvalidArgument: options that do not belong together, or a scale that is not a number
/// above 0.
void check_run_options(const RunOptions& options);

/// True when a scale follows from the largest magnitude of the input.
bool wants_magnitude(const RunOptions& options);

/// `magnitude` is that of all ranks' tokens, if it is wanted. Call check_run_options first.
RunConfig make_run_config(const RunOptions& options, const ModelConfig& model, float magnitude,
                          std::int64_t max_tokens_per_rank);

}  // namespace switchyard::cli
