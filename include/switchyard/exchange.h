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
/// - The constructor allocates for the largest call; calls do not allocate. Exceptions: received
///   rows with ExchangeOptions::exact_memory, and on CPUs small tables that grow to the largest T
///   seen.
/// - On GPUs calls are stream-ordered and may be captured in a CUDA graph, unless they wait for
///   counts (DispatchOptions::host_counts, and ExchangeOptions::exact_messages outside of graphs).
///   Where ranks share a GPU, a call of several kernels waits between them unless it is captured.
///   docs/gpu.md says what the caller orders: calls that share an in-flight slot, and kernels of
///   two handles that run at the same time.
///
/// Errors in arguments appear at the call, with nothing sent: kInvalidArgument, kNotSupported.
/// Errors in data or of peers (an id out of range on a GPU, ranks that disagree, an exceeded
/// capacity, kTimeout, kPeerLost, kAborted) appear at the next wait on CPUs, and on GPUs through
/// check() and every later call, on every rank; outputs since then are undefined. After kTimeout,
/// kPeerLost and kAborted, and after any of them on a GPU, the group can only be destroyed.
///
/// GPUs support K up to 32, P up to 64 (32 for kAllGather and Overflow::kDrop), E up to 16384, H
/// and payload_bytes up to 2^24, N below 2^31, the named schemes and the fp8_block ones with
/// kF32PowerOfTwo; as combine_scheme the fp8_block and fp8_ue8m0 ones, int8_block and mxfp8.
/// Everything else is kNotSupported.
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
  /// Closes the exchange if it is open: during stack unwinding without waiting for peers, because
  /// they may be waiting for this rank.
  ~Exchange();

  /// Ends the exchange and frees its windows; a second call does nothing. Collective on GPUs:
  /// returns when the kernels of every rank have ended, or at once when the group was aborted; CUDA
  /// graphs of its calls must not run any more. On CPUs it waits for nobody. What calls have
  /// returned stays valid until destruction, which then needs no other rank. Every later call is
  /// kInvalidArgument, except for config, device and is_closed.
  ///
  /// Without waits_for_peers, for a rank that fails while others wait for it, it is not collective,
  /// and memory that peers may have mapped stays mapped until the process ends.
  void close(bool waits_for_peers = true);
  /// Whether close() was called.
  bool is_closed() const;

  /// @{ As given to the constructor.
  const ExchangeConfig& config() const;
  Device device() const;
  /// @}
  /// Upper bound on N for this rank.
  std::int64_t max_buffer_rows() const;
  /// What this rank has allocated; on CPUs what exchange_memory() computes.
  ExchangeMemory memory() const;
  /// How windows are shared: "host", or on GPUs "same_process", "vmm", "ipc" or "nccl".
  const char* heap() const;
  /// Whether several ranks use this rank's GPU: for correctness only, not for speed.
  bool is_shared_gpu() const;

  /// Quantizes and sends this rank's tokens.
  ///
  ///   tokens        [T, H]  bf16, f16 or f32, or quantized by the configured scheme (with
  ///                         options.scales); rows contiguous; T from 0 to max_tokens_per_rank, its
  ///                         own on each rank
  ///   topk_ids      [T, K]  i32 or i64, contiguous; from 0 to E - 1, or -1 for "none". A token may
  ///                         name an expert twice, except with kBatched; each counts.
  ///   topk_weights  [T, K]  f32, contiguous; absent: all 1. Any value: a weight that is NaN or
  ///                         infinite reaches the sum of its token and no other; that of an id -1
  ///                         is not read
  DispatchHandle dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                               const TensorView& topk_weights = {}, Stream stream = Stream::host(),
                               const DispatchOptions& options = {});

  /// Sends rows along the routing of an earlier handle, which every rank must have received: they
  /// arrive at the same places. On CPUs only a header line travels with them. On GPUs the caller
  /// orders this call behind the earlier dispatch, and before a dispatch that reuses its slot.
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

  /// Where a sent handle's rows will be: rows, scales, topk_weights, and on GPUs num_rows. Their
  /// contents are undefined until dispatch_receive. Requires kBatched, whose shapes do not depend
  /// on the routing, without exact_memory; otherwise kNotSupported.
  Dispatched places(const DispatchHandle& handle) const;

  /// Runs both phases. On a GPU this is one kernel, plus one per payload and those of routing that
  /// goes to every rank.
  Dispatched dispatch(const TensorView& tokens, const TensorView& topk_ids,
                      const TensorView& topk_weights = {}, Stream stream = Stream::host(),
                      const DispatchOptions& options = {});
  /// Runs both phases of dispatch_again_send.
  Dispatched dispatch_again(const DispatchHandle& earlier, const TensorView& tokens,
                            const TensorView& topk_weights = {}, Stream stream = Stream::host(),
                            const DispatchOptions& options = {});

  /// A handle for one more combine with an earlier handle's routing, without rows; weights are 1.
  /// Combine is the gradient of dispatch, and dispatch_again that of combine. On CPUs nothing is
  /// sent; on GPUs the routing travels once more.
  DispatchHandle reopen(const DispatchHandle& earlier, Stream stream = Stream::host());

  /// Throws what combine_receive would throw for these arguments; sends and changes nothing.
  void check_output(const DispatchHandle& handle, const TensorView& output,
                    const CombineOptions& options = {}) const;

  /// Memory for the `rows` of combine, in bf16 and of the shape of the received rows. GPUs that
  /// store rows directly at their places (docs/gpu.md) let peers read results there, so that nobody
  /// copies them; elsewhere it is ordinary memory, which the first call for each in-flight slot
  /// allocates for the largest call. Each rank may choose whether to use it. The caller writes it
  /// after dispatch_receive and before combine_send; it is undefined once the handle has ended.
  ///
  /// Errors: kInvalidArgument (the handle has no received rows), kOutOfMemory.
  TensorView combine_input(const DispatchHandle& handle);

  /// Returns expert results to the owners of their tokens.
  ///
  ///   rows  [N, H] or [L, C, H]  bf16, f16 or f32, contiguous: one for each row of the receive
  ///                buffer; in token-major layouts already the sum over this rank's experts
  void combine_send(const DispatchHandle& handle, const TensorView& rows,
                    Stream stream = Stream::host(), const CombineOptions& options = {});

  /// Sums the results of this rank's tokens in fixed order and ends the handle.
  ///
  ///   output  [T, H]  bf16, f16 or f32, rows contiguous; written. A token without experts becomes
  ///                   0 plus its bias.
  void combine_receive(const DispatchHandle& handle, const TensorView& output,
                       Stream stream = Stream::host(), const CombineOptions& options = {});

  /// Runs both phases, on GPUs in one kernel. Checks the arguments of both before anything is sent.
  void combine(const DispatchHandle& handle, const TensorView& rows, const TensorView& output,
               Stream stream = Stream::host(), const CombineOptions& options = {});

  /// Drops a handle without combining it. Every rank must do so, in the same order relative to its
  /// receive phases. On GPUs the dispatch must have been received. Between CPUs that share no
  /// memory it receives what is still to be received of the handle, and returns when peers have
  /// received what was sent.
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

  /// What a received handle's dispatch has sent, and what its combine will send. On GPUs: bytes
  /// sent to other hosts, padding included; kNotSupported within one host.
  WireBytes wire_bytes(const DispatchHandle& handle) const;

  /// Throws the error that a finished kernel recorded, or why the group was aborted. Does not wait;
  /// costs two loads when all is well. Errors: kTimeout, kPeerLost, kAborted, kInvalidArgument,
  /// kCapacityExceeded.
  void check() const;

 private:
  std::unique_ptr<class ExchangeBackend> backend_;
};

}  // namespace switchyard
