// SPDX-License-Identifier: Apache-2.0
//
// exchange_config.h: everything that is fixed for the life of an Exchange, and the memory that
// follows from it.
//
// Letters used for shapes in this header:
//   T  tokens on a rank     K  experts chosen per token (num_topk)   H  elements per token
//   P  ranks                E  experts of all ranks                  N  rows of a receive buffer
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "switchyard/export.h"
#include "switchyard/layout.h"
#include "switchyard/quant.h"

namespace switchyard {

/// Every rank passes equal values; the constructor of Exchange checks this and names the first rank
/// and field that differ.
struct ExchangeConfig {
  std::int32_t num_experts = 0;  ///< E, from 1 to 65535; need not be a multiple of P
  /// K, from 1 to 64. With kAllGather also 0: no routing at all (and E = 0), each rank returns a
  /// row for every token.
  std::int32_t num_topk = 0;
  std::int64_t hidden = 0;               ///< H, at least 1; even for fp4
  std::int64_t max_tokens_per_rank = 0;  ///< upper bound on T, over all ranks
  Layout layout = Layout::kExpanded;
  /// Of rows on the wire; quantized once, while sending. kNone: bf16, f16 or f32, by its dtype.
  QuantScheme scheme = schemes::kNone;
  ScaleLayout scale_layout = ScaleLayout::kRowMajor;  ///< of received scales
  /// Bytes of a row of each further payload that travels with the tokens.
  std::vector<std::int64_t> payload_bytes{};
  Reduce reduce = Reduce::kPerRank;
  /// Of rows on the way back: kNone of bf16, f16 or f32, or, opt-in because it loses precision, a
  /// quantized scheme with scales of its own for each row.
  QuantScheme combine_scheme = schemes::kNone;
  bool sends_weights = true;          ///< topk_weights travel with dispatch (f32)
  std::int64_t expert_alignment = 1;  ///< kExpanded: experts start at multiples of it
  /// kExpanded, kCompact, kAllGather: receive tensors always have their largest size, so that
  /// shapes do not depend on the routing.
  bool worst_case_rows = false;
  /// kExpanded: rows and scales that no token fills are zeroed.
  bool zero_padding = false;
  /// Rows that an expert accepts; 0: as many as can come. kBatched: C of [L, C, H].
  std::int64_t capacity = 0;
  Overflow overflow = Overflow::kError;
  std::int32_t max_in_flight = 1;  ///< handles that may be alive at once, from 1 to 64

  friend bool operator==(const ExchangeConfig&, const ExchangeConfig&) = default;
};

/// Memory that one rank takes, in bytes. Windows are shared with the peers; receive buffers are
/// private. Both are reserved whole and become real page by page, as rows really arrive.
struct ExchangeMemory {
  /// 128 + n * up(128 * (1 + P) + up(2 T K, 128) + up(4 T K, 128)
  ///              + max(T * row, T * columns * back), 128)
  /// with 4 T K only where weights travel, T the declared maximum, n = max(2, max_in_flight + 1),
  /// row = elements, scales and payloads of a token, each rounded up to 4 and together to 16 bytes,
  /// back = the same of a returned row, columns = K, or min(P, K) for per_rank (P without routing).
  std::size_t window_bytes = 0;
  /// max_in_flight * (N * (row + payloads + routing) + scales), N the most rows that can arrive,
  /// scales as scale_layout wants them, routing = 8 K bytes, or 4 where experts are apart; without
  /// weights 4 K, or 0.
  std::size_t receive_bytes = 0;
};

/// Pure: no communication, no allocation. Errors: kInvalidArgument, kNotSupported.
SWITCHYARD_API ExchangeMemory exchange_memory(const ExchangeConfig& config, int num_ranks,
                                              int rank);

}  // namespace switchyard
