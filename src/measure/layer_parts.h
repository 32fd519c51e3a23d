// SPDX-License-Identifier: Apache-2.0
//
// layer_parts.h: the parts of a measured MoE layer on any processor: prepare, experts in fixed
// order, finalize. Weights are a function of expert, matrix and place, so the oracle can generate
// those of any expert by itself.
#pragma once

#include <cstdint>

#include "switchyard/experts.h"
#include "switchyard/prepare_finalize.h"

#include "measure/bench_oracle.h"

namespace switchyard::measure {

inline constexpr std::int64_t kCheckedTokens = 4;  ///< per rank; the oracle is slow

/// bf16 weights of one rank's experts.
class LayerWeights {
 public:
  LayerWeights(const Workload& workload, int rank, int num_ranks);
  ExpertWeights view() const;

 private:
  Tensor gate_;
  Tensor up_;
  Tensor down_;
};

/// Returns the oracle's expert function for these weights.
ExpertFunction reference_expert(const Workload& workload);

/// Returns the prepare/finalize class that has this layout.
PrepareKind layer_kind(Layout layout);
PrepareFinalizeConfig layer_config(const BenchShape& shape);

}  // namespace switchyard::measure
