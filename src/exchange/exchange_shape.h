// SPDX-License-Identifier: Apache-2.0
//
// exchange_shape.h: what follows from an ExchangeConfig alone: sizes, layouts and the fields that
// ranks compare.
#pragma once

#include <memory>
#include <vector>

#include "switchyard/exchange_config.h"
#include "switchyard/exchange_types.h"

#include "exchange/agree.h"
#include "exchange/scale_blocks.h"
#include "plan/routing.h"
#include "plan/window_layout.h"

namespace switchyard {

struct ExchangeShape {
  std::shared_ptr<const std::vector<int>> first_experts;  ///< of `ownership`
  ExpertOwnership ownership;
  ReceiveShape receive;
  WindowLayout window;
  std::size_t payload_bytes = 0;           ///< elements of one row
  std::int64_t num_scales = 0;             ///< scales of one row
  std::vector<std::size_t> extras_in_row;  ///< offset of each extra payload in a row
  std::size_t combine_payload_bytes = 0;   ///< elements of one row of combine
  std::size_t combine_scales_in_row = 0;   ///< offset of the scales in it
  std::int64_t max_buffer_rows = 0;        ///< largest N on this rank
};

/// [P + 1] for ExpertOwnership::table, of experts_per_rank.
std::shared_ptr<const std::vector<int>> first_experts_of(const std::vector<std::int32_t>& counts);

/// Errors: kInvalidArgument, kNotSupported.
ExchangeShape make_exchange_shape(const ExchangeConfig& config, int num_ranks, int rank);

/// How the scales of a receive buffer with `num_rows` rows are laid out.
ScaleBlocks scale_blocks(const ExchangeConfig& config, const ExchangeShape& shape, int rank,
                         std::int64_t num_rows);

/// Bytes of the ids and weights that belong to a received row.
std::size_t routing_row_bytes(const ExchangeConfig& config);

/// The fields that must be equal on every rank.
NamedValues agreed_fields(const ExchangeConfig& config);
NamedValues agreed_fields(const ExchangeOptions& options);

}  // namespace switchyard
