// SPDX-License-Identifier: Apache-2.0
//
// backend_layouts.h: layouts of the memory that backends take beside what ranks of one host take,
// for them and for exchange_memory.
#pragma once

#include "exchange/exchange_shape.h"
#include "plan/host_map.h"
#include "plan/hosts_layout.h"
#include "plan/message_layout.h"

namespace switchyard {

/// Up to so many ranks that exchange messages get all ids; beyond that, those of the tokens that
/// come to them, with counts of the others.
inline constexpr int kRanksWithAllIds = 16;

/// True when rows that were sent may have no place where they arrive.
bool drops_rows(const ExchangeConfig& config);
/// True when routing goes only to the ranks concerned.
bool lists_tokens(const ExchangeConfig& config, int num_ranks);

/// Errors: kInvalidArgument when a size overflows.
MessageLayout message_layout_of(const ExchangeConfig& config, const WindowLayout& window,
                                int num_ranks);
HostsLayout hosts_layout_of(const ExchangeConfig& config, const WindowLayout& window,
                            const HostMap& map);

}  // namespace switchyard
