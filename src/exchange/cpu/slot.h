// SPDX-License-Identifier: Apache-2.0
//
// slot.h: what is behind a handle of an exchange between CPUs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "switchyard/exchange_types.h"
#include "switchyard/tensor.h"

#include "core/aligned_buffer.h"
#include "plan/routing.h"

namespace switchyard {

/// Tokens of a source on another host that this rank passes on.
struct ForwardedRouting {
  std::vector<std::int32_t> tokens;     ///< that crossed, by position
  std::vector<std::uint16_t> topk_ids;  ///< [T, K] as they are served
  SendPlan plan;
};

/// What only an exchange over several hosts keeps. The position of a token is its number among
/// those that crossed to a host, before any was dropped.
struct HostRouting {
  std::vector<std::vector<std::int32_t>> crossing;  ///< by host: own tokens that it needs
  std::vector<std::int32_t> positions;              ///< by arrival from other hosts
  std::vector<ForwardedRouting> forwarded;          ///< by number of the source
};

/// What follows from the ids of all ranks. Shared by every handle that uses it.
struct CachedRouting {
  std::uint64_t call = 0;  ///< of the dispatch that brought it
  std::int64_t num_tokens = 0;
  std::int64_t max_tokens = 0;
  std::int64_t num_dropped = 0;
  bool is_received = false;
  std::vector<std::uint16_t> topk_ids;  ///< own tokens, [T, K]
  SendPlan send;
  ReceivePlan receive;
  std::vector<std::int32_t> arrival_ids;    ///< [arrivals, K] with one row per token
  std::vector<std::int64_t> rows_per_rank;  ///< [P] arrivals
  HostRouting hosts;
};

/// The caller's tokens, until dispatch_receive.
struct DispatchInput {
  TensorView tokens;
  DispatchOptions options;
  float tensor_scale = 1.0f;
  bool is_stored = false;  ///< tokens have the form in which they travel

  /// Rows are whole bytes apart: make_input() made sure.
  const std::byte* row(std::int64_t token) const {
    return tokens.as<std::byte>() + token * (tokens.stride(0) * bits_of(tokens.dtype()) / 8);
  }
};

struct CpuSlot {
  std::uint64_t call = 0;           ///< of the operation that was sent last
  std::uint64_t dispatch_call = 0;  ///< of its dispatch; 0 when it was reopened
  std::shared_ptr<CachedRouting> routing;
  DispatchInput input;
  std::vector<float> topk_weights;       ///< own tokens, [T, K]; empty when absent
  std::vector<float> placement_weights;  ///< of routing->receive.placements; empty: all 1
  std::vector<std::int64_t> wait_ns;     ///< [P]
  AlignedBuffer rows;
  AlignedBuffer scales;
  AlignedBuffer topk_ids;  ///< of received rows, as the next
  AlignedBuffer weights;
  std::vector<AlignedBuffer> payloads;
  AlignedBuffer combine_input;   ///< where it was asked for
  TensorView results;            ///< the caller's, until combine_receive
  bool copies_results = false;   ///< combine_send copied those for own tokens
  bool returns_weights = false;  ///< combine_send was given row_weights
  std::int32_t total_rows = 0;   ///< as the caller reads it
  std::int32_t num_dropped = 0;  ///< likewise

  std::int64_t num_tokens() const { return routing->num_tokens; }
  const ReceivePlan& receive() const { return routing->receive; }
  bool is_new_routing() const { return routing->call == call; }
  float weight(std::int32_t placement) const {
    return placement_weights.empty() ? 1.0f
                                     : placement_weights[static_cast<std::size_t>(placement)];
  }
};

}  // namespace switchyard
