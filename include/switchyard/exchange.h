// SPDX-License-Identifier: Apache-2.0
//
// exchange.h: move each token to the ranks that hold its experts, and bring the results back, on
// CPUs or on GPUs: the same configuration gives the same rows, order and bits.
//
// Letters used for shapes in this header:
//   T  tokens on this rank     K  experts chosen per token (num_topk)   H  elements per token
//   P  ranks                   L  experts this rank holds               N  rows of a receive buffer
//   C  capacity of an expert   S  scales per row
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "switchyard/exchange_config.h"
#include "switchyard/exchange_types.h"
#include "switchyard/export.h"
#include "switchyard/group.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Dispatch and combine over a group.
///
/// - Every rank calls the collective members in the same order, from one thread at a time.
///   `stream` and every tensor are of device(). dispatch and combine are their two phases in a row;
///   between the phases the caller may compute. The inputs of a send phase must stay unchanged
///   until the stream has passed it (GPU), or the matching receive phase has returned (CPU; there
///   copies_inputs of the options shortens it to the send phase).
/// - Memory is taken by the constructor, for the largest call; no call takes any, but for small
///   tables on CPUs that grow with T until they have seen the largest call, and for received rows
///   with ExchangeOptions::exact_memory.
/// - On GPUs no call waits for the device, and dispatch, combine and their phases may be captured
///   in a CUDA graph and replayed: unless counts are asked for (DispatchOptions::host_counts, and
///   ExchangeOptions::exact_messages outside of graphs).
///   (Where ranks share a GPU, a call of several kernels waits between them unless it is captured.)
///   docs/gpu.md says what the caller orders: calls that share an in-flight slot, and kernels of
///   two handles that run at once.
///
/// Errors that arguments show appear at the call, with nothing sent: kInvalidArgument,
/// kNotSupported. Errors that only data or peers show (an id out of range on a GPU, ranks that
/// disagree, a capacity that is exceeded, kTimeout, kPeerLost, kAborted) appear at the next wait on
/// CPUs, and on GPUs through check() and every later call, on every rank; outputs since then are
/// undefined. After kTimeout, kPeerLost and kAborted, and after any of them on a GPU, the group can
/// only be destroyed.
///
/// GPUs support K up to 32, P up to 64 (32 for kAllGather and Overflow::kDrop), E up to 16384, H
/// and payload_bytes up to 2^24, N below 2^31, the named schemes and the fp8_block ones with
/// kF32PowerOfTwo; as combine_scheme the fp8_block and fp8_ue8m0 ones, int8_block and mxfp8. What
/// they do not support is kNotSupported.
/// Source: two-phase low-latency calls of DeepEP; expanded layout of its ElasticBuffer.
class SWITCHYARD_API Exchange {
 public:
  /// Collective: agrees on the configuration and maps the windows. Errors also: kOutOfMemory,
  /// kNotAvailable (no GPU, no CUDA module, no way to share GPU memory).
  Exchange(const Group& group, const ExchangeConfig& config, const ExchangeOptions& options = {});
  /// @{ Moves it; the other one is only destroyed or assigned to.
  Exchange(Exchange&&) noexcept;
  Exchange& operator=(Exchange&&) noexcept;
  /// @}
  /// Closes the exchange, unless close() did: without waiting for peers while an exception is
  /// unwound, because they may be waiting for this rank.
  ~Exchange();

  /// Ends the exchange; a second call does nothing. Collective on GPUs: returns when the kernels of
  /// every rank have ended, or at once when the group was aborted; CUDA graphs of its calls must
  /// not run any more. On CPUs it waits for nobody. Windows are freed. What calls have returned
  /// stays valid until destruction, in which this rank then needs no other. Every later call is
  /// kInvalidArgument, except for config, device and is_closed.
  ///
  /// Without waits_for_peers it is not collective, and memory that peers may still have mapped
  /// lasts as long as the process: for a rank that fails while others wait for it.
  void close(bool waits_for_peers = true);
  /// Whether close() was called.
  bool is_closed() const;

  /// @{ As given to the constructor.
  const ExchangeConfig& config() const;
  Device device() const;
  /// @}
  /// Upper bound on N for this rank.
  std::int64_t max_buffer_rows() const;
  /// What this rank takes; on CPUs what exchange_memory() computes for their hosts.
  ExchangeMemory memory() const;
  /// How windows are shared: "host", or on GPUs "same_process", "vmm", "ipc" or "nccl".
  const char* heap() const;
  /// Several ranks use this rank's GPU: for correctness only, not for speed.
  bool is_shared_gpu() const;

  /// Quantizes and sends this rank's tokens.
  ///
  ///   tokens        [T, H]  bf16, f16 or f32, or quantized by the configured scheme (with
  ///                         options.scales); rows contiguous; T from 0 to max_tokens_per_rank, its
  ///                         own on each rank
  ///   topk_ids      [T, K]  i32 or i64, contiguous; from 0 to E - 1, or -1 for "none". A token may
  ///                         name an expert twice, except with kBatched; each counts.
  ///   topk_weights  [T, K]  f32, contiguous; absent: all 1
  DispatchHandle dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                               const TensorView& topk_weights = {}, Stream stream = Stream::host(),
                               const DispatchOptions& options = {});

  /// The same with the routing of an earlier handle, which every rank has received: rows land where
  /// they landed then. On CPUs only a header line travels with them. On GPUs the caller orders it
  /// behind the earlier dispatch, and a dispatch that reuses its in-flight slot behind this call.
  ///
  /// Errors also: kInvalidArgument when the routing is not kept, or its slot has been reused.
  DispatchHandle dispatch_again_send(const DispatchHandle& earlier, const TensorView& tokens,
                                     const TensorView& topk_weights = {},
                                     Stream stream = Stream::host(),
                                     const DispatchOptions& options = {});

  /// Receives the peers' rows and places them.
  ///
  /// Errors also, on every rank and with nothing lost on CPUs: kInvalidArgument when ranks passed
  /// different max_tokens, tensor_scale or routing; kCapacityExceeded.
  Dispatched dispatch_receive(const DispatchHandle& handle, Stream stream = Stream::host());

  /// Where the rows of a sent handle will lie: rows, scales, topk_weights, and on GPUs num_rows.
  /// Their contents are undefined until dispatch_receive. Only kBatched, whose shapes do not depend
  /// on the routing, and without exact_memory: otherwise kNotSupported.
  Dispatched places(const DispatchHandle& handle) const;

  /// Both phases; on GPUs one kernel, and those of payloads and of routing that goes to every rank.
  Dispatched dispatch(const TensorView& tokens, const TensorView& topk_ids,
                      const TensorView& topk_weights = {}, Stream stream = Stream::host(),
                      const DispatchOptions& options = {});
  /// Both phases of dispatch_again_send, likewise.
  Dispatched dispatch_again(const DispatchHandle& earlier, const TensorView& tokens,
                            const TensorView& topk_weights = {}, Stream stream = Stream::host(),
                            const DispatchOptions& options = {});

  /// A handle for one more combine with the routing of an earlier one, without its rows; weights
  /// are 1. Combine is the gradient of dispatch, and dispatch_again of combine. On CPUs nothing is
  /// communicated, on GPUs the routing travels once more.
  DispatchHandle reopen(const DispatchHandle& earlier, Stream stream = Stream::host());

  /// Throws what combine_receive would throw for these arguments. Sends nothing, changes nothing.
  void check_output(const DispatchHandle& handle, const TensorView& output,
                    const CombineOptions& options = {}) const;

  /// Memory for what combine is given as `rows`, of the shape of the received rows, in bf16. Every
  /// exchange has it; GPUs that store rows straight to their places (docs/gpu.md) read results of
  /// peers there, so that nobody copies them. Ranks need not agree on using it. The caller writes
  /// it after dispatch_receive and before combine_send, no more after that; with the end of the
  /// handle its contents are undefined. Where peers do not read it, the first call for each
  /// in-flight slot takes it, for the largest call.
  ///
  /// Errors: kInvalidArgument (the handle has no received rows), kOutOfMemory.
  TensorView combine_input(const DispatchHandle& handle);

  /// Returns expert results to the ranks whose tokens they are.
  ///
  ///   rows  [N, H] or [L, C, H]  bf16, f16 or f32, contiguous: one for each row of the receive
  ///                buffer; in token-major layouts already the sum over this rank's experts
  void combine_send(const DispatchHandle& handle, const TensorView& rows,
                    Stream stream = Stream::host(), const CombineOptions& options = {});

  /// Sums the results of this rank's tokens in fixed order and ends the handle.
  ///
  ///   output  [T, H]  bf16, f16 or f32, rows contiguous; written. A token without experts gives 0
  ///                   plus its bias.
  void combine_receive(const DispatchHandle& handle, const TensorView& output,
                       Stream stream = Stream::host(), const CombineOptions& options = {});

  /// Both phases, on GPUs in one kernel; what either would refuse of these arguments is refused
  /// before anything is sent.
  void combine(const DispatchHandle& handle, const TensorView& rows, const TensorView& output,
               Stream stream = Stream::host(), const CombineOptions& options = {});

  /// Gives a handle up without a combine; on GPUs one whose dispatch was received. Every rank must
  /// do the same. Between CPUs that share no memory it is collective where rows of the handle are
  /// still to be received: it receives them, and returns when peers have taken what was sent, so
  /// that release comes in the same order among the receive phases of every rank.
  void release(const DispatchHandle& handle);

  /// Origin of every valid row, by (expert, rank, token, k); token-major: by (rank, token). On GPUs
  /// kNotSupported.
  std::vector<RowOrigin> row_origins(const DispatchHandle& handle) const;

  /// The same as tensors, on either device; one small kernel. On GPUs not for kAllGather, where
  /// tokens of every rank come in order: kNotSupported.
  ///
  /// Errors: kInvalidArgument (the handle has no received rows; dtype, shape).
  void write_row_sources(const DispatchHandle& handle, const RowSources& sources,
                         Stream stream = Stream::host()) const;

  /// Of a received handle: what its dispatch sent, and what its combine sends. On GPUs of several
  /// hosts what goes to other hosts, in messages of fixed size; on those of one kNotSupported.
  WireBytes wire_bytes(const DispatchHandle& handle) const;

  /// Throws what kernels that have ended found, or why the group was aborted. Costs two loads when
  /// all is well, and does not wait. Errors: kTimeout, kPeerLost, kAborted, kInvalidArgument,
  /// kCapacityExceeded.
  void check() const;

 private:
  std::unique_ptr<class ExchangeBackend> backend_;
};

}  // namespace switchyard
