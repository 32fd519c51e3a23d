// SPDX-License-Identifier: Apache-2.0
//
// device_modular_kernel.h: ModularKernel on GPUs: prepare, experts, shared expert and finalize as
// one MoE layer call that is ordered in a stream.
//
// Letters used for shapes in this header:
//   T  tokens on this rank     H  elements per token
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "switchyard/device_experts.h"
#include "switchyard/device_prepare_finalize.h"
#include "switchyard/export.h"
#include "switchyard/modular_kernel.h"
#include "switchyard/permute.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// As SharedExpert, on a GPU.
struct DeviceSharedExpert {
  std::unique_ptr<DeviceExperts> experts;  ///< one expert
  TensorView gate;                         ///< as SharedExpert, device memory
  SharedExpertsOrder order = SharedExpertsOrder::kMkInternalOverlapped;  ///< same bits either way
};

/// What apply enqueues one after the other.
enum class LayerStage : std::uint8_t {
  kPrepare,  ///< quantize, send, receive and lay out
  kExperts,
  kCombine,  ///< once, or its two parts with the shared expert between them
  kShared,
};

/// prepare -> experts -> finalize, with the bits of ModularKernel where the experts give them.
/// Memory is taken by the constructor, for the largest call.
class SWITCHYARD_API DeviceModularKernel {
 public:
  /// Collective. On the GPU of prepare_finalize, which must be current.
  /// Errors: kInvalidArgument, kOutOfMemory; kNotSupported: swizzled scales in a class with a row a
  /// token.
  DeviceModularKernel(std::unique_ptr<DevicePrepareFinalize> prepare_finalize,
                      std::unique_ptr<DeviceExperts> experts, DeviceSharedExpert shared = {});
  ~DeviceModularKernel();

  /// Collective; device memory. Nothing waits for the GPU, and calls may be captured in a CUDA
  /// graph, when the experts do not wait (is_capturable). Micro-batches may run in streams of their
  /// own; see DeviceExchange for what must fit on the GPU then. When the experts throw, the group
  /// is aborted.
  ///
  ///   output  [T, H] bf16: routed result, rounded; plus the shared row, rounded again
  ///
  /// Errors: as DevicePrepareFinalize; what the experts throw.
  void apply(const DevicePrepareArguments& arguments, const TensorView& output, Stream stream);

  const DevicePrepareFinalize& prepare_finalize() const { return *prepare_finalize_; }
  const DeviceExperts& experts() const { return *experts_; }
  /// Whether apply may be captured.
  bool is_capturable() const;
  /// Of the GPU: rows, expert output and scratch.
  std::size_t workspace_bytes() const;
  SharedExpertsOrder shared_experts_order() const {
    return shared_.experts == nullptr ? SharedExpertsOrder::kNone : shared_.order;
  }
  /// Throws what kernels found, as DeviceExchange.
  void check() const { prepare_finalize_->check(); }

  /// Called once a call, when experts are enqueued and finalize is not, with what they get and
  /// return.
  using Inspector =
      std::function<void(const DevicePrepared& prepared, const TensorView& expert_output)>;
  void set_inspector(Inspector inspector) { inspector_ = std::move(inspector); }

  /// Called when a stage is enqueued; who waits for the stream there can time stages.
  using StageObserver = std::function<void(LayerStage stage)>;
  void set_stage_observer(StageObserver observer) { observer_ = std::move(observer); }

 private:
  struct Memory;
  struct Scratch;
  struct Returned;
  void allocate_memory();
  void allocate_permuted(Scratch& scratch, std::int64_t grouped);
  void allocate_shared();
  Scratch& scratch_of(int micro_batch);
  void observe(LayerStage stage) const;
  Returned run_experts(const DevicePrepareArguments& arguments, const DevicePrepared& prepared,
                       Stream stream);
  void finalize(const DeviceFinalizeArguments& arguments, Stream stream);
  Pending<void> return_results(const DeviceFinalizeArguments& arguments, Stream stream);
  TensorView run_grouped(const DeviceExpertRows& rows, const Scratch& scratch, Stream stream);
  TensorView run_permuted(const DevicePrepared& prepared, const Scratch& scratch, Stream stream);
  void run_shared(const TensorView& hidden, const Scratch& scratch, Stream stream);
  TensorView rows_of_shared(std::int64_t num_tokens, const Scratch& scratch) const;

  std::unique_ptr<DevicePrepareFinalize> prepare_finalize_;
  std::unique_ptr<DeviceExperts> experts_;
  DeviceSharedExpert shared_;
  std::unique_ptr<Memory> memory_;
  std::vector<Scratch> scratch_;  ///< [micro-batches]
  Inspector inspector_;
  StageObserver observer_;
};

}  // namespace switchyard
