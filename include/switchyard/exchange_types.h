// SPDX-License-Identifier: Apache-2.0
//
// exchange_types.h: what the calls of Exchange take and give.
//
// Letters used for shapes in this header:
//   T  tokens on this rank     K  experts chosen per token (num_topk)   H  elements per token
//   P  ranks                   L  experts this rank holds               N  rows of a receive buffer
//   C  capacity of an expert   S  scales per row
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "switchyard/device.h"
#include "switchyard/expert_rows.h"
#include "switchyard/export.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// What a rank chooses for itself. `device` is the same kind of device on every rank.
struct ExchangeOptions {
  Device device{};  ///< where tokens, received rows and results lie
  /// How long a kernel waits for a peer before it gives up. 0: as long as the group, or 20 times
  /// that if ranks share a GPU, because their kernels take turns.
  std::int64_t timeout_ms = 0;

  // GPUs only.

  /// Upper bound on the CTAs of a kernel, counted as CTAs of 512 threads (two per SM); at least 3.
  /// 0: as many as the GPU has room for. Ranks that share a GPU get equal shares; a rank that has a
  /// GPU to itself may get twice as many CTAs of 256 threads. Handles in another stream than the
  /// first one's share half of the GPU, so that the kernels of all fit on it together.
  std::int32_t num_ctas = 0;
  /// Kernels may be launched before the kernel ahead of them in the stream has ended; they wait for
  /// it before they touch memory (programmatic dependent launch). Ignored where ranks share a GPU,
  /// and in calls of more than 512 tokens.
  bool programmatic_launch = true;
  /// How windows are shared: "auto", "same_process", "vmm", "ipc" or "nccl"; empty: the setting
  /// SWITCHYARD_HEAP.
  std::string heap{};
  /// Dispatches allocate the receive buffer for the most rows seen so far plus at most one eighth,
  /// rather than the constructor for the worst case. Every dispatch then waits for counts, as with
  /// DispatchOptions::host_counts. Each rank may choose for itself; one that shares its GPU always
  /// allocates for the worst case.
  bool exact_memory = false;
  /// A dispatch keeps its routing for dispatch_again and reopen, at the cost of one small kernel.
  /// On CPUs it is always kept.
  bool keeps_routing = false;

  // GPUs of several hosts; the same on every rank, without effect elsewhere. By default a message
  // to another host carries a row of every token of the call's max_tokens. With either option a
  // host gets only the rows of tokens that go there, and each in-flight slot has memory for a
  // message to each host.

  /// Upper bound on the tokens of a rank that go to one other host. More are kCapacityExceeded on
  /// every rank, before rows are passed on. 0: no bound.
  std::int64_t host_capacity = 0;
  /// Messages have the size of what they carry: dispatch, dispatch_send, dispatch_again and reopen
  /// wait on the host, two timeouts at most, until ranks have told each other their row counts.
  /// Under graph capture messages keep their fixed size. Capture a call on all ranks or on none,
  /// and a dispatch together with its combine.
  bool exact_messages = false;
};

/// Ties a combine to its dispatch. Copies are the same handle. Its routing outlives the combine:
/// the handle can still be given to dispatch_again and reopen; on GPUs with
/// ExchangeOptions::keeps_routing, and until a new dispatch reuses its in-flight slot.
class DispatchHandle {
 public:
  DispatchHandle() = default;

 private:
  friend class HandleTable;
  std::int32_t slot_ = -1;
  std::uint64_t id_ = 0;
  std::uint64_t exchange_ = 0;
  std::uint64_t routing_id_ = 0;                   ///< push backend
  std::shared_ptr<struct CachedRouting> routing_;  ///< pull backend
};

/// What dispatch takes besides tokens and routing.
struct DispatchOptions {
  /// [T, S]: tokens are already quantized by the configured scheme, with these scales.
  TensorView scales{};
  /// [1] f32, the same on every rank: the scale of all tokens for schemes with one scale per
  /// tensor, the global scale for nvfp4. Required by these, ignored by the others.
  TensorView tensor_scale{};
  /// [T, ...] each, rows contiguous, of the configured number of bytes. On GPUs each is one more
  /// kernel.
  std::vector<TensorView> payloads{};
  /// Upper bound on T over all ranks for this call, the same on every rank: sizes of kByRank and of
  /// worst_case_rows follow it, on GPUs also grid sizes. 0: the configured one. CPUs check that
  /// ranks agree, GPUs do not.
  std::int64_t max_tokens = 0;
  /// Only routing and weights travel; the same on every rank. Only the shape of `tokens` counts, no
  /// payloads are given, and received rows are undefined. For a combine without a preceding
  /// dispatch of rows, or a later dispatch_again. CPUs check that ranks agree, GPUs do not.
  bool routing_only = false;
  /// The receiving call waits on the host until all ranks have announced their row counts (not for
  /// the rows); tensors then have their true size, and Dispatched::host is set. Such a call cannot
  /// be captured in a CUDA graph. CPUs always do this; each rank may choose for itself.
  /// Source: do_cpu_sync of DeepEP's ElasticBuffer.
  bool host_counts = false;
  /// CPUs: the send phase also copies the rows for this rank's own experts, which dispatch_receive
  /// otherwise reads in `tokens`, so that inputs may be overwritten once it has returned. Each rank
  /// may choose for itself. On GPUs the send kernel reads all inputs.
  bool copies_inputs = false;
  /// The in-flight slot of the handle, which must be free; -1: the first free one. The same on
  /// every rank. CUDA graphs of two handles that run at once need a slot each.
  std::int32_t slot = -1;
};

/// Where a received row comes from.
struct RowOrigin {
  std::int64_t row = 0;     ///< index in the receive buffer
  std::int32_t expert = 0;  ///< local index; -1 in token-major layouts
  std::int32_t rank = 0;    ///< source rank
  std::int32_t token = 0;   ///< token on that rank
  std::int32_t k = 0;       ///< which of its choices; token-major: the highest here, or -1
  float weight = 1.0f;      ///< of that choice; 1 where weights do not travel, or token-major
};

/// Origins as i32 tensors on the device of the exchange; absent ones are not written.
struct RowSources {
  TensorView rank{};           ///< [N] source rank of each row; -1 without a token
  TensorView token{};          ///< [N] token on that rank; -1 without one
  TensorView rows_per_rank{};  ///< [P] tokens placed here from each rank
  TensorView k{};              ///< [N] as RowOrigin::k; -1 without a token
};

/// Counts on the host; valid as long as the rows. On GPUs expert_load and wait_ns are empty: the
/// host does not learn them.
struct HostCounts {
  std::int64_t num_rows = 0;                    ///< valid rows
  std::int64_t num_dropped = 0;                 ///< this rank's choices that capacity dropped
  std::span<const std::int64_t> rows_per_rank;  ///< [P] tokens placed here from each rank
  /// [L] as ExpertRows::num_rows; on GPUs empty for kAllGather.
  std::span<const std::int32_t> rows_per_expert;
  std::span<const std::int64_t> expert_load;  ///< [E] rows that all ranks sent to each expert
  std::span<const std::int64_t> wait_ns;      ///< [P] time spent waiting for each rank's rows
};

/// Received rows: memory of the exchange, on its device. Everything in here is valid until the
/// handle's combine has been received or the handle is released. On GPUs it is filled in stream
/// order; without host counts, tensors have their largest possible shape, and the count tensors say
/// how much of them is in use.
struct Dispatched {
  DispatchHandle handle;  ///< for combine
  /// Rows, scales and counts. kBatched: rows [L, C, H]; other layouts: [N, H]. kBatched, kExpanded:
  /// first_row and num_rows say where each expert's rows lie. Token-major layouts: rows are ordered
  /// by (source rank, token), first_row is absent, num_rows [L] counts the tokens that want each
  /// local expert.
  ExpertRows experts;
  TensorView total_rows;  ///< [1] i32: valid rows
  /// [N, K] i32, token-major layouts. kCompact: local index, -1 for experts of other ranks; kByRank
  /// and kAllGather: ids as sent. Rows without a token: -1; undefined in kCompact on GPUs.
  TensorView topk_ids;
  /// f32 where weights travel: [N, K] as sent; kBatched, kExpanded: [N], that of (token, expert).
  /// Rows without a token: 0; on GPUs only in kByRank, kAllGather and with zero_padding, else
  /// undefined.
  TensorView topk_weights;
  std::vector<TensorView> payloads;  ///< [N, bytes] u8 each
  /// [1] i32, with Overflow::kDrop: choices of this rank's tokens lost to capacity.
  TensorView num_dropped;
  std::optional<HostCounts> host;  ///< always on CPUs, on GPUs where host counts are asked for
};

/// Whether the rows given to combine have their topk weights in them already.
enum class RowsAre : std::uint8_t { kUnweighted, kWeighted };

/// What combine takes besides rows and output. combine_send reads the first three members,
/// combine_receive the others.
struct CombineOptions {
  /// kWeighted: per_rank sums the rows as they are. (per_expert sums at the owner, with
  /// topk_weights below.)
  RowsAre rows_are = RowsAre::kUnweighted;
  /// [N] f32, or [N, K] in token-major layouts: returned to the source ranks, not applied.
  TensorView row_weights{};
  /// As DispatchOptions::copies_inputs: of rows for this rank's own tokens, which combine_receive
  /// otherwise reads in `rows`.
  bool copies_inputs = false;

  /// [T, K] f32: for kPerExpert, replaces the weights given to dispatch. With kPerRank weights are
  /// applied where the experts are: they must travel with dispatch.
  TensorView topk_weights{};
  /// [T, H] bf16 each, added first, in the order given. At most 4 on GPUs.
  std::vector<TensorView> bias{};
  /// [T, H] bf16, on CPUs also f32, rows contiguous: added to the rounded sum, which is rounded
  /// again: the output of a shared expert, as ModularKernel adds it.
  TensorView shared{};
  /// [T, K] f32, written: what each choice's rank passed as row_weights; 0 where there is none. If
  /// a rank returned rows without them: kInvalidArgument after the sums; on GPUs it ends the group.
  TensorView returned_weights{};
};

/// Bytes that left this rank for other ranks, its own share excluded.
struct WireBytes {
  std::int64_t dispatch = 0;  ///< rows with scales, ids and weights
  std::int64_t combine = 0;   ///< returned rows
};

}  // namespace switchyard
