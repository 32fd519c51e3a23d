// SPDX-License-Identifier: Apache-2.0
//
// oracle_layer.h: the layer of `run` by the reference implementation, for some of its tokens.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "io/checkpoint.h"
#include "io/moe_layer.h"
#include "reference/reference.h"
#include "run_config.h"

namespace switchyard::cli {

reference::Table<float> table_of(const TensorView& matrix);

/// Rows as the experts read them: through `scheme`, with its one scale or with those of the rows.
reference::Table<float> as_experts_read(const QuantScheme& scheme,
                                        const reference::Table<float>& rows,
                                        std::optional<float> scale);

class OracleLayer {
 public:
  /// Loads the experts `wanted`, ascending, and the shared one.
  OracleLayer(const RunConfig& config, const ModelConfig& model, const Checkpoint& checkpoint,
              int layer, const std::vector<std::int32_t>& wanted);

  /// The output of each rank of the batch, [T, H]. `hosts` has the host of each.
  std::vector<reference::Table<float>> apply(const reference::Batch& batch,
                                             const std::vector<int>& hosts) const;

 private:
  reference::Table<float> results_of(const reference::Batch& batch, int rank,
                                     const reference::ExpertMajor& placed) const;
  std::optional<float> input_scale(const reference::Table<float>& arrived) const;
  std::vector<reference::Table<float>> combined(const reference::Batch& batch,
                                                const std::vector<reference::ExpertMajor>& placed,
                                                const std::vector<reference::Table<float>>& results,
                                                const std::vector<int>& hosts) const;
  void add_shared(const reference::Table<float>& tokens, reference::Table<float>& output) const;

  RunConfig config_;
  ModelConfig model_;
  MoeLayerWeights weights_;
  std::map<std::int32_t, std::int64_t> index_;  ///< of an expert in weights_
};

}  // namespace switchyard::cli
