// SPDX-License-Identifier: Apache-2.0
//
// layer_parts.h: what a measured MoE layer is made of on any processor: prepare, experts in fixed
// order, finalize. Weights are a function of expert, matrix and place, so the oracle can make those
// of any expert by itself.
#pragma once

#include <cstdint>

#include "switchyard/experts.h"
#include "switchyard/prepare_finalize.h"

#include "measure/bench_oracle.h"

namespace switchyard::measure {

inline constexpr std::int64_t kCheckedTokens = 4;  ///< of each rank; the oracle is slow

/// bf16, of a rank's experts.
class LayerWeights {
 public:
  LayerWeights(const Workload& workload, int rank, int num_ranks);
  ExpertWeights view() const;

 private:
  Tensor gate_;
  Tensor up_;
  Tensor down_;
};

/// An expert with these weights, by the oracle.
ExpertFunction reference_expert(const Workload& workload);

/// The class that has this layout.
PrepareKind layer_kind(Layout layout);
PrepareFinalizeConfig layer_config(const BenchShape& shape);

}  // namespace switchyard::measure
