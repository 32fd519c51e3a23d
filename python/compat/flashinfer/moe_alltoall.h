// SPDX-License-Identifier: Apache-2.0
//
// moe_alltoall.h: FlashInfer's one-sided MoeAlltoAll, as a thin view over Exchange in the by_rank
// layout: several payloads in one dispatch, then exactly one combine.
//
// Letters used for shapes in this header:
//   T  tokens on this rank     K  experts chosen per token (top_k)     P  ranks
//   Tr runtime_max_tokens_per_rank of the call
//
// Differences, and why:
//   - rows of a source rank are in token order, not in the order of an atomic counter
//   - negative ids are dropped; the original sends them to rank 0
//   - combine adds rows one after another in f32, in the order of the highest k that each rank
//     holds, not as a tree over k; both round once
//   - any P, K, E and number of payloads; no fp8 staging, no quantized output, no rank mask, no
//     payload_in_workspace (rows are read in place)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "switchyard/exchange_types.h"
#include "switchyard/group.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

namespace switchyard::flashinfer {

/// The same on every rank.
struct MoeAlltoAllOptions {
  std::int64_t max_num_tokens = 0;  ///< upper bound on every Tr
  std::int32_t top_k = 0;           ///< K
  std::int32_t num_experts = 0;     ///< E
  bool enable_rank_mask = false;    ///< true throws kNotSupported
};

/// Keywords of dispatch.
struct MoeDispatchOptions {
  /// Written into the ids of rows without a token; if absent, those ids are stale.
  std::optional<std::int32_t> invalid_token_expert_id{};
  std::int32_t expert_id_payload_index = 0;  ///< the payload that holds the ids, i32 [T, any]
  TensorView active_rank_mask{};             ///< given throws kNotSupported
};

/// Construction, dispatch and combine are collective. Memory for each row size is allocated at
/// first use.
///
/// Tensors and streams are of the device in the ExchangeOptions. On a GPU calls are ordered in the
/// stream and wait for nothing once a call of these sizes has run; then they may be captured in a
/// CUDA graph. Results of combine are memory of the object, which a later call may reuse when the
/// last Tensor that holds it is gone.
///
/// Errors: kInvalidArgument at once; kNotSupported (rank masks: a result without the rows of a rank
/// must not look complete); kTimeout, kPeerLost, kAborted.
class MoeAlltoAll {
 public:
  /// Over the ranks of the group. Collective.
  MoeAlltoAll(const Group& group, const MoeAlltoAllOptions& options,
              const ExchangeOptions& exchange_options = {});
  /// @{ Moves it; the other one is only destroyed or assigned to.
  MoeAlltoAll(MoeAlltoAll&&) noexcept;
  MoeAlltoAll& operator=(MoeAlltoAll&&) noexcept;
  /// @}
  ~MoeAlltoAll();

  /// See Exchange::close. Tensors that calls have returned stay valid; later calls are
  /// kInvalidArgument.
  void close(bool waits_for_peers = true);

  /// Bytes of the original's workspace: control words and, for each direction, P * max_num_tokens
  /// rows, each part rounded up to 128. This library needs no workspace from the caller;
  /// exchange_memory() states what it allocates. Pure.
  static std::size_t get_workspace_size_per_rank(std::int64_t ep_size, std::int64_t max_num_tokens,
                                                 std::int64_t dispatch_bytes_per_token,
                                                 std::int64_t combine_bytes_per_token,
                                                 std::int64_t aux_bytes);

  /// [P, Tr, ...] for each payload: the n-th token from rank s is at (s, n), for n below
  /// recv_counts()[s]. Valid until combine. Ids of other ranks' experts remain in valid rows.
  ///
  ///   token_selected_experts  [T, K]  i32 or i64; negative: none
  ///   input_payloads          [T, cols] each, any dtype, contiguous
  ///   runtime_max_tokens_per_rank  Tr, at least every rank's T; the same on every rank
  ///
  /// Errors: kInvalidArgument also when the previous dispatch has not been combined.
  std::vector<TensorView> dispatch(const TensorView& token_selected_experts,
                                   const std::vector<TensorView>& input_payloads,
                                   std::int64_t runtime_max_tokens_per_rank,
                                   Stream stream = Stream::host(),
                                   const MoeDispatchOptions& options = {});

  /// [P] i32: tokens received from each rank in the last dispatch, on the device of the object;
  /// valid until the next one.
  const TensorView& recv_counts() const;
  /// The same on the host. On GPUs kNotSupported, because the host would have to wait for them.
  std::span<const std::int64_t> num_received() const;

  /// [T, H]: for each token, the sum of one row from each rank that received it, or 0. Not
  /// weighted.
  ///
  ///   payload  [P, Tr, H]  bf16, f16 or f32, contiguous; may be what dispatch returned
  Tensor combine(const TensorView& payload, Stream stream = Stream::host());

 private:
  std::unique_ptr<class MoeAlltoAllImpl> impl_;
};

}  // namespace switchyard::flashinfer
