// SPDX-License-Identifier: Apache-2.0
//
// modular_kernel.h: joins prepare, experts, shared experts and finalize into one MoE layer call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "switchyard/experts.h"
#include "switchyard/export.h"
#include "switchyard/prepare_finalize.h"
#include "switchyard/stream.h"
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
  std::shared_ptr<Experts> experts;  ///< one expert
  /// [H] or [1, H], bf16, f16 or f32, on the kernel's device: the row is multiplied by sigmoid(x .
  /// gate) (Qwen2-MoE). Absent: 1. Kept by the caller.
  TensorView gate;
  SharedExpertsOrder order = SharedExpertsOrder::kMkInternalOverlapped;  ///< same bits either way
};

/// Nanoseconds of the last call of a micro-batch, by stage. Waiting for peers is part of the stage
/// that waits; waiting for other micro-batches is part of none. A receive part counts for the
/// micro-batch whose rows it receives, whoever runs it. On GPUs: host time spent launching.
struct StageTimes {
  std::int64_t dispatch_ns =
      0;                        ///< quantize and send; both phases outside of micro-batches on GPUs
  std::int64_t place_ns = 0;    ///< receive and lay out
  std::int64_t experts_ns = 0;  ///< the expert MLP
  std::int64_t combine_ns = 0;  ///< both phases
  std::int64_t shared_ns = 0;   ///< shared expert
};

/// The stages of apply, in stream order.
enum class LayerStage : std::uint8_t {
  kPrepare,  ///< quantize, send, receive and lay out
  kExperts,
  kCombine,  ///< once, or its two parts with the shared expert between them
  kShared,
};

/// prepare -> experts -> finalize. Token-major rows are permuted for the experts, then weighted and
/// summed in the order of combine. If the experts give the same bits on both devices, so does the
/// layer. The constructor allocates for the largest call; on GPUs the first call of a further
/// micro-batch allocates its memory. Model: vLLM's FusedMoEKernelModularImpl.apply.
class SWITCHYARD_API ModularKernel {
 public:
  /// Collective, because it calls post_init_setup. All parts are on one device. Do not call a part
  /// directly once a kernel owns it, even if you hold a shared_ptr.
  /// Errors: kInvalidArgument (also experts for another number of local experts), kOutOfMemory; on
  /// GPUs kNotSupported: swizzled scales in a token-major class.
  ModularKernel(std::shared_ptr<PrepareFinalize> prepare_finalize, std::shared_ptr<Experts> experts,
                SharedExpert shared = {});
  ~ModularKernel();

  /// Collective. `arguments` as for prepare. When the experts throw, the group is aborted, because
  /// the peers wait for their rows; argument errors change nothing. On GPUs the host does not wait,
  /// and calls may be captured in a CUDA graph if is_capturable().
  ///
  /// Inside run_micro_batches (micro_batches.h) it first receives for the micro-batch before it,
  /// then sends, leaves its own receive part to the next one and yields: once for prepare, once for
  /// finalize. Works with every class, whatever its supports_async says of the original.
  ///
  ///   output  [T, H] bf16, f16 or f32: routed result, rounded; plus the shared row, rounded again.
  ///           What the experts return comes before either: bf16, unless they say output_dtype()
  ///           f32
  void apply(const PrepareArguments& arguments, const TensorView& output,
             Stream stream = Stream::host());

  /// @{ As given to the constructor, and where it works.
  const PrepareFinalize& prepare_finalize() const { return *prepare_finalize_; }
  const Experts& experts() const { return *experts_; }
  Device device() const { return prepare_finalize_->device(); }
  /// @}
  /// Whether apply may be captured in a CUDA graph; false on CPUs.
  bool is_capturable() const;
  /// Rows, expert output and the experts' scratch, of the micro-batches that have theirs.
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  /// The stream in which apply_overlapped(..., stream) runs a micro-batch: the first one in
  /// `stream` (or in one of this object if that is a default stream), each further one on a GPU in
  /// a stream of this object. Where ranks share the GPU, all run in `stream`. Errors:
  /// kInvalidArgument (no such micro-batch).
  Stream stream_of(int micro_batch, Stream stream) const;
  /// Errors: kInvalidArgument (no such micro-batch).
  const StageTimes& times(int micro_batch = 0) const;
  /// kNone without a shared expert.
  SharedExpertsOrder shared_experts_order() const {
    return shared_.experts == nullptr ? SharedExpertsOrder::kNone : shared_.order;
  }
  /// Throws what kernels found; see Exchange::check.
  void check() const { prepare_finalize_->check(); }
  /// Closes prepare_finalize(); see Exchange::close.
  void close(bool waits_for_peers = true) { prepare_finalize_->close(waits_for_peers); }

  /// @{ Called once per call, between experts and finalize, with what the experts receive and
  /// return; on GPUs when the experts' work is in the stream.
  using Inspector = std::function<void(const Prepared& prepared, const TensorView& expert_output)>;
  void set_inspector(Inspector inspector) { inspector_ = std::move(inspector); }
  /// @}

  /// @{ Called when the work of a stage is done, or is in the stream: record an event or wait there
  /// to time stages.
  using StageObserver = std::function<void(LayerStage stage)>;
  void set_stage_observer(StageObserver observer) { observer_ = std::move(observer); }
  /// @}

 private:
  struct Scratch;
  struct SharedMemory;
  struct Returned;
  Tensor allocate(DType dtype, std::initializer_list<std::int64_t> shape);
  void allocate_memory();
  void allocate_permuted(Scratch& scratch, std::int64_t grouped);
  void allocate_shared();
  void allocate_scratch(Scratch& scratch);
  const Scratch& micro_batch_of(int micro_batch) const;
  Scratch& scratch_of(int micro_batch);
  void observe(LayerStage stage) const;
  Prepared prepare(const PrepareArguments& arguments, Stream stream, StageTimes& times);
  void finalize(const FinalizeArguments& arguments, const TensorView& hidden, Stream stream,
                StageTimes& times);
  Returned run_experts(const PrepareArguments& arguments, const Prepared& prepared, Stream stream);
  Pending<void> return_results(const FinalizeArguments& arguments, bool overlaps_shared,
                               Stream stream);
  TensorView run_grouped(const ExpertRows& rows, Scratch& scratch, Stream stream);
  TensorView run_permuted(const Prepared& prepared, Scratch& scratch, Stream stream);
  void run_shared(const TensorView& hidden, Scratch& scratch, Stream stream);
  TensorView rows_of_shared(std::int64_t num_tokens, const Scratch& scratch) const;

  std::shared_ptr<PrepareFinalize> prepare_finalize_;
  std::shared_ptr<Experts> experts_;
  SharedExpert shared_;
  std::size_t workspace_bytes_ = 0;
  std::unique_ptr<SharedMemory> shared_memory_;
  std::vector<Scratch> scratch_;  ///< [micro-batches]
  Inspector inspector_;
  StageObserver observer_;
};

}  // namespace switchyard
