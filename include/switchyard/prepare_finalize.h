// SPDX-License-Identifier: Apache-2.0
//
// prepare_finalize.h: quantize + dispatch before the experts, combine + weigh + reduce after them,
// in one object because both sides share the state of the exchange.
//
// Letters used for shapes in this header:
//   T  tokens on this rank     K  experts chosen per token     H  elements per token
//   N  rows of the receive buffer
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/exchange.h"
#include "switchyard/expert_rows.h"
#include "switchyard/export.h"
#include "switchyard/group.h"
#include "switchyard/quant.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Which experts fit: rows grouped without gaps or with alignment gaps, or a fixed capacity an
/// expert.
enum class ActivationFormat : std::uint8_t {
  kStandard,  ///< experts contiguous
  kBatched,   ///< [L, capacity, H]
};

/// A split call. `hook` performs the receive part and is called exactly once, before `receiver`;
/// `receiver` returns the result. Without a hook, `receiver` does both.
template <typename Result>
struct Pending {
  std::function<void()> hook;
  std::function<Result()> receiver;
};

/// What prepare hands to the experts. Valid until finalize of the same micro-batch has returned.
struct Prepared {
  ExpertRows experts;
  std::int64_t num_rows = 0;                  ///< valid rows
  std::span<const std::int64_t> expert_load;  ///< [E] rows of each expert over the whole group
};

struct PrepareArguments {
  TensorView hidden;        ///< [T, H] bf16
  TensorView topk_ids;      ///< [T, K] i32 or i64; -1: none
  TensorView topk_weights;  ///< [T, K] f32
  /// Multiplies each row by its weight before dispatch and uses 1 afterwards; K must be 1.
  bool apply_router_weight_on_input = false;
  int micro_batch = 0;  ///< from 0 to num_micro_batches - 1: each has a handle of its own
};

/// The shape follows vLLM's FusedMoEPrepareAndFinalizeModular, so that its users find their
/// methods.
///
/// All calls are collective over the group; one thread of each rank makes them, in the same order.
/// Errors of every call: kInvalidArgument at once, with nothing sent; kTimeout, kPeerLost,
/// kAborted.
class SWITCHYARD_API PrepareFinalize {
 public:
  PrepareFinalize() = default;
  PrepareFinalize(const PrepareFinalize&) = delete;
  PrepareFinalize& operator=(const PrepareFinalize&) = delete;
  virtual ~PrepareFinalize() = default;

  virtual std::string_view name() const = 0;
  virtual ActivationFormat activation_format() const = 0;
  /// The dtype that topk_ids must have; nothing: i32 or i64.
  virtual std::optional<DType> topk_indices_dtype() const = 0;
  /// Upper bound on T; nothing: none.
  virtual std::optional<std::int64_t> max_num_tokens_per_rank() const = 0;
  /// Ranks that may send to this one.
  virtual int num_dispatchers() const = 0;
  /// True when finalize has summed over all ranks that hold parts of a token.
  virtual bool output_is_reduced() const = 0;
  virtual bool supports_async() const = 0;
  /// H.
  virtual std::int64_t hidden() const = 0;
  /// Rows of the receive buffer that experts must be ready for.
  virtual std::int64_t max_buffer_rows() const = 0;

  virtual Pending<Prepared> prepare_async(const PrepareArguments& arguments) = 0;
  Prepared prepare(const PrepareArguments& arguments);

  /// Sends expert results home; the receive part writes `output`.
  ///
  ///   expert_output  [N, H]  bf16, rows at the places of Prepared::experts; unchanged until
  ///   received output         [T, H]  bf16, f16 or f32
  virtual Pending<void> finalize_async(const TensorView& output, const TensorView& expert_output,
                                       int micro_batch = 0) = 0;
  void finalize(const TensorView& output, const TensorView& expert_output, int micro_batch = 0);

  /// Gives a prepared micro-batch up whose results will never come, because the experts failed.
  /// Alone, the micro-batch is free again; with peers, who wait for the results, the group is
  /// aborted.
  virtual void abandon(int micro_batch, const std::string& reason) = 0;

  /// For reports: where each row came from, and bytes that left this rank. After prepare.
  virtual std::vector<RowOrigin> row_origins(int micro_batch = 0) const = 0;
  virtual WireBytes wire_bytes(int micro_batch = 0) const = 0;
};

struct PrepareFinalizeConfig {
  std::int32_t num_experts = 0;
  std::int32_t num_topk = 0;
  std::int64_t hidden = 0;
  std::int64_t max_tokens_per_rank = 0;
  /// How the experts get their rows. Schemes with one scale a row or a block are applied while
  /// sending; one scale for the whole tensor is taken over the rows that arrived (valid rows only).
  QuantScheme scheme = schemes::kNone;
  Reduce reduce = Reduce::kPerExpert;
  std::int32_t num_micro_batches = 1;
};

/// Decode: the batched layout; weights are applied in combine. Mirrors vLLM's
/// DeepEPLLPrepareAndFinalize over DeepEP's low-latency calls. Collective.
SWITCHYARD_API std::unique_ptr<PrepareFinalize> make_low_latency(
    const Group& group, const PrepareFinalizeConfig& config);

/// No exchange: this rank holds every expert and serves its own tokens. Mirrors vLLM's
/// MoEPrepareAndFinalizeNoDPEP. Not collective.
SWITCHYARD_API std::unique_ptr<PrepareFinalize> make_local(const PrepareFinalizeConfig& config);

/// Memory of one rank, in bytes, by the class's name ("low_latency" or "local"). Pure.
/// Errors: kInvalidArgument.
SWITCHYARD_API ExchangeMemory prepare_finalize_memory(std::string_view name,
                                                      const PrepareFinalizeConfig& config,
                                                      int num_ranks, int rank);

}  // namespace switchyard
