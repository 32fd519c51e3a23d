// SPDX-License-Identifier: Apache-2.0
//
// layer_parts.h: the parts of a measured MoE layer on any processor: prepare, experts, finalize.
// Weights are a function of expert, matrix and place, so the oracle can generate those of any
// expert by itself.
#pragma once

#include <cstdint>
#include <memory>

#include "switchyard/experts.h"
#include "switchyard/modular_kernel.h"
#include "switchyard/prepare_finalize.h"

#include "measure/bench_oracle.h"

namespace switchyard::measure {

inline constexpr std::int64_t kCheckedTokens = 4;  ///< per rank; the oracle is slow

/// bf16 weights of consecutive experts.
class LayerWeights {
 public:
  LayerWeights(std::int32_t first, std::int32_t count, std::int64_t hidden,
               std::int64_t intermediate);
  ExpertWeights view() const;

 private:
  Tensor gate_;
  Tensor up_;
  Tensor down_;
};

/// Of one rank's routed experts.
LayerWeights routed_weights(const Workload& workload, int rank, int num_ranks);
/// Of the shared experts, as models store them: one expert with the width of all. The same on every
/// rank.
LayerWeights shared_weights(const BenchShape& shape);

/// Return the oracle's functions for these weights; empty without shared experts.
ExpertFunction reference_expert(const Workload& workload);
SharedFunction reference_shared(const BenchShape& shape);

/// Returns the prepare/finalize class that has this layout.
PrepareKind layer_kind(Layout layout);
PrepareFinalizeConfig layer_config(const BenchShape& shape);
/// What `exact` experts give bit by bit and others nearly; see BenchOracle::count_wrong_output.
float layer_tolerance(const BenchShape& shape);
/// The layer of this rank, on the device of `options`. Collective. Errors: those of its parts.
std::unique_ptr<ModularKernel> make_layer(const Group& group, const BenchShape& shape,
                                          const ExchangeOptions& options);
/// The layer over all tokens, or over its micro-batches, overlapped.
void apply_layer(ModularKernel& layer, const BenchShape& shape, const PrepareArguments& arguments,
                 const TensorView& output, Stream stream = Stream::host());

}  // namespace switchyard::measure
