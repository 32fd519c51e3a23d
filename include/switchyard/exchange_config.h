// SPDX-License-Identifier: Apache-2.0
//
// exchange_config.h: everything that is fixed for the lifetime of an Exchange, and the memory that
// it needs.
//
// Letters used for shapes in this header:
//   T  tokens on a rank     K  experts chosen per token (num_topk)   H  elements per token
//   P  ranks                E  experts of all ranks                  N  rows of a receive buffer
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/export.h"
#include "switchyard/layout.h"
#include "switchyard/quant.h"

namespace switchyard {

/// Every rank passes equal values. The constructor of Exchange checks this and names the first rank
/// and field that differ.
struct ExchangeConfig {
  std::int32_t num_experts = 0;  ///< E, from 1 to 65535; need not be a multiple of P
  /// [P] How many experts each rank holds, in order; 0: none, as on ranks that only run attention.
  /// Empty: E / P, and one more on each of the first E % P ranks.
  std::vector<std::int32_t> experts_per_rank{};
  /// K, from 1 to 64. With kAllGather also 0: there is no routing (E = 0), and each rank returns a
  /// row for every token.
  std::int32_t num_topk = 0;
  std::int64_t hidden = 0;               ///< H, at least 1; even for fp4
  std::int64_t max_tokens_per_rank = 0;  ///< upper bound on T, over all ranks
  Layout layout = Layout::kExpanded;     ///< of received rows
  /// kAllGather: every rank holds a slice of every expert (tensor parallelism), so each returns a
  /// row for every token.
  bool slices_experts = false;
  /// Format of rows on the wire; the sender quantizes them once. Unquantized schemes send their
  /// dtype: kNone bf16, QuantScheme{DType::kF32} f32. Rows in f16 or f32 are an error with kNone.
  QuantScheme scheme = schemes::kNone;
  ScaleLayout scale_layout = ScaleLayout::kRowMajor;  ///< of the received scales
  /// Bytes per row of each additional payload that travels with the tokens.
  std::vector<std::int64_t> payload_bytes{};
  Reduce reduce = Reduce::kPerRank;  ///< where a token's results are summed
  /// Format of returned rows, likewise: results in f16 or f32 are an error with kNone. A quantized
  /// scheme loses precision, so it is opt-in; it must have scales in each row.
  QuantScheme combine_scheme = schemes::kNone;
  bool sends_weights = true;          ///< topk_weights travel with dispatch (f32)
  std::int64_t expert_alignment = 1;  ///< kExpanded: each expert starts at a multiple of it
  /// kExpanded, kCompact, kAllGather: receive tensors always have their maximum size, so that
  /// shapes do not depend on the routing.
  bool worst_case_rows = false;
  /// kExpanded: zeroes the rows and scales that no token fills.
  bool zero_padding = false;
  /// Rows that an expert accepts; 0: as many as can arrive. kBatched: C of [L, C, H].
  std::int64_t capacity = 0;
  Overflow overflow = Overflow::kError;  ///< when more rows come than `capacity`
  std::int32_t max_in_flight = 1;        ///< handles that may be alive at once, from 1 to 64

  friend bool operator==(const ExchangeConfig&, const ExchangeConfig&) = default;
};

/// Memory of one rank, in bytes. Windows are shared with the peers; receive buffers are private.
/// Both are reserved in full; the system backs each page when rows first reach it.
struct ExchangeMemory {
  ///   128 + n * up(128 * (1 + P) + up(2 T K, 128) + up(4 T K, 128)
  ///                + max(T * row, T * columns * back), 128)
  /// where T is the declared maximum, n = max(2, max_in_flight + 1), and 4 T K applies only when
  /// weights travel. row is a token's elements, scales and payloads, each rounded up to 4 bytes and
  /// their sum to 16; back is the same for a returned row. columns is K, or min(P, K) for per_rank
  /// (P without routing, and with slices_experts).
  std::size_t window_bytes = 0;
  /// max_in_flight * (N * (elements + payloads + routing) + scales), in bytes, where N is the
  /// maximum number of rows that can arrive and scales are stored as scale_layout says. routing is
  /// 8 K bytes per row, or 4 in expert-major layouts; without weights 4 K, or 0.
  std::size_t receive_bytes = 0;
};

/// Of CPU ranks that share memory. Pure: no communication, no allocation.
/// Errors: kInvalidArgument, kNotSupported.
SWITCHYARD_API ExchangeMemory exchange_memory(const ExchangeConfig& config, int num_ranks,
                                              int rank);

/// The same for ranks on the hosts with these numbers, [P]. Windows then also have the rows that
/// are passed on, and receive_bytes the messages between hosts; where each rank is on a host of its
/// own, there are messages alone.
SWITCHYARD_API ExchangeMemory exchange_memory(const ExchangeConfig& config,
                                              std::span<const std::int32_t> hosts, int rank);

}  // namespace switchyard
