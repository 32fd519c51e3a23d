// SPDX-License-Identifier: Apache-2.0
//
// exchange_shape.h: what follows from an ExchangeConfig alone: sizes, layouts, what ranks compare.
#pragma once

#include "switchyard/exchange.h"

#include "exchange/agree.h"
#include "plan/routing.h"
#include "plan/window_layout.h"

namespace switchyard {

struct ExchangeShape {
  ExpertOwnership ownership;
  ReceiveShape receive;
  WindowLayout window;
  std::size_t payload_bytes = 0;     ///< elements of one row
  std::int64_t num_scales = 0;       ///< of one row, 4 bytes each
  std::int64_t max_buffer_rows = 0;  ///< N, on this rank
};

/// Errors: kInvalidArgument, kNotSupported.
ExchangeShape make_exchange_shape(const ExchangeConfig& config, int num_ranks, int rank);

/// The fields that every rank must pass alike.
NamedValues agreed_fields(const ExchangeConfig& config);

}  // namespace switchyard
