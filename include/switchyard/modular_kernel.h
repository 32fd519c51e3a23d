// SPDX-License-Identifier: Apache-2.0
//
// modular_kernel.h: joins prepare, experts, shared experts and finalize into one MoE layer call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "switchyard/experts.h"
#include "switchyard/export.h"
#include "switchyard/prepare_finalize.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// When the shared expert runs (vLLM's SharedExpertsOrder). Its MULTI_STREAM_OVERLAPPED, beside the
/// kernel on a second GPU stream, has no counterpart: a rank's cores are busy with one thing.
enum class SharedExpertsOrder : std::uint8_t {
  kNone,                  ///< there is none
  kNoOverlap,             ///< before prepare
  kMkInternalOverlapped,  ///< between the send and the receive part of combine
};

/// An expert that every token visits, on its own rank.
struct SharedExpert {
  std::unique_ptr<Experts> experts;  ///< one expert
  /// [H] or [1, H], bf16, f16 or f32: the row is multiplied by sigmoid(x . gate) (Qwen2-MoE).
  /// Absent: 1. Kept by the caller.
  TensorView gate;
  SharedExpertsOrder order = SharedExpertsOrder::kMkInternalOverlapped;  ///< same bits either way
};

/// Nanoseconds of the last call of a micro-batch, by stage. Waiting for peers is part of the stage
/// that waits; waiting for other micro-batches is part of none. A receive part counts for the
/// micro-batch whose rows it receives, whoever runs it.
struct StageTimes {
  std::int64_t dispatch_ns = 0;  ///< quantize and send
  std::int64_t place_ns = 0;     ///< receive and lay out
  std::int64_t experts_ns = 0;
  std::int64_t combine_ns = 0;  ///< both phases
  std::int64_t shared_ns = 0;   ///< shared expert
};

/// prepare -> experts -> finalize. Rows that arrive one a token are permuted for the experts and
/// weighed and summed after them, in the order in which combine sums. Model: vLLM's
/// FusedMoEKernelModularImpl.apply.
class SWITCHYARD_API ModularKernel {
 public:
  /// Memory of the routed experts is taken here, once, for each micro-batch; the shared expert's
  /// grows with T. Collective, because it introduces the experts to prepare_finalize.
  /// Errors: kInvalidArgument, kOutOfMemory.
  ModularKernel(std::unique_ptr<PrepareFinalize> prepare_finalize, std::unique_ptr<Experts> experts,
                SharedExpert shared = {});
  ~ModularKernel();

  /// Collective. `arguments` as for prepare. When the experts throw, the group is aborted, because
  /// the peers wait for their rows; argument errors before that leave everything as it was.
  ///
  /// Inside run_micro_batches (micro_batches.h) it first receives for the micro-batch before it,
  /// then sends, leaves its own receive part to the next one and yields: once for prepare, once for
  /// finalize. Works with every class, whatever its supports_async says of the original.
  ///
  ///   output  [T, H] bf16: routed result, rounded; plus the shared row, rounded again
  void apply(const PrepareArguments& arguments, const TensorView& output);

  const PrepareFinalize& prepare_finalize() const { return *prepare_finalize_; }
  const Experts& experts() const { return *experts_; }
  /// Expert output plus the experts' scratch.
  std::size_t workspace_bytes() const;
  /// Errors: kInvalidArgument (no such micro-batch).
  const StageTimes& times(int micro_batch = 0) const;
  /// kNone without a shared expert.
  SharedExpertsOrder shared_experts_order() const {
    return shared_.experts == nullptr ? SharedExpertsOrder::kNone : shared_.order;
  }

  /// Called once a call, between experts and finalize, with what the experts received and returned.
  using Inspector = std::function<void(const Prepared& prepared, const TensorView& expert_output)>;
  void set_inspector(Inspector inspector) { inspector_ = std::move(inspector); }

 private:
  struct Scratch;
  struct Returned;
  Scratch& scratch_of(int micro_batch);
  Returned run_experts(const PrepareArguments& arguments, const Prepared& prepared);
  Pending<void> return_results(const FinalizeArguments& arguments);
  TensorView run_grouped(const ExpertRows& rows, Scratch& scratch);
  TensorView run_permuted(const Prepared& prepared, Scratch& scratch);
  void run_shared(const TensorView& hidden, Scratch& scratch);
  void add_shared(const TensorView& output, const Scratch& scratch);

  std::unique_ptr<PrepareFinalize> prepare_finalize_;
  std::unique_ptr<Experts> experts_;
  SharedExpert shared_;
  std::vector<Scratch> scratch_;  ///< [micro-batches]
  Inspector inspector_;
};

}  // namespace switchyard
