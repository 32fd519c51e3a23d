// SPDX-License-Identifier: Apache-2.0
//
// device_exchange.h: dispatch and combine between GPUs of one host. The same configuration, the
// same rows, places and bits as Exchange; everything is ordered in a stream, nothing waits on the
// host, and what the host does not know (how many rows came) stays in device memory.
//
// Letters used for shapes in this header:
//   T  tokens on this rank     K  experts chosen per token (num_topk)   H  elements per token
//   P  ranks                   L  experts this rank holds               N  rows of a receive buffer
//   S  scales per row
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "switchyard/exchange_config.h"
#include "switchyard/export.h"
#include "switchyard/group.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

namespace switchyard {

struct DeviceExchangeOptions {
  /// Most CTAs of a kernel, of 512 threads, two a multiprocessor; fewer than 3 count as 3. 0: as
  /// many as the GPU has room for. Ranks that share one get equal parts; a rank alone may get twice
  /// as many of 256 threads.
  std::int32_t num_ctas = 0;
  /// Kernels may be launched before the kernel ahead of them in the stream has ended; they wait for
  /// it before they touch anything (programmatic dependent launch). Not where ranks share a GPU.
  bool programmatic_launch = false;
  /// How windows are shared: "auto", "same_process", "vmm", "ipc" or "nccl"; empty: the setting
  /// SWITCHYARD_HEAP.
  std::string heap{};
  /// Longest wait of a kernel for a peer. 0: as long as the group, 20 times that when several ranks
  /// use one GPU, whose kernels run by turns.
  std::int64_t timeout_ms = 0;
  /// A dispatch keeps its routing for dispatch_again and reopen, by one more small kernel.
  bool keeps_routing = false;
};

/// Ties a combine to its dispatch. Copies are the same handle. With keeps_routing it can also be
/// given to dispatch_again and reopen, after its combine too, until its place of max_in_flight is
/// taken by a new dispatch.
class DeviceHandle {
 public:
  DeviceHandle() = default;

 private:
  friend class PushExchange;
  std::int32_t slot_ = -1;
  std::uint64_t id_ = 0;
  std::uint64_t exchange_ = 0;
  std::uint64_t routing_ = 0;
};

struct DeviceDispatchOptions {
  /// [T, S]: tokens are already quantized by the configured scheme, with these scales.
  TensorView scales{};
  /// [1] f32: as DispatchOptions::tensor_scale.
  TensorView tensor_scale{};
  /// As DispatchOptions::payloads. Each is one more kernel.
  std::vector<TensorView> payloads{};
  /// As DispatchOptions::max_tokens; sizes of all layouts but kBatched follow it, and so does how
  /// many CTAs dispatch receives with and combine sends with. That ranks pass the same is not
  /// compared.
  std::int64_t max_tokens = 0;
  /// As DispatchOptions::routing_only; not compared either.
  bool routing_only = false;
};

/// Received rows: device memory of the exchange, filled when the stream gets there, valid until the
/// handle's combine or release. Tensors have their largest shape; counts say what is in them.
struct DeviceDispatched {
  DeviceHandle handle;
  /// kBatched: [L, C, H]. Other layouts: [N, H], N the most rows there can be.
  TensorView rows;
  TensorView scales;      ///< as ExpertRows::scales
  TensorView num_rows;    ///< [L] i32: rows of each local expert, or tokens that want it
  TensorView first_row;   ///< [L] i64: kBatched and kExpanded
  TensorView total_rows;  ///< [1] i32
  /// [N, K] i32: kCompact, kByRank, kAllGather; as Dispatched::topk_ids. Rows without a token: -1
  /// in kByRank and kAllGather, else undefined.
  TensorView topk_ids;
  /// f32 where weights travel; as Dispatched::topk_weights. Rows without a token: 0 in kByRank,
  /// kAllGather and with zero_padding, else undefined.
  TensorView topk_weights;
  std::vector<TensorView> payloads;  ///< [N, bytes] u8 each
  TensorView num_dropped;  ///< [1] i32: with kDrop; choices of this rank's tokens lost to capacity
};

/// combine_send looks at the last two, combine_receive at the rest.
struct DeviceCombineOptions {
  TensorView topk_weights{};       ///< as CombineOptions
  std::vector<TensorView> bias{};  ///< as CombineOptions; at most 4
  /// [T, H] bf16, rows contiguous: added to the rounded sum, which is rounded again; what a shared
  /// expert gives, as ModularKernel adds it.
  TensorView shared{};
  /// As CombineOptions; one more small kernel, as for row_weights. A rank that passed no
  /// row_weights and returned rows ends the group: kInvalidArgument, found after the sums.
  TensorView returned_weights{};
  bool rows_are_weighted = false;  ///< per_rank sums the rows as they are
  /// [N], or [N, K] in layouts with a row a token, f32: as in Exchange::combine_send.
  TensorView row_weights{};
};

/// All members are collective in the sense of Exchange: every rank calls them in the same order.
/// Nothing but the constructor and the destructor waits for the GPU; dispatch, combine and their
/// parts may be captured in a CUDA graph and replayed. (On a GPU that ranks share, a call of
/// several kernels waits between them, unless it is captured.)
///
/// A call takes the first place of max_in_flight that is free, alike on every rank and in a graph
/// that is replayed. The caller orders what shares a place, by one stream or by events: the calls
/// of a handle, the dispatch after a combine or release, replays of a graph and calls beside them.
/// Kernels of two handles that run at once must fit on the GPU together (num_ctas; with
/// programmatic_launch each together with the one behind it), or start in the same order on every
/// GPU. Threads that share a GPU: while kernels of any of them wait, none may free memory of it,
/// pinned host memory included: the runtime keeps the others from launching until all have ended.
/// The destructor has all kernels end before it frees, so destroy the exchange before other memory.
/// Nor may a kernel be launched for the first time then, unless CUDA_MODULE_LOADING is EAGER: it is
/// loaded, which waits likewise. Each thread needs a hardware queue (CUDA_DEVICE_MAX_CONNECTIONS;
/// kNotAvailable), and should use one stream: the driver may put further ones, and branches of a
/// graph, behind streams of other ranks.
///
/// Tensors are memory of the GPU that was current when the object was made. ids that are out of
/// range, peers that do not come or pass no row_weights and capacities that are exceeded are found
/// by kernels: they end, the group is aborted, and check and every later call throw the cause, on
/// every rank. Outputs of calls from then on are undefined. After that the group can only be
/// destroyed. `Group::abort` and a peer that dies end waiting kernels within milliseconds.
///
/// Supported: K up to 32, P up to 64 (32 for kAllGather and Overflow::kDrop), E up to 16384, H and
/// payload_bytes up to 2^24, N below 2^31, the schemes that have a name and the fp8_block ones with
/// kF32PowerOfTwo; as combine_scheme the fp8_block and fp8_ue8m0 ones, int8_block and mxfp8. Errors
/// of what is not: kNotSupported. kAllGather with K above 0 takes one more exchange of ids and
/// weights, and so does Overflow::kDrop, in dispatch_send; zero_padding clears the whole receive
/// buffer.
class SWITCHYARD_API DeviceExchange {
 public:
  /// Collective. Errors also: kNotAvailable (no GPU, no module, no way to share memory),
  /// kOutOfMemory.
  DeviceExchange(const Group& group, const ExchangeConfig& config,
                 const DeviceExchangeOptions& options = {});
  DeviceExchange(DeviceExchange&&) noexcept;
  DeviceExchange& operator=(DeviceExchange&&) noexcept;
  ~DeviceExchange();

  const ExchangeConfig& config() const;
  /// "same_process", "vmm", "ipc" or "nccl".
  const char* heap() const;
  /// What this rank takes of its GPU.
  ExchangeMemory memory() const;
  /// Several ranks use this rank's GPU: for correctness only; see timeout_ms.
  bool is_shared_gpu() const;

  /// Quantizes and sends this rank's tokens. Arguments as Exchange::dispatch_send; they must stay
  /// unchanged until the stream has passed.
  DeviceHandle dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                             const TensorView& topk_weights, Stream stream,
                             const DeviceDispatchOptions& options = {});
  /// Takes the rows that come.
  DeviceDispatched dispatch_receive(const DeviceHandle& handle, Stream stream);
  /// Both in one kernel (and those of payloads and of routing that goes to every rank).
  DeviceDispatched dispatch(const TensorView& tokens, const TensorView& topk_ids,
                            const TensorView& topk_weights, Stream stream,
                            const DeviceDispatchOptions& options = {});

  /// As Exchange::dispatch_again. Errors also: kInvalidArgument without keeps_routing, or when a
  /// new dispatch has taken the place of the earlier one. The caller orders it behind what gave
  /// `earlier`, and a dispatch that takes that place behind it.
  DeviceHandle dispatch_again_send(const DeviceHandle& earlier, const TensorView& tokens,
                                   const TensorView& topk_weights, Stream stream,
                                   const DeviceDispatchOptions& options = {});
  DeviceDispatched dispatch_again(const DeviceHandle& earlier, const TensorView& tokens,
                                  const TensorView& topk_weights, Stream stream,
                                  const DeviceDispatchOptions& options = {});
  /// As Exchange::reopen; a dispatch_again in which only the routing travels.
  DeviceHandle reopen(const DeviceHandle& earlier, Stream stream);

  /// Sends expert results home.
  ///
  ///   rows  [N, H] or [L, C, H]  bf16, f16 or f32, contiguous; shaped as DeviceDispatched::rows
  void combine_send(const DeviceHandle& handle, const TensorView& rows, Stream stream,
                    const DeviceCombineOptions& options = {});
  /// Sums what comes back and ends the handle.
  ///
  ///   output  [T, H]  bf16, f16 or f32, rows contiguous; written
  void combine_receive(const DeviceHandle& handle, const TensorView& output, Stream stream,
                       const DeviceCombineOptions& options = {});
  /// Both in one kernel (and those of weights that go home).
  void combine(const DeviceHandle& handle, const TensorView& rows, const TensorView& output,
               Stream stream, const DeviceCombineOptions& options = {});

  /// Ends a received handle without a combine. Every rank must do the same. One that was only sent
  /// must be received first.
  void release(const DeviceHandle& handle);

  /// Throws what kernels that have ended found, or why the group was aborted. Errors: kTimeout,
  /// kPeerLost, kAborted, kInvalidArgument (an id), kCapacityExceeded. Two loads when all is well.
  void check() const;

 private:
  std::unique_ptr<class DeviceExchangeBackend> impl_;
};

}  // namespace switchyard
