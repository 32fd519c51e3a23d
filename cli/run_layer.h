// SPDX-License-Identifier: Apache-2.0
//
// run_layer.h: the layer of `run` on one device.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "switchyard/prepare_finalize.h"

#include "io/moe_layer.h"
#include "plan/expert_ownership.h"
#include "run_rank.h"

namespace switchyard::cli {

/// All references must outlive the layer.
struct LayerSetup {
  const Group& group;
  const RunOptions& options;
  const ModelConfig& config;
  const MoeLayerWeights& weights;
  const RunConfig& run_config;
  ExpertOwnership ownership;
  int owner = 0;  ///< index of this rank among the owners of experts

  std::int32_t first_expert() const { return ownership.first(owner); }
};

class LayerTarget {
 public:
  LayerTarget() = default;
  LayerTarget(const LayerTarget&) = delete;
  LayerTarget& operator=(const LayerTarget&) = delete;
  virtual ~LayerTarget() = default;

  /// Collective. Arguments and output are host memory. Returns the nanoseconds of each stage except
  /// the router, which the caller times. `last` is null except in the last call, which fills it in
  /// for the report.
  virtual std::array<std::int64_t, kNumStages> apply(const PrepareArguments& arguments,
                                                     const TensorView& output,
                                                     RankResult* last) = 0;
};

std::unique_ptr<LayerTarget> make_cpu_layer(const LayerSetup& setup);
/// Makes GPU (rank mod number of GPUs) current. Errors: those of make_prepare_finalize.
std::unique_ptr<LayerTarget> make_cuda_layer(const LayerSetup& setup);

/// Adds the rows of this rank's experts; called once per micro-batch.
void add_rows(const LayerSetup& setup, std::int64_t num_rows,
              std::span<const std::int32_t> expert_rows, RankResult& result);

/// Writes the files of --dump. Errors: kSystem.
void dump_rows(const LayerSetup& setup, const PrepareArguments& arguments, const ServedRows& rows);

}  // namespace switchyard::cli
